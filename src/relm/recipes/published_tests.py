"""Published test files: `recipes/evaluations/NAME.yaml` describes one, and names the protocol by which it is scored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn
from relm.recipes.evaluations import EVALUATIONS, HARNESS, PROTOCOLS, EvaluationDeclaration, names_in_recipes, task_of
from relm.recipes.protocol_options import Lambada, MultipleChoice, TextPerplexity
from relm.recipes.remote_files import PinnedFile
from relm.recipes.section import Section, Slug, read_yaml, validate
from relm.recipes.web_address import WebAddress

ITEM_FORMATS = ("lambada", "text", "hellaswag", "blimp", "arc", "piqa", "squad")
"""Formats of tests' files whose items `relm contamination` compares with documents."""


class PublishedTest(Section):
    """`recipes/evaluations/NAME.yaml`: one test file, and the protocol by which it is scored."""

    title: str
    """Short description of the text."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: WebAddress | None = None
    """A page about the data."""
    protocol: Annotated[str, NameIn(PROTOCOLS)]
    """Evaluation of the file. perplexity: of a UTF-8 text; lambada: the last words of passages, one JSON object per line;
    multiple_choice: questions, one JSON object per line, in one file or in several in a zip archive."""
    files: dict[Slug, PinnedFile] = Field(min_length=1, max_length=1)
    """Name of the one file -> its content and sources."""
    perplexity: TextPerplexity = TextPerplexity()
    """Options of the protocol perplexity."""
    lambada: Lambada = Lambada()
    """Options of the protocol lambada."""
    multiple_choice: MultipleChoice = MultipleChoice()
    """Options of the protocol multiple_choice."""

    @property
    def file(self) -> str:
        """Name of the one file."""
        return next(iter(self.files))

    @property
    def item_format(self) -> str | None:
        """Format of its items, one of `ITEM_FORMATS`; None: an extension's protocol has none."""
        by_protocol = {"perplexity": "text", "lambada": "lambada", "multiple_choice": self.multiple_choice.format}
        return by_protocol.get(self.protocol)

    @model_validator(mode="after")
    def options_belong_to_the_protocol(self) -> Self:
        for other in [protocol.name for protocol in PROTOCOLS if protocol.options is not None]:
            if other != self.protocol and getattr(self, other) != type(self).model_fields[other].default:
                raise ValueError(f"{other}: options of another protocol than {self.protocol}; leave them out")
        return self


def load_test(path: Path) -> PublishedTest:
    """Return the test in a file of `recipes/evaluations/`."""
    return validate(PublishedTest, read_yaml(path), path)


def find_evaluation(task: str, tests: Mapping[str, PublishedTest]) -> EvaluationDeclaration | None:
    """Return the declaration behind the name of a result; None: there is no such evaluation.

    Args:
        task: the name of the result.
        tests: the published tests that the recipe evaluates.
    """
    if task in names_in_recipes():
        return EVALUATIONS[task]
    if task.startswith(task_of(HARNESS)):
        return EVALUATIONS["lm_eval"]
    return EVALUATIONS[tests[task].protocol] if task in tests else None
