"""Published test files: `recipes/evaluations/NAME.yaml` describes one, and names the protocol by which it is scored.

A test that models are fine-tuned for has a second file, with the examples that they are trained on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn
from relm.recipes.evaluations import EVALUATIONS, HARNESS, PROTOCOLS, EvaluationDeclaration, names_in_recipes, task_of
from relm.recipes.fine_tuning import Squad
from relm.recipes.protocol_options import FORMATS_OF_SENTENCES, Lambada, MultipleChoice, TextPerplexity
from relm.recipes.remote_files import RemoteFile
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
    multiple_choice: questions, one JSON object per line, in one file or in several in a zip archive, or the rows of a
    parquet file; squad: questions in the
    format of SQuAD 1.1, after fine-tuning."""
    files: dict[Slug, RemoteFile] = Field(min_length=1, max_length=2)
    """File name -> its content and sources: the file that is scored and, if a model is fine-tuned first, its training file."""
    training_file: Slug | None = None
    """Name of the file that a model is fine-tuned on before the other one is scored; null: the protocol fine-tunes none."""
    perplexity: TextPerplexity = TextPerplexity()
    """Options of the protocol perplexity."""
    lambada: Lambada = Lambada()
    """Options of the protocol lambada."""
    multiple_choice: MultipleChoice = MultipleChoice()
    """Options of the protocol multiple_choice."""
    squad: Squad = Squad()
    """Options of the protocol squad."""

    @property
    def file(self) -> str:
        """Name of the file that is scored."""
        return next(name for name in self.files if name != self.training_file)

    @property
    def inputs(self) -> dict[str, str]:
        """Input of its protocol, file or training_file -> the name of that file."""
        return {"file": self.file, **({"training_file": self.training_file} if self.training_file else {})}

    @property
    def sha256(self) -> dict[str, str]:
        """File name -> sha256, of the files whose sha256 is known before they are downloaded."""
        return {name: remote.sha256 for name, remote in self.files.items() if remote.is_pinned}

    @property
    def objectives(self) -> tuple[str, ...]:
        """Objectives of the last phase for which the test is defined."""
        objectives = PROTOCOLS[self.protocol].objectives
        if self.protocol == "multiple_choice" and self.multiple_choice.format not in FORMATS_OF_SENTENCES:
            return tuple(objective for objective in objectives if objective != "masked")
        return objectives

    @property
    def item_format(self) -> str | None:
        """Format of its items, one of `ITEM_FORMATS`; None: an extension's protocol has none."""
        by_protocol = {
            "perplexity": "text",
            "lambada": "lambada",
            "multiple_choice": self.multiple_choice.format,
            "squad": "squad",
        }
        return by_protocol.get(self.protocol)

    @model_validator(mode="after")
    def has_the_files_of_the_protocol(self) -> Self:
        found = ", ".join(self.files)
        if not PROTOCOLS[self.protocol].fine_tunes:
            if self.training_file is not None:
                raise ValueError(f"training_file: {self.protocol} fine-tunes no model; leave it out")
            if len(self.files) > 1:
                raise ValueError(f"files: {self.protocol} scores one file, found {found}; leave the others out")
        elif self.training_file is None:
            raise ValueError(f"training_file: {self.protocol} fine-tunes a model; name the one of {found} for that")
        elif self.training_file not in self.files:
            raise ValueError(f"training_file: {self.training_file} is not one of files, which has {found}; correct either")
        elif len(self.files) == 1:
            raise ValueError(f"files: {self.protocol} scores a second one beside {self.training_file}; add it")
        return self

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
