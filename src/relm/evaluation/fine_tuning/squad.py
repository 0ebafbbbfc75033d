"""SQuAD 1.1 by fine-tuning: training on windows of the training file, then answers to the development file.

The protocol is that of the original BERT's `run_squad.py`, except that the learning rate falls from its peak at the end of the
warm-up, as in transformers, and windows are read in a seeded permutation.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.answer_choice import SearchLimits, rank_answers
from relm.evaluation.fine_tuning.seeds import compute_logits
from relm.evaluation.fine_tuning.squad_scoring import score_answers
from relm.examples.fine_tuning.answer_windows import Windowed, WindowLengths, window_questions
from relm.examples.fine_tuning.squad import first_questions, parse_squad
from relm.examples.spans import write_span_table
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.models.bert_model import EncoderModel
from relm.models.bert_span import BertForSpans
from relm.recipes.evaluation.fine_tuning import Squad
from relm.recipes.phase import Phase

log = logging.getLogger(__name__)

# Share of skipped training questions above which a warning appears.
MOST_SKIPPED = 0.01


def window_lengths(options: Squad) -> WindowLengths:
    """Return the lengths of windows."""
    return WindowLengths(options.sequence_length, options.doc_stride, options.max_query_length)


@dataclass(frozen=True)
class SquadTask:
    """SQuAD 1.1 as a task to fine-tune on; fulfils `TunedTask`, which documents the methods."""

    name: ClassVar[str] = "squad"
    title: ClassVar[str] = "fine-tuning on SQuAD 1.1"
    revision: ClassVar[int] = 1
    head: ClassVar[str] = "head of answers"
    objective: ClassVar[str] = "spans"

    options: Squad
    tokenizer: LoadedTokenizer
    questions: Windowed
    """The development file's questions."""
    limit: int | None = None
    """Number of questions to read of the training file; None: all."""
    protocol: ClassVar[str] = (
        "Fine-tuned on SQuAD 1.1, once for each seed; exact match and F1 of the answers to the development file are those of "
        "evaluate-v1.1.py, from 0 to 1, as means over the seeds with the standard deviation of one run."
    )

    @classmethod
    def read(
        cls, options: Squad, tokenizer: LoadedTokenizer, files: Mapping[str, tuple[Path, bytes]], limit: int | None
    ) -> "SquadTask":
        """Return the task for the content of the development file."""
        file, content = files[""]
        paragraphs = first_questions(parse_squad(content, str(file)), limit)
        questions = window_questions(paragraphs, tokenizer, window_lengths(options), labelled=False)
        windowed = set(questions.windows.questions.tolist())
        if empty := [asked.question.id for number, asked in enumerate(questions.questions) if number not in windowed]:
            raise RelmError(f"{file}: question {empty[0]!r:.80}: its context has no token; give a file of SQuAD 1.1")
        return cls(options, tokenizer, questions, limit)

    def write_table(self, file: Path, tokenizer: Path, table: Path, phase: Phase) -> None:
        write_span_table(file, tokenizer, table, phase, window_lengths(self.options), self.limit)

    def count_examples(self, sidecar: Mapping[str, Any]) -> int:
        """Return the number of questions, which in the original is an epoch's number of sequences."""
        return int(sidecar["questions"])

    def start(self, folder: Path, generator: torch.Generator) -> EncoderModel:
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

    def count(self, examples: Mapping[str, Any]) -> dict[str, int]:
        counts = {"questions": len(self.questions.questions), "windows": len(self.questions.windows.lengths)}
        return counts | {
            "training_questions": int(examples["questions"]),
            "skipped_training_questions": int(examples["skipped"]),
        }

    def describe(self, found: Mapping[str, float | int], training_file: Path) -> str:
        """Describe the figures, and warn if many training questions were left out."""
        skipped = found["skipped_training_questions"]
        all_questions = skipped + found["training_questions"]
        left_out = f"skipped {skipped:,} of {all_questions:,} training questions, whose answer is not at its offset"
        if skipped > MOST_SKIPPED * all_questions:
            log.warning("%s: %s; check the file's text and offsets", training_file, left_out)
        return (
            f"and answered {found['questions']:,} questions: exact match {found['exact_match']:.4f} +- "
            f"{found['exact_match_std']:.4f}, F1 {found['f1']:.4f} +- {found['f1_std']:.4f}{f'; {left_out}' if skipped else ''}"
        )
