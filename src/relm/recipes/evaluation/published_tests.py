"""Published test files: `recipes/evaluations/NAME.yaml` describes one, and names the protocol that scores it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn, refuse_keys_of_others
from relm.recipes.evaluation.evaluations import (
    EVALUATIONS,
    HARNESS,
    PROTOCOLS,
    EvaluationDeclaration,
    names_in_recipes,
    task_of,
)
from relm.recipes.evaluation.fine_tuning import FineTuning, Glue, Squad
from relm.recipes.evaluation.protocol_options import Lambada, MultipleChoice, TextPerplexity
from relm.recipes.files.remote_files import RemoteFile
from relm.recipes.files.web_address import WebAddress
from relm.recipes.section import Section, Slug, read_yaml, validate

ITEM_FORMATS = ("lambada", "text", "hellaswag", "arc", "piqa", "squad", "glue")
"""Formats of tests' files whose passages `data.remove` and `relm list-removed` cut out of documents."""


class PublishedTest(Section):
    """`recipes/evaluations/NAME.yaml`: one test file, and the protocol that scores it."""

    title: str
    """Short description of the text."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: WebAddress | None = None
    """A page about the data."""
    protocol: Annotated[str, NameIn(PROTOCOLS)]
    """Evaluation of the file. perplexity: of a UTF-8 text; lambada: the last words of passages, one JSON object per line;
    multiple_choice: questions, one JSON object per line, or the rows of a parquet file; squad: questions in the format of
    SQuAD 1.1, after fine-tuning; glue: the examples of a task of GLUE, after fine-tuning."""
    files: dict[Slug, RemoteFile] = Field(min_length=1, max_length=3)
    """File name -> its content and sources: the file that is scored and, if a model is fine-tuned first, its training file and,
    of MNLI, a second file that is scored."""
    training_file: Slug | None = None
    """Name of the file that a model is fine-tuned on before the other one is scored; null: the protocol fine-tunes none."""
    mismatched_file: Slug | None = None
    """Name of a second file that the same model is scored on, MNLI's mismatched examples; null: there is none."""
    perplexity: TextPerplexity = TextPerplexity()
    """Options of the protocol perplexity."""
    lambada: Lambada = Lambada()
    """Options of the protocol lambada."""
    multiple_choice: MultipleChoice = MultipleChoice()
    """Options of the protocol multiple_choice."""
    squad: Squad = Squad()
    """Options of the protocol squad."""
    glue: Glue = Glue()
    """Options of the protocol glue."""

    @property
    def file(self) -> str:
        """Name of the file that is scored."""
        return next(name for name in self.files if name not in (self.training_file, self.mismatched_file))

    @property
    def inputs(self) -> dict[str, str]:
        """Input of its protocol, file, training_file or mismatched_file -> the name of that file."""
        others = {"training_file": self.training_file, "mismatched_file": self.mismatched_file}
        return {"file": self.file, **{key: name for key, name in others.items() if name is not None}}

    @property
    def tuning(self) -> FineTuning | None:
        """Options of the fine-tuning before the test is scored; None: there is none, or an extension defines it."""
        options = getattr(self, self.protocol, None)
        return options if isinstance(options, FineTuning) else None

    @property
    def sha256(self) -> dict[str, str]:
        """File name -> sha256, of the files whose sha256 is known before they are downloaded."""
        return {name: remote.sha256 for name, remote in self.files.items() if remote.is_pinned}

    @property
    def objectives(self) -> tuple[str, ...]:
        """Objectives of the last phase for which the test is defined."""
        return PROTOCOLS[self.protocol].objectives

    @property
    def item_format(self) -> str | None:
        """Format of its items, one of `ITEM_FORMATS`; None: an extension's protocol has none."""
        by_protocol = {
            "perplexity": "text",
            "lambada": "lambada",
            "multiple_choice": self.multiple_choice.format,
            "squad": "squad",
            "glue": "glue",
        }
        return by_protocol.get(self.protocol)

    @model_validator(mode="after")
    def has_the_files_of_the_protocol(self) -> Self:
        found, fine_tunes = ", ".join(self.files), PROTOCOLS[self.protocol].fine_tunes
        if fine_tunes != (self.training_file is not None):
            wanted = f"a model; name the one of {found} for that" if fine_tunes else "no model; remove it"
            raise ValueError(f"training_file: {self.protocol} fine-tunes {wanted}")
        if self.mismatched_file is not None and (self.protocol, self.glue.task) != ("glue", "mnli"):
            raise ValueError("mismatched_file: only task mnli of the protocol glue has a second file; remove it")
        named = [name for name in (self.training_file, self.mismatched_file) if name is not None]
        if len(self.files) != len(named) + 1 or len({*named} & {*self.files}) < len(named):
            others = f" besides {' and '.join(named)}" if named else ""
            raise ValueError(f"files: {self.protocol} scores one file{others}, found {found}; list each once, and no other")
        refuse_keys_of_others(self, "protocol", {one.name: [one.name] for one in PROTOCOLS})
        return self


def load_test(path: Path) -> PublishedTest:
    """Return the test in a file of `recipes/evaluations/`."""
    return validate(PublishedTest, read_yaml(path), path)


def find_evaluation(task: str, tests: Mapping[str, PublishedTest]) -> EvaluationDeclaration | None:
    """Return the declaration behind the name of a result, which may be one of a recipe's tests; None: it has none."""
    if task in names_in_recipes():
        return EVALUATIONS[task]
    if task.startswith(task_of(HARNESS)):
        return EVALUATIONS["lm_eval"]
    return EVALUATIONS[tests[task].protocol] if task in tests else None
