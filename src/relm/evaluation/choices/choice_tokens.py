"""The tokens of multiple-choice prompts: each choice after its context, encoded in each published way.

- lm_eval encodes context and choice together, and scores the tokens beyond the context's number of tokens by itself.
- llm_c encodes context and choice separately, the choice after a space. Its script has GPT-2's tokenizer, which adds nothing;
  here the context begins with the tokens that the tokenizer puts before a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from relm.errors import RelmError
from relm.evaluation.choices.choice_formats import ChoicePrompt, Question
from relm.evaluation.evaluated_text import Row, encode_rows
from relm.evaluation.scoring import Integers
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer


@dataclass(frozen=True)
class EncodedChoices:
    """The choices of all questions as tokens, in their order."""

    rows: list[Row]
    """Tokens of each choice, with those before it."""
    scored: Integers
    """(choices,) number of last tokens to score."""


@dataclass(frozen=True)
class ChoiceEncoder:
    """A tokenizer with the tokens that begin a text."""

    tokenizer: LoadedTokenizer
    added: tuple[int, ...]
    """Ids that the tokenizer puts before a text."""

    def encode(self, way: str, questions: Sequence[Question]) -> EncodedChoices:
        """Return the choices of questions for one way of scoring."""
        prompts = [question.prompts[way] for question in questions]
        rows, scored = WAYS[way](self, prompts)
        lines = np.repeat(np.arange(len(prompts)), [len(prompt.choices) for prompt in prompts])
        lengths = np.fromiter(map(len, rows), dtype=np.int64)
        if len(wrong := np.flatnonzero((scored < 1) | (scored >= lengths))):
            raise RelmError(
                f"{questions[lines[wrong[0]]].where}: {self.tokenizer.path} leaves {way} no token of a choice to score, or "
                "none before it; correct the line, or use another tokenizer"
            )
        return EncodedChoices(rows, scored)

    def rows(self, *groups: Sequence[str]) -> list[list[Row]]:
        """Return the tokens of each text of each group, without special ones, from one encoder."""
        rows = iter(encode_rows(self.tokenizer, [text for texts in groups for text in texts]))
        return [[next(rows) for _ in texts] for texts in groups]

    def begun(self, row: Row) -> Row:
        """Return a row after the tokens that the tokenizer puts before a text."""
        return np.concatenate([np.array(self.added, dtype=row.dtype), row])


def _as_lm_eval(encoder: ChoiceEncoder, prompts: Sequence[ChoicePrompt]) -> tuple[list[Row], Integers]:
    kept = [prompt.context.rstrip() for prompt in prompts]  # white space at a context's end goes to the choice
    contexts, texts = encoder.rows(kept, [f"{prompt.context} {choice}" for prompt in prompts for choice in prompt.choices])
    pairs = list(zip(_for_each_choice(contexts, prompts), texts, strict=True))
    rows = [encoder.begun(np.concatenate([context, whole[len(context) :]])) for context, whole in pairs]
    return rows, np.array([len(whole) - len(context) for context, whole in pairs], dtype=np.int64)


def _for_each_choice(contexts: Sequence[Row], prompts: Sequence[ChoicePrompt]) -> list[Row]:
    return [context for context, prompt in zip(contexts, prompts, strict=True) for _ in prompt.choices]


def _as_llm_c(encoder: ChoiceEncoder, prompts: Sequence[ChoicePrompt]) -> tuple[list[Row], Integers]:
    texts = [f" {choice}" for prompt in prompts for choice in prompt.choices]
    contexts, choices = encoder.rows([prompt.context for prompt in prompts], texts)
    given = _for_each_choice(contexts, prompts)
    rows = [encoder.begun(np.concatenate([context, choice])) for context, choice in zip(given, choices, strict=True)]
    return rows, np.fromiter(map(len, choices), dtype=np.int64)


WAYS: dict[str, Callable[[ChoiceEncoder, Sequence[ChoicePrompt]], tuple[list[Row], Integers]]] = {
    "lm_eval": _as_lm_eval,
    "llm_c": _as_llm_c,
}
"""Way of scoring -> function that returns each choice's tokens, and the number of scored ones."""
