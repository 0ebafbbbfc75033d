"""SQuAD 1.1 by fine-tuning: training on windows of the training file, then answers to the development file.

The protocol is that of the original BERT's `run_squad.py`, except that the learning rate falls from its peak at the end of the
warm-up, as in transformers, and that windows are read in a seeded permutation.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from relm.errors import RelmError
from relm.evaluation.answer_choice import SearchLimits, rank_answers
from relm.evaluation.evaluated_text import read_content
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning import TuningRun, compute_logits, format_times, read_encoder, summarise, tune_and_score
from relm.evaluation.result import Result
from relm.evaluation.squad_scoring import score_answers
from relm.evaluation.tuning_pipeline import require_pipeline
from relm.examples.answer_windows import Windowed, WindowLengths, window_questions
from relm.examples.spans import write_span_table
from relm.examples.squad import first_questions, parse_squad
from relm.examples.tokenizers import LoadedTokenizer, load_tokenizer
from relm.models.bert_model import EncoderModel
from relm.models.bert_span import BertForSpans
from relm.recipes.fine_tuning import Squad
from relm.recipes.recipe import Phase
from relm.training.interruption import ends_when_asked

log = logging.getLogger(__name__)

# Share of training questions above which leaving them out is a warning.
MOST_SKIPPED = 0.01

DESCRIPTION = (
    "Fine-tuned on SQuAD 1.1, once for each seed; exact match and F1 of the answers to the development file are those of "
    "evaluate-v1.1.py, from 0 to 1, as means over the seeds with the standard deviation of one run."
)


@ends_when_asked()
def evaluate_squad(
    model_folder: Path,
    tokenizer: Path,
    training_file: Path,
    file: Path,
    output: Path,
    task: str,
    options: Squad,
    training_sha256: str | None = None,
    file_sha256: str | None = None,
    execution: Execution | None = None,
    how: TuningRun | None = None,
    limit: int | None = None,
) -> str:
    """Fine-tune a model on SQuAD 1.1, once for each seed, and write `eval/TASK.json`.

    An interrupted call is resumed by the same call, with the same bytes as result; checkpoints lie in `eval/TASK/`.

    Args:
        model_folder: a BERT or RoBERTa of relm's own, or one of transformers' with the same options.
        tokenizer: its `tokenizer.json`.
        training_file: train-v1.1.json.
        file: dev-v1.1.json.
        output: the JSON file.
        task: the name of the evaluation in it.
        options: how to train, and how to choose answers.
        training_sha256: the expected sha256 of the training file; None: any.
        file_sha256: the expected sha256 of the development file; None: any.
        execution: the device, for training and answers, and the precision of matrix products in both.
        how: how training is executed; None: with as many sequences in a forward pass as the device computes at once.
        limit: the count of questions, from the first on, of either file; None: all.

    Raises:
        Preempted: TERM or INT was received; a checkpoint was saved.
        RelmError: a file has another sha256 or a fault; the model is no BERT or RoBERTa, or lacks weights; tokenizer and model
            do not belong together; the loss is not finite.
    """
    execution = execution or Execution()
    require_pipeline(execution, options)
    content, found_sha256 = read_content(file, file_sha256)
    trained_sha256 = read_content(training_file, training_sha256)[1]
    encoder, loaded = read_encoder(model_folder, tokenizer), load_tokenizer(tokenizer)
    paragraphs = first_questions(parse_squad(content, str(file)), limit)
    questions = window_questions(paragraphs, loaded, window_lengths(options), labelled=False)
    _require_windows(questions, file)
    facts: dict[str, str | int] = {
        "training_sha256": trained_sha256,
        "tokenizer_sha256": loaded.sha256,
        "precision": execution.tuning_precision,
        **({} if limit is None else {"limit": limit}),
    }
    # Figures that are there already are those of this development file.
    identity = {**facts, "file_sha256": found_sha256}
    tuned = SquadTask(options, loaded, questions, limit)
    figures, examples = tune_and_score(tuned, encoder, training_file, output, execution, how, identity)
    protocol = {
        "in_words": DESCRIPTION,
        "file": file.name,
        "file_sha256": found_sha256,
        "training_file": training_file.name,
        **facts,
        **options.model_dump(),
    }
    counts = {"questions": len(questions.questions), "windows": len(questions.windows.lengths)}
    counts |= {"training_questions": int(examples["questions"]), "skipped_training_questions": int(examples["skipped"])}
    found = {**summarise(figures), **counts}
    Result(task=task, protocol=protocol, figures=found, model_sha256=encoder.sha256).write(output)
    return _describe(found, options, training_file)


def _describe(found: Mapping[str, float | int], options: Squad, training_file: Path) -> str:
    """Return a sentence on the figures, and warn if many training questions were left out."""
    skipped = found["skipped_training_questions"]
    all_questions = skipped + found["training_questions"]
    left_out = f"{skipped:,} of {all_questions:,} training questions left out, whose answer is not at its offset"
    if skipped > MOST_SKIPPED * all_questions:
        log.warning("%s: %s; check the file's text and offsets", training_file, left_out)
    return (
        f"fine-tuned {format_times(options)} and answered {found['questions']:,} questions: exact match "
        f"{found['exact_match']:.4f} +- {found['exact_match_std']:.4f}, F1 {found['f1']:.4f} +- {found['f1_std']:.4f}"
        f"{f'; {left_out}' if skipped else ''}"
    )


def _require_windows(questions: Windowed, file: Path) -> None:
    """Raise RelmError if the tokenizer leaves no token of a question's paragraph."""
    windowed = set(questions.windows.questions.tolist())
    if empty := [asked.question.id for number, asked in enumerate(questions.questions) if number not in windowed]:
        raise RelmError(f"{file}: question {empty[0]!r:.80}: its context has no token; give a file of SQuAD 1.1")


def window_lengths(options: Squad) -> WindowLengths:
    """Return the lengths of windows."""
    return WindowLengths(options.sequence_length, options.doc_stride, options.max_query_length)


@dataclass(frozen=True)
class SquadTask:
    """SQuAD 1.1 as a task that is fine-tuned on."""

    name: ClassVar[str] = "squad"
    title: ClassVar[str] = "fine-tuning on SQuAD 1.1"
    revision: ClassVar[int] = 1
    head: ClassVar[str] = "head of answers"
    objective: ClassVar[str] = "spans"

    options: Squad
    tokenizer: LoadedTokenizer
    questions: Windowed
    """Those of the development file."""
    limit: int | None = None
    """Number of questions of the training file, from the first on; None: all."""

    def write_table(self, file: Path, tokenizer: Path, table: Path, phase: Phase) -> None:
        """Write the windows of the training file."""
        write_span_table(file, tokenizer, table, phase, window_lengths(self.options), self.limit)

    def count_examples(self, sidecar: Mapping[str, Any]) -> int:
        """Return the count of questions: in the original an epoch is as many sequences as there are questions."""
        return int(sidecar["questions"])

    def start(self, folder: Path, generator: torch.Generator) -> EncoderModel:
        """Return the encoder with a new head for answers."""
        return BertForSpans.on_encoder(folder, generator)

    def score(self, model: Path, execution: Execution) -> tuple[dict[str, str], Mapping[str, float]]:
        """Return each question's answer by its id, and the figures."""
        asked, windows = self.questions.questions, self.questions.windows
        logits = compute_logits(BertForSpans.from_folder(model), windows.inputs(), execution, model)
        starts, ends = logits.transpose(1, 0, 2)
        limits = SearchLimits(self.options.n_best, self.options.longest_answer)
        ranked = rank_answers(self.tokenizer, asked, windows, (starts, ends), limits)
        questions = [each.question for each in asked]
        answers = {question.id: found[0].text for question, found in zip(questions, ranked, strict=True)}
        return answers, score_answers(questions, answers)
