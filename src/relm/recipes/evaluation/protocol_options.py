"""Options of the protocols that score a published test file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relm.recipes.section import Section

Begin = Literal["none", "tokenizer"]
"""Tokens that are prepended to a text that a causal model scores."""


class TextPerplexity(Section):
    """Perplexity of a text."""

    detokeniser: Literal["none", "gpt2_wikitext"] = "none"
    """Detokeniser of the text before it is scored. none: the text is unchanged; gpt2_wikitext: WikiText's spaces around
    punctuation are removed, by the rules of Megatron-LM that Graphcore's GPT-2 uses."""
    documents: Literal["one", "joined_rows", "level_1_headings"] = "one"
    """Documents of the file. one: the whole file is one document; joined_rows: its lines are concatenated to one document, as
    in Hugging Face's page on perplexity; level_1_headings: one document per WikiText page, each beginning at ` = Title = `, as
    in lm_eval's data set."""
    windows: Literal["overlapping", "rolling", "strided"] = "overlapping"
    """Windows of a document that is longer than the context. overlapping: windows begin every `stride` tokens, the first one
    scores all its tokens and each later one its last `stride` (Megatron-LM, and so Graphcore's GPT-2); rolling: windows share
    one token only, and the last one reaches back as far as the context allows (lm_eval); strided: as in Hugging Face's page on
    perplexity, where each window scores the tokens after the end of the one before."""
    context: int | None = Field(default=None, gt=1)
    """Number of tokens that a prediction can see; null: the model's number of positions."""
    stride: int | None = Field(default=None, gt=0)
    """Tokens from one window to the next; null, or more than the model has positions: the context, so that windows do not
    overlap. rolling has no stride."""
    begin: Begin = "tokenizer"
    """Tokens that are prepended to a document. none: no tokens; tokenizer: those that the tokenizer adds before a text that it
    encodes, its bos or nothing. The first token prepended is never scored."""
    first_token: Literal["given", "scored"] = "given"
    """Treatment of a document's first token, which is bos if that is prepended. given: it is not scored; scored: it is scored,
    conditioned on the tokenizer's bos or else its end-of-text token. So lm_eval scores a bos that the tokenizer adds."""
    words: Literal["single_spaces", "whitespace"] = "whitespace"
    """Word count for the perplexity per word, of the text before the detokeniser. single_spaces: parts between single spaces of
    the stripped text, minus one, as in Megatron-LM; whitespace: parts between runs of whitespace, as in lm_eval."""

    @model_validator(mode="after")
    def windows_have_their_options(self) -> Self:
        if self.windows == "rolling" and self.stride is not None:
            raise ValueError("stride: rolling windows have none; remove it")
        if self.stride is not None and self.context is not None and self.stride > self.context:
            raise ValueError(f"stride ({self.stride}) exceeds context ({self.context}): tokens would be left out")
        return self


class Lambada(Section):
    """Prediction of the last word of passages (Paperno et al. 2016), by three protocols at once."""

    text_key: str = "text"
    """Key of the passage in each line's JSON object."""
    begin: Begin = "tokenizer"
    """Tokens that are prepended to a passage. none: no tokens; tokenizer: those that the tokenizer adds before a text that it
    encodes, its bos or nothing, which a truncated passage loses."""


class MultipleChoice(Section):
    """Questions with several choices; the likeliest is the answer, by all published ways of scoring at once."""

    format: Literal["hellaswag", "arc", "piqa"] = "hellaswag"
    """Keys of the JSON object on each line. hellaswag: ctx, ctx_a, ctx_b, activity_label, endings, label; arc: question,
    choices and answerKey, as in lm_eval's data set; piqa: goal, sol1, sol2, label."""
