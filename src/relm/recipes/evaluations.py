"""The protocols of evaluation, option by option, and what an evaluation on a published test file is.

Such a file is described in `recipes/evaluations/NAME.yaml`; a recipe's `evaluate` names it.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.remote_files import RemoteFile
from relm.recipes.section import Section, Slug, read_yaml, validate

# What a recipe may evaluate on its own held-out examples -> the objectives of a last phase that it fits.
OWN_DATA = {
    "held_out": ("causal",),
    "random_windows": ("causal",),
    "samples": ("causal",),
    "masked_lm": ("masked",),
    "pseudo_perplexity": ("masked",),
    "diacritics": ("seq2seq",),
    "training": ("causal", "masked", "seq2seq", "span_corruption"),
}
# Those that are of the trained weights alone: texts for a reader, and what training took.
OF_TRAINED_ALONE = ("samples", "training")
HARNESS = "lm_eval:"
"""What precedes the name of a task of the language-model evaluation harness."""

Evaluation = Annotated[str, Field(pattern=r"^(lm_eval:)?[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def task_of(evaluation: str) -> str:
    """What an entry of `evaluate` is called in file names and metrics.

    >>> task_of("lambada"), task_of("lm_eval:hellaswag")
    ('lambada', 'lm_eval_hellaswag')
    """
    return evaluation.replace(":", "_")


def objectives_of(evaluation: str) -> tuple[str, ...]:
    """The objectives of a last phase that an entry of `evaluate` fits: tests on published files score next tokens."""
    return OWN_DATA.get(evaluation, ("causal",))


Begin = Literal["none", "tokenizer", "every_window"]
"""What is put before a text that a causal model scores."""


class RandomWindows(Section):
    """The loss on windows that begin at random tokens, as nanoGPT estimates it while it trains."""

    batches: int = Field(default=20, gt=0)
    """How many, each of the last phase's global batch size; the figure is the mean of their mean losses."""
    seed: int = Field(default=0, ge=0)
    """Of the windows' beginnings."""


class TextPerplexity(Section):
    """Perplexity of a text."""

    detokeniser: Literal["none", "gpt2_wikitext"] = "none"
    """none: the text as it is; gpt2_wikitext: WikiText's spaces around punctuation removed as Graphcore's GPT-2, which has the
    rules from Megatron-LM, removes them."""
    documents: Literal["one", "joined_rows", "level_1_headings"] = "one"
    """one: the whole file is one document; joined_rows: one document of its lines, as Hugging Face's page on perplexity joins
    the rows of its WikiText; level_1_headings: WikiText's pages, each beginning at ` = Title = `, as in lm_eval's data set."""
    windows: Literal["overlapping", "rolling", "strided"] = "overlapping"
    """How a document longer than the context is cut. overlapping: windows begin every `stride` tokens, the first one scores all
    its tokens and each later one its last `stride` (Megatron-LM, and so Graphcore's GPT-2); rolling: windows do not overlap but
    for one token, and the last one reaches back as far as the context allows (lm_eval); strided: as in Hugging Face's page on
    perplexity, where each window scores what the one before did not reach."""
    context: int | None = Field(default=None, gt=1)
    """Tokens that a prediction may see; null: as many as the model has positions."""
    stride: int | None = Field(default=None, gt=0)
    """Tokens from one window to the next; null, or more than the model has positions: the context, so that windows do not
    overlap. rolling has no stride."""
    begin: Begin = "tokenizer"
    """none: a document begins with its own tokens; tokenizer: with what the tokenizer puts before a text that it encodes, its
    bos, or nothing where it adds none; every_window: every window begins with bos, which counts in its length, so a window is
    bos and L - 1 tokens. The first token put before a document is never scored."""
    first_token: Literal["given", "scored"] = "given"
    """given: a document's first token, which is bos where one is put before it, is not scored; scored: it is, after the
    tokenizer's bos or else its end of text. So lm_eval scores a bos that the tokenizer adds."""
    words: Literal["single_spaces", "whitespace"] = "whitespace"
    """What perplexity per word counts, in the text before the detokeniser. single_spaces: parts between single spaces of the
    stripped text, minus one, as Megatron-LM counts; whitespace: parts between runs of whitespace, as lm_eval counts."""

    @model_validator(mode="after")
    def windows_have_their_options(self) -> Self:
        if self.windows == "rolling" and self.stride is not None:
            raise ValueError("stride: rolling windows have none; leave it out")
        if self.stride is not None and self.context is not None and self.stride > self.context:
            raise ValueError(f"stride ({self.stride}) exceeds context ({self.context}): tokens would be left out")
        if self.stride is not None and self.context is not None and self.stride > self.longest_stride(self.context):
            raise ValueError(f"stride ({self.stride}): bos and {self.context - 1} tokens fill a window; give at most as many")
        return self

    def longest_stride(self, context: int) -> int:
        """The most tokens from one window to the next that leave none out: strided windows score none beyond their context."""
        return context - 1 if self.begin == "every_window" and self.windows == "strided" else context


class Lambada(Section):
    """The last word of passages (Paperno et al. 2016), by three protocols at once."""

    text_key: str = "text"
    """The key of a line's object with the passage."""
    begin: Begin = "tokenizer"
    """none: a passage begins with its own tokens; tokenizer: with what the tokenizer puts before a text that it encodes, its
    bos, or nothing where it adds none, and a passage that is cut loses it; every_window: with bos, also where it is cut."""


class MaskedLm(Section):
    """The loss of hidden tokens on held-out examples, by two protocols: one whose masks never change, and that of run_mlm.py.

    That is the script which the Hugging Face blog ran, of transformers 4.2.2: masks drawn anew at each evaluation, the means of
    batches averaged. Masks that are stored with the examples are never drawn, so only the first protocol remains.
    """

    seed: int = Field(default=0, ge=0)
    """Of all masks. Those of the first protocol follow from it and an example's number alone, whatever the model."""
    redraws: int = Field(default=3, gt=0)
    """How often the masks are drawn anew for the second protocol; its figures are a mean, and of several the spread."""
    batch_size: int = Field(default=8, gt=0)
    """Of the second protocol: sequences over whose hidden tokens each mean is taken (its per_device_eval_batch_size)."""
    processes: int = Field(default=1, gt=0)
    """Of the second protocol: equal pieces that the examples were cut into, each batched by itself; 8 on a TPU v3-8."""


class PseudoPerplexity(Section):
    """Each token predicted from all others, as if it alone were hidden (Salazar et al. 2020)."""

    examples: int = Field(default=100, gt=0)
    """How many held-out examples, the first ones: each goes through the model as many times as it has tokens."""


class Diacritics(Section):
    """How well diacritics are restored, by letter, word and ambiguous word.

    Beside it the same figures of the text without diacritics, and of each word's most frequent form in the training text.
    """

    examples: int | None = Field(default=None, gt=0)
    """How many held-out texts, the first ones; null: all."""


class PublishedTest(Section):
    """`recipes/evaluations/NAME.yaml`: one test file, and how it is scored."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: str | None = Field(default=None, pattern=r"^https?://")
    """A page about the data."""
    protocol: Literal["perplexity", "lambada"]
    """perplexity: of a UTF-8 text; lambada: the last words of passages, a JSON object a line."""
    files: dict[Slug, RemoteFile] = Field(min_length=1, max_length=1)
    """The file's name -> what it is."""
    perplexity: TextPerplexity = TextPerplexity()
    """How text is scored, where that is the protocol."""
    lambada: Lambada = Lambada()
    """How last words are scored, where that is the protocol."""

    @property
    def file(self) -> str:
        """The name of the one file."""
        return next(iter(self.files))

    @model_validator(mode="after")
    def options_belong_to_the_protocol(self) -> Self:
        for other in {"perplexity", "lambada"} - {self.protocol}:
            if getattr(self, other) != type(self).model_fields[other].default:
                raise ValueError(f"{other}: options of another protocol than {self.protocol}; leave them out")
        return self


def load_test(path: Path) -> PublishedTest:
    """The test in a file of `recipes/evaluations/`."""
    return validate(PublishedTest, read_yaml(path), path)
