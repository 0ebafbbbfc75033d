"""The tasks of GLUE by fine-tuning: training on the training file, then the class or score of each development example.

The protocol is that of the original BERT's `run_classifier.py` (Devlin et al. 2019, section 4.1), with four differences: as in
transformers, the learning rate falls from its peak at the end of the warm-up, pairs are truncated, and heads are built; and
examples are read in a seeded permutation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.glue_scoring import score_predictions
from relm.evaluation.fine_tuning.seeds import compute_logits
from relm.examples.fine_tuning.classification import write_labelled_table
from relm.examples.fine_tuning.glue import TASKS, LabelledTexts, parse_glue
from relm.examples.text_pairs import encode_pairs
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.models.bert_classification import BertForClassification
from relm.models.bert_model import EncoderModel
from relm.recipes.evaluation.fine_tuning import Glue
from relm.recipes.phase import Phase

# Number of a model's outputs -> the objective that trains it.
OBJECTIVES = {1: "score", 2: "two_classes", 3: "three_classes"}


@dataclass(frozen=True)
class GlueTuning:
    """A task of GLUE to fine-tune on; fulfils `TunedTask`, which documents the methods."""

    name: ClassVar[str] = "glue"
    title: ClassVar[str] = "fine-tuning on a task of GLUE"
    revision: ClassVar[int] = 1
    head: ClassVar[str] = "head of classes"

    options: Glue
    tokenizer: LoadedTokenizer
    texts: Mapping[str, LabelledTexts]
    """Suffix of the figures -> the examples of a development file."""
    limit: int | None = None
    """Number of examples to read of the training file; None: all."""

    @classmethod
    def read(
        cls, options: Glue, tokenizer: LoadedTokenizer, files: Mapping[str, tuple[Path, bytes]], limit: int | None
    ) -> "GlueTuning":
        """Return the task for the development files, given by the suffix of their figures."""
        if len(files) > 1 and options.task != "mnli":
            second = [path for path, _ in files.values()][-1]
            raise RelmError(f"{second}: only mnli has a second development file, found task {options.task}; leave it out")
        texts = {suffix: parse_glue(content, options.task, str(path)).head(limit) for suffix, (path, content) in files.items()}
        return cls(options, tokenizer, texts, limit)

    @property
    def protocol(self) -> str:
        title = TASKS[self.options.task].title
        return (
            f"Fine-tuned on {title}, a task of GLUE, once for each seed; the figures are those of the development set, as "
            "means over the seeds with the standard deviation of one run."
        )

    @property
    def objective(self) -> str:
        return OBJECTIVES[TASKS[self.options.task].labels]

    def write_table(self, file: Path, tokenizer: Path, table: Path, phase: Phase) -> None:
        write_labelled_table(file, tokenizer, table, phase, self.options.task, self.limit)

    def count_examples(self, sidecar: Mapping[str, Any]) -> int:
        return int(sidecar["examples"])

    def start(self, folder: Path, generator: torch.Generator) -> EncoderModel:
        return BertForClassification.on_encoder(folder, generator, labels=TASKS[self.options.task].labels)

    def score(self, model: Path, execution: Execution) -> tuple[dict[str, list[str] | list[float]], dict[str, float]]:
        """Return the class's name or the score of each development example, and the figures."""
        task, figures = TASKS[self.options.task], dict[str, float]()
        predictions: dict[str, list[str] | list[float]] = {}
        read = BertForClassification.from_folder(model)
        for suffix, texts in self.texts.items():
            inputs = encode_pairs(self.tokenizer, texts.first, texts.second, self.options.sequence_length).inputs()
            logits = compute_logits(read, inputs, execution, model)
            predicted = logits.argmax(1) if task.classes else logits[:, 0]
            found = score_predictions(task.metrics, predicted, np.array(texts.labels))
            figures |= {f"{name}{suffix}": value for name, value in found.items()}
            names = [task.classes[number] for number in predicted] if task.classes else predicted.tolist()
            predictions[f"dev{suffix}"] = names
        return predictions, figures

    def count(self, examples: Mapping[str, Any]) -> dict[str, int]:
        return {f"examples{suffix}": len(found.first) for suffix, found in self.texts.items()}

    def describe(self, found: Mapping[str, float | int], training_file: Path) -> str:
        names = [name for name in found if f"{name}_std" in found]
        shown = [f"{name.replace('_', ' ')} {found[name]:.4f} +- {found[f'{name}_std']:.4f}" for name in names]
        labelled = sum(self.count({}).values())
        return f"on {self.options.task} and labelled {labelled:,} examples: {', '.join(shown)}"
