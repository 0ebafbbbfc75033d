"""The result of an evaluation, `eval/TASK.json`, which has the same form for every task."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from relm.artifact import write_json
from relm.recipes.section import Section

# The exponential of more than this overflows.
LARGEST_EXPONENT = 700.0

# The largest share of questions with several likeliest choices at which an accuracy is compared with a published one.
MOST_TIED = 0.01


def perplexity(name: str, nats: float) -> dict[str, float]:
    """Return the figure e^nats under its name, or nothing if that overflows."""
    return {name: math.exp(nats)} if nats < LARGEST_EXPONENT else {}


def tied_share(name: str, figures: Mapping[str, Any]) -> float:
    """Return the share of questions with several likeliest choices on which a figure of multiple choice rests, else 0."""
    return float(figures.get(f"{name.removesuffix('_stderr')}_tied", 0.0))


def describe_ties(figures: Mapping[str, Any]) -> str:
    """Return a warning about the accuracy that rests on the most ties; an empty text if no share is too large."""
    name = max((name for name in figures if "_accuracy" in name), key=lambda name: tied_share(name, figures), default="")
    share = tied_share(name, figures)
    return (
        f"{share:.2%} of the questions of {name} have several likeliest choices, of which the first counts: above "
        f"{MOST_TIED:.0%} it is compared with no published figure."
        if share > MOST_TIED
        else ""
    )


class Sample(Section):
    """A text that a model wrote."""

    multi_line = frozenset({"prompt", "text"})
    prompt: str
    """The prompt that the model was given."""
    text: str
    """The text that the model wrote, after the prompt if it continues it."""


class Result(Section):
    """`eval/TASK.json`: the figures of one task and their protocol."""

    multi_line = frozenset({"protocol"})
    task: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The name of the evaluation, as in the file's name."""
    protocol: dict[str, Any]
    """The protocol: `in_words`, one or two sentences for a reader; `tokenizer_sha256`; the sha256 of the input file or
    manifest; every option that decides a figure, under its name; and definitions of what was counted."""
    figures: dict[str, float | int]
    """Name -> value. Losses are in nats, accuracies from 0 to 1."""
    model_sha256: str
    """sha256 of the weights."""
    samples: list[Sample] | None = None
    """Texts for a person to read."""

    def write(self, path: Path) -> None:
        """Write the file, complete or not at all."""
        write_json(path, self.model_dump(mode="json", exclude_none=True))
