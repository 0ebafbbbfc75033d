"""Multiple choice by likelihood: HellaSwag (Zellers et al. 2019), ARC and PIQA.

A model chooses the likeliest of several texts. Publications differ in the prompt, the scored tokens, and the divisor of a
choice's log-likelihood. All published ways of a format are scored at once, and each figure names its way:

- `lm_eval_accuracy`, `..._per_character`, `..._per_byte`: acc, acc_norm and acc_bytes of EleutherAI's harness;
- `llm_c_accuracy`, `llm_c_accuracy_per_token`: acc and acc_norm of llm.c's script for HellaSwag.

Each figure F comes with `F_tied`, the share of questions with several likeliest choices, and `F_tie_split` (`ties`).
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.evaluation.beginning import added_tokens, choose_beginning
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.choices.choice_formats import Question, read_questions
from relm.evaluation.choices.choice_tokens import ChoiceEncoder, EncodedChoices
from relm.evaluation.choices.ties import DESCRIPTION as NEAR_TIES
from relm.evaluation.choices.ties import ROUNDING, SPLIT, choose
from relm.evaluation.evaluated_text import load_matching_tokenizer
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.models import load_causal
from relm.evaluation.result import describe_ties
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import Flags, Floats, Integers, ScoredSequences, score
from relm.recipes.evaluation.protocol_options import MultipleChoice

log = logging.getLogger(__name__)

DESCRIPTION = (
    "The likeliest of the choices is taken, the first of equal ones, without solved examples before the question; a name such "
    "as lm_eval_accuracy_per_character names the publication and the divisor of a choice's log-likelihood. A context longer "
    "than the model's positions loses its beginning."
)


@dataclass(frozen=True)
class ChoiceScores:
    """Scores of all choices of all questions, in their order, by one way of scoring."""

    log_likelihoods: Floats
    """(choices,) sum of ln P of the scored tokens."""
    tokens: Integers
    """(choices,) number of scored tokens."""
    truncated: Flags
    """(choices,) True if the context lost its beginning because the model has too few positions."""


@evaluation
def evaluate_multiple_choice(
    model_folder: Path,
    tokenizer: Path,
    file: Path,
    options: MultipleChoice,
    file_sha256: str | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
) -> Scored:
    """Score the choices of questions, which are in a file of JSON lines or in a parquet file."""
    questions, sha256 = read_questions(file, file_sha256, options.format, limit)
    loaded = load_matching_tokenizer(model_folder, tokenizer)
    encoder = ChoiceEncoder(loaded, added_tokens(loaded))
    encoded = {way: encoder.encode(way, questions) for way in questions[0].prompts}
    model = load_causal(model_folder, loaded.vocabulary_size, execution)
    unit = ROUNDING[execution.precision]
    found = figures(questions, score_choices(model, questions, encoded, execution.batch_tokens), unit)
    protocol = {
        "in_words": DESCRIPTION,
        "tokenizer_sha256": loaded.sha256,
        "file": file.name,
        "file_sha256": sha256,
        **options.model_dump(),
        **choose_beginning("tokenizer", loaded, model_folder).record(),
        "lm_eval": "context, a space and choice; harness 0.4.13, task version 1.0, no solved examples",
        "ties": "questions with several likeliest choices in some way of scoring, of which the first counts as chosen",
        "near_ties": NEAR_TIES.format(precision=execution.precision, unit=unit),
        "tie_split": SPLIT,
        "precision": execution.precision,
        **({} if limit is None else {"limit": limit}),
    }
    if warning := describe_ties(found):
        log.warning("%s: %s", file, warning)
    return Scored(found, protocol, model.sha256, _describe(found), (found["tokens"], "tokens"))


def _describe(found: Mapping[str, float | int]) -> str:
    """Describe the accuracies, with ties and with ties split, in a sentence."""
    names = [name.removesuffix("_tie_split") for name in found if name.endswith("_tie_split")]
    split = {name: f" ({found[f'{name}_tie_split']:.4f} with ties split)" if found[f"{name}_tied"] else "" for name in names}
    return (
        f"chose among {found['choices']:,} texts of {found['examples']:,} questions: "
        f"{', '.join(f'{name} {found[name]:.4f}{split[name]}' for name in names)}; {found['ties']:,} ties, "
        f"{found['near_ties']:,} near-ties"
    )


def score_choices(
    model: CausalModel, questions: Sequence[Question], encoded: Mapping[str, EncodedChoices], batch_tokens: int
) -> dict[str, ChoiceScores]:
    """Return the scores of each way; all go through the model together, in batches by length."""
    rows = [row for each in encoded.values() for row in each.rows]
    scored = np.concatenate([each.scored for each in encoded.values()])
    sizes = np.fromiter(map(len, rows), dtype=np.int64)
    longest = int(sizes.max()) if model.positions is None else model.positions + 1
    if len(impossible := np.flatnonzero(scored >= longest)):
        line = np.repeat(np.arange(len(questions)), _choice_counts(questions))[impossible[0] % (len(rows) // len(encoded))]
        raise RelmError(
            f"{questions[line].where}: a choice has {scored[impossible[0]]:,} tokens, but {model.folder} has {model.positions} "
            "positions; use a model with more"
        )
    ends = np.cumsum(sizes)
    sequences = ScoredSequences(np.concatenate(rows), ends - np.minimum(sizes, longest), ends, scored)
    groups = _choice_counts(questions) * len(encoded)
    sums = -np.add.reduceat(score(model, sequences, batch_tokens).nats, sequences.offsets[:-1])
    sums = sums[_first_alike(rows, scored, groups)]  # rounding depends on where in a batch a choice is
    parts = [np.split(each, len(encoded)) for each in (sums, scored, sizes > longest)]
    return {way: ChoiceScores(*found) for way, found in zip(encoded, zip(*parts, strict=True), strict=True)}


def _first_alike(rows: Sequence[npt.NDArray[np.integer]], scored: Integers, sizes: Sequence[int]) -> list[int]:
    """Return the first sequence of each one's group with the same tokens, (sequences,), so that equal choices tie exactly."""
    groups = np.repeat(np.arange(len(sizes)), sizes).tolist()
    firsts: dict[tuple[int, int, bytes], int] = {}
    keys = zip(groups, scored.tolist(), map(np.ndarray.tobytes, rows), strict=True)
    return [firsts.setdefault(key, number) for number, key in enumerate(keys)]


def _choice_counts(questions: Sequence[Question]) -> list[int]:
    return [len(next(iter(question.prompts.values())).choices) for question in questions]


def divisors(way: str, questions: Sequence[Question], scores: ChoiceScores) -> dict[str, Floats]:
    """Return suffix of a figure -> its divisors of log-likelihoods, (choices,)."""
    found = {"": np.ones(len(scores.tokens))}
    if way == "llm_c":
        found["_per_token"] = scores.tokens.astype(np.float64)
    else:
        choices = [choice for question in questions for choice in question.prompts[way].choices]
        found["_per_character"] = np.array([len(choice) for choice in choices], dtype=np.float64)
        found["_per_byte"] = np.array([len(choice.encode()) for choice in choices], dtype=np.float64)
    return found


def figures(
    questions: Sequence[Question], scores: Mapping[str, ChoiceScores], unit: float = ROUNDING["float32"]
) -> dict[str, float | int]:
    """Return the accuracies with their standard errors, and counts.

    `unit` is the rounding of a token's log-likelihood, in nats.
    """
    answers, counts = np.array([question.answer for question in questions]), _choice_counts(questions)
    tied, near = np.zeros((2, len(questions)), dtype=np.bool_)
    found: dict[str, float | int] = {}
    for way, each in scores.items():
        for ending, lengths in divisors(way, questions, each).items():
            chosen = choose(each.log_likelihoods, lengths, each.tokens, counts, answers, unit)
            tied, near = tied | chosen.equal, near | chosen.tied
            name = f"{way}_accuracy{ending}"
            found |= accuracy(name, chosen.indices == answers)
            found |= {f"{name}_tie_split": float(chosen.shares.mean()), f"{name}_tied": float(chosen.tied.mean())}
    return {
        **found,
        "examples": len(questions),
        "choices": sum(counts),
        "ties": int(tied.sum()),
        "near_ties": int((near & ~tied).sum()),
        "tokens": int(sum(each.tokens.sum() for each in scores.values())),
        "truncated": int(np.any([each.truncated for each in scores.values()], axis=0).sum()),
    }


def accuracy(name: str, right: Flags) -> dict[str, float]:
    """Return the share of right answers, and its standard error if there are two questions or more.

    >>> accuracy("a", np.array([True, False]))
    {'a': 0.5, 'a_stderr': 0.5}
    """
    found = {name: float(right.mean())}
    return found | ({f"{name}_stderr": math.sqrt(right.var(ddof=1) / len(right))} if len(right) > 1 else {})
