"""The tasks of GLUE by fine-tuning: training on the training file, then the class or the score of each development example.

The protocol is that of the original BERT's `run_classifier.py` (Devlin et al. 2019, section 4.1), except that the learning
rate falls from its peak at the end of the warm-up, as in transformers, that examples are read in a seeded permutation, and that
pairs are truncated as by transformers; its heads are those of transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from relm.errors import RelmError
from relm.evaluation.evaluated_text import read_content
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning import TuningRun, compute_logits, format_times, read_encoder, summarise, tune_and_score
from relm.evaluation.glue_scoring import score_predictions
from relm.evaluation.result import Result
from relm.evaluation.tuning_pipeline import require_pipeline
from relm.examples.classification import write_labelled_table
from relm.examples.glue import TASKS, LabelledTexts, parse_glue
from relm.examples.text_pairs import encode_pairs
from relm.examples.tokenizers import LoadedTokenizer, load_tokenizer
from relm.models.bert_classification import BertForClassification
from relm.models.bert_model import EncoderModel
from relm.recipes.fine_tuning import Glue
from relm.recipes.recipe import Phase
from relm.training.interruption import ends_when_asked

# Count of a model's outputs -> the objective that trains it.
OBJECTIVES = {1: "score", 2: "two_classes", 3: "three_classes"}
MISMATCHED = "_mismatched"


@ends_when_asked()
def evaluate_glue(
    model_folder: Path,
    tokenizer: Path,
    training_file: Path,
    file: Path,
    output: Path,
    task: str,
    options: Glue,
    mismatched_file: Path | None = None,
    training_sha256: str | None = None,
    file_sha256: str | None = None,
    mismatched_sha256: str | None = None,
    execution: Execution | None = None,
    how: TuningRun | None = None,
    limit: int | None = None,
) -> str:
    """Fine-tune a model on a task of GLUE, once for each seed, and write `eval/TASK.json`.

    An interrupted call is resumed by the same call, with the same bytes as result; checkpoints lie in `eval/TASK/`.

    Args:
        model_folder: a BERT or RoBERTa of relm's own, or one of transformers' with the same options.
        tokenizer: its `tokenizer.json`.
        training_file: the task's training file.
        file: its development file; of MNLI the matched one.
        output: the JSON file.
        task: the name of the evaluation in it.
        options: the task of GLUE, and how to train.
        mismatched_file: MNLI's second development file, whose figures end in `_mismatched`; None: there is none.
        training_sha256: the expected sha256 of the training file; None: any.
        file_sha256: the expected sha256 of the development file; None: any.
        mismatched_sha256: the expected sha256 of the second one; None: any.
        execution: the device, for training and predictions, and the precision of matrix products in both.
        how: how training is executed; None: with as many sequences in a forward pass as the device computes at once.
        limit: the count of examples, from the first on, of each file; None: all.

    Raises:
        Preempted: TERM or INT was received; a checkpoint was saved.
        RelmError: a file has another sha256 or a fault; the model is no BERT or RoBERTa, or lacks weights; tokenizer and model
            do not belong together; the loss is not finite.
    """
    execution = execution or Execution()
    require_pipeline(execution, options)
    given = {"": (file, file_sha256)}
    if mismatched_file is not None:
        if options.task != "mnli":
            raise RelmError(
                f"{mismatched_file}: only mnli has a second development file, found task {options.task}; leave it out"
            )
        given[MISMATCHED] = mismatched_file, mismatched_sha256
    contents = {suffix: read_content(path, sha256) for suffix, (path, sha256) in given.items()}
    trained_sha256 = read_content(training_file, training_sha256)[1]
    encoder, loaded = read_encoder(model_folder, tokenizer), load_tokenizer(tokenizer)
    texts = {
        suffix: parse_glue(content, options.task, str(given[suffix][0])).head(limit)
        for suffix, (content, _) in contents.items()
    }
    hashes = {f"{suffix.removeprefix('_') or 'file'}_sha256": sha256 for suffix, (_, sha256) in contents.items()}
    facts: dict[str, str | int] = {
        "training_sha256": trained_sha256,
        "tokenizer_sha256": loaded.sha256,
        "precision": execution.tuning_precision,
        **({} if limit is None else {"limit": limit}),
    }
    tuned = GlueTuning(options, loaded, texts, limit)
    figures = tune_and_score(tuned, encoder, training_file, output, execution, how, {**facts, **hashes}).figures
    protocol = {
        "in_words": _describe(options),
        "file": file.name,
        **({} if mismatched_file is None else {"mismatched_file": mismatched_file.name}),
        **hashes,
        "training_file": training_file.name,
        **facts,
        **options.model_dump(),
    }
    counts = {f"examples{suffix}": len(found.first) for suffix, found in texts.items()}
    found = {**summarise(figures), **counts}
    Result(task=task, protocol=protocol, figures=found, model_sha256=encoder.sha256).write(output)
    shown = [f"{name.replace('_', ' ')} {found[name]:.4f} +- {found[f'{name}_std']:.4f}" for name in figures[0]]
    labelled = f"labelled {sum(counts.values()):,} examples: {', '.join(shown)}"
    return f"fine-tuned {format_times(options)} on {options.task} and {labelled}"


def _describe(options: Glue) -> str:
    """Return the protocol in two sentences."""
    title = TASKS[options.task].title
    return (
        f"Fine-tuned on {title}, a task of GLUE, once for each seed; the figures are those of the development set, as means "
        "over the seeds with the standard deviation of one run."
    )


@dataclass(frozen=True)
class GlueTuning:
    """A task of GLUE as a task that is fine-tuned on."""

    name: ClassVar[str] = "glue"
    title: ClassVar[str] = "fine-tuning on a task of GLUE"
    revision: ClassVar[int] = 1
    head: ClassVar[str] = "head of classes"

    options: Glue
    tokenizer: LoadedTokenizer
    texts: Mapping[str, LabelledTexts]
    """Suffix of the figures -> the examples of a development file."""
    limit: int | None = None
    """Number of examples of the training file, from the first on; None: all."""

    @property
    def objective(self) -> str:
        """Return the objective for the count of the task's classes."""
        return OBJECTIVES[TASKS[self.options.task].labels]

    def write_table(self, file: Path, tokenizer: Path, table: Path, phase: Phase) -> None:
        """Write the examples of the training file."""
        write_labelled_table(file, tokenizer, table, phase, self.options.task, self.limit)

    def count_examples(self, sidecar: Mapping[str, Any]) -> int:
        """Return the count of examples."""
        return int(sidecar["examples"])

    def start(self, folder: Path, generator: torch.Generator) -> EncoderModel:
        """Return the encoder with a new head for the task's classes or score."""
        return BertForClassification.on_encoder(folder, generator, labels=TASKS[self.options.task].labels)

    def score(self, model: Path, execution: Execution) -> tuple[dict[str, list[str] | list[float]], dict[str, float]]:
        """Return the name of the class, or the score, of each development example, and the figures."""
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
