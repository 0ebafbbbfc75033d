"""The loss of masked tokens on the held-out examples, by two protocols, and the accuracy of next sentence prediction.

With fixed masks every model predicts the same tokens, which a seed and the example's number decide. The second protocol is
that of run_mlm.py of transformers 4.2.2, which gave the Hugging Face blog's perplexity: masks are redrawn at each evaluation,
and the figure is the average of the means of batches.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.masked_models import MaskedModel, load_masked
from relm.evaluation.masked_scoring import mask_token, masked_manifest, require_positions, score_masked, split_rows
from relm.evaluation.result import LARGEST_EXPONENT, perplexity
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import Floats, Integers
from relm.examples.builders import open_examples
from relm.examples.contract import IGNORED, Batch
from relm.examples.manifest import Manifest
from relm.examples.masked import MaskedExamples
from relm.progress import ProgressBar
from relm.recipes.evaluation.evaluations import MaskedLm
from relm.recipes.objectives import DRAWN_WITH_DYNAMIC_MASKS, Objective

# Masks are drawn as training draws those of an epoch: fixed ones as in epoch 0, redrawn ones as in epochs 1, 2, 3 ...
FIXED = 0


@dataclass(frozen=True)
class ExampleLosses:
    """Losses of each example, under one drawing of the masks."""

    nats: Floats
    """(examples,) sum of -ln P over the masked tokens."""
    counts: Integers
    """(examples,) number of masked tokens."""
    correct: Integers
    """(examples,) number of those that are the likeliest token at their position."""
    pair_nats: Floats | None
    """(examples,) -ln P of the pair's true label; None: the examples are not pairs, or the model has no head for pairs."""
    pair_correct: Integers
    """(examples,) 1 if that label is the likelier; a tie counts as a prediction that the second segment follows."""
    masks_sha256: str
    """sha256 of (example, position, id in its place, masked id) of each masked token in order, little-endian int64."""


@evaluation
def evaluate_masked_lm(
    model_folder: Path,
    manifest: Path,
    phase: Objective,
    options: MaskedLm | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
) -> Scored:
    """Score masked tokens of the held-out examples; `phase` decides which are masked, unless the examples store masks."""
    options = options or MaskedLm()
    facts = masked_manifest(manifest)
    examples = _open_examples(manifest, facts, phase, options.seed)
    model = load_masked(model_folder, facts.tokenizer.vocabulary_size, execution)
    count = len(examples) if limit is None else min(limit, len(examples))
    require_positions(model, int(examples.tables.rows("length", np.arange(count)).max()))
    draws = 1 if examples.is_static else 1 + options.redraws
    with ProgressBar(total=draws * count, unit=" sequences", disable=None) as bar:
        found = [score_examples(model, examples, draw, count, execution.batch_tokens, bar) for draw in range(FIXED, draws)]
    if not found[FIXED].counts.any():
        raise RelmError(f"{manifest}: no token of {count:,} held-out examples was masked; use more examples, or another seed")
    figures = fixed_figures(found[FIXED]) | redrawn_figures(found[FIXED + 1 :], options)
    protocol = {
        "in_words": _describe_protocol(examples, model, options),
        "tokenizer_sha256": facts.tokenizer.sha256,
        "manifest_sha256": sha256_of(manifest),
        **_protocol(examples, phase, options),
        "masks_sha256": found[FIXED].masks_sha256,
        **({} if limit is None else {"limit": limit}),
        "precision": f"{execution.precision}, probabilities in float32, sums in float64, natural logarithms",
    }
    return Scored(figures, protocol, model.sha256, _describe_figures(figures), (draws * count, "sequences"))


def _open_examples(manifest: Path, facts: Manifest, phase: Objective, seed: int) -> MaskedExamples:
    if phase.objective != "masked":
        raise RelmError(f"objective: {phase.objective} masks no tokens; give the settings of a phase with objective masked")
    examples = open_examples(manifest, "held_out", phase, seed)
    assert isinstance(examples, MaskedExamples), "the objective says so"
    if not examples.is_static:
        mask_token(facts.tokenizer.special.get("mask"), manifest)
    return examples


def score_examples(
    model: MaskedModel, examples: MaskedExamples, draw: int, count: int, batch_tokens: int, bar: "ProgressBar | None" = None
) -> ExampleLosses:
    """Return losses of the first `count` examples with the masks of one drawing; stored masks are always the same."""
    has_pairs = examples.has_pairs and model.has_next_sentence
    nats, pair_nats = np.zeros(count), np.zeros(count) if has_pairs else None
    counts, correct, pair_correct = np.zeros((3, count), np.int64)
    digest = hashlib.sha256()
    width = examples.tables.columns["input_ids"].width
    assert isinstance(width, int), "sequences have one length"
    for numbers in split_rows(count, width):
        batch = examples.batch(numbers, np.full_like(numbers, draw))
        digest.update(list_masks(numbers, batch).astype("<i8").tobytes())
        scores = score_masked(model, batch, batch_tokens, None if bar is None else bar.update)
        nats[numbers] = scores.nats.sum(axis=1)
        counts[numbers] = (batch["masked_labels"] != IGNORED).sum(axis=1)
        correct[numbers] = scores.likeliest.sum(axis=1)
        if pair_nats is not None and scores.next_sentence is not None:
            labels = batch["next_sentence_labels"]
            pair_nats[numbers] = np.take_along_axis(scores.next_sentence, labels[:, None], axis=1)[:, 0]
            pair_correct[numbers] = scores.next_sentence.argmin(axis=1) == labels
    return ExampleLosses(nats, counts, correct, pair_nats, pair_correct, digest.hexdigest())


def list_masks(numbers: Integers, batch: Batch) -> Integers:
    """Return (masked tokens, 4): number of the example, position, the id in its place, and the masked id."""
    row, slot = np.nonzero(batch["masked_labels"] != IGNORED)
    position = batch["masked_positions"][row, slot]
    replacements, labels = batch["input_ids"][row, position], batch["masked_labels"][row, slot]
    return np.stack([numbers[row], position, replacements, labels], axis=1)


def fixed_figures(found: ExampleLosses) -> dict[str, float | int]:
    """Return means over all masked tokens, and over all pairs."""
    tokens = int(found.counts.sum())
    nats = math.fsum(found.nats) / tokens
    figures: dict[str, float | int] = {
        "masked_nats_per_token": nats,
        **perplexity("masked_perplexity", nats),
        "masked_accuracy": int(found.correct.sum()) / tokens,
        "masked_tokens": tokens,
        "sequences": len(found.nats),
    }
    if found.pair_nats is not None:
        figures["next_sentence_nats"] = math.fsum(found.pair_nats) / len(found.pair_nats)
        figures["next_sentence_accuracy"] = float(found.pair_correct.mean())
    return figures


def redrawn_figures(found: list[ExampleLosses], options: MaskedLm) -> dict[str, float]:
    """Return mean and spread over the redraws, each with the mean of its batches' means; nothing without redraws."""
    if not found:
        return {}
    nats = [average_batches(drawn.nats, drawn.counts, options.batch_size, options.processes) for drawn in found]
    if not np.isfinite(nats).all():
        raise RelmError("masked_lm.redraws: no token was masked in any batch that counts; use more examples, or another seed")
    figures = {"redrawn_nats": math.fsum(nats) / len(nats)}
    if max(nats) < LARGEST_EXPONENT:
        perplexities = np.exp(nats)
        figures["redrawn_perplexity"] = float(perplexities.mean())
        if len(nats) > 1:
            figures["redrawn_perplexity_standard_deviation"] = float(perplexities.std(ddof=1))
    return figures


def average_batches(nats: Floats, counts: Integers, batch_size: int, processes: int = 1) -> float:
    """Return the evaluation loss of transformers 4.2.2's Trainer: batches' means, each counted once for every sequence.

    Each of `processes` takes an equal contiguous piece of the sequences, the last one filled up with the first sequences, and
    cuts it into batches, of which the last may be smaller. A list, process after process, repeats each batch's mean over its
    masked tokens `batch_size` times, and the result is the mean of its first entries, one for each sequence. So with one
    process the smaller last batch counts by its sequences; with several, the list is cut within the last piece. A batch
    without a masked token is left out here; in the Trainer the result would be NaN. `nats` and `counts` are the sums over each
    sequence's masked tokens, and their numbers, both (sequences,).

    >>> average_batches(np.array([1.0, 2.0, 9.0]), np.array([1, 2, 3]), batch_size=2)
    1.6666666666666667
    """
    piece = -(-len(nats) // processes)
    members = (np.arange(processes * piece) % len(nats)).reshape(processes, piece)
    starts = np.arange(0, piece, batch_size)
    sums, masked = (np.add.reduceat(values[members], starts, axis=1) for values in (nats, counts))
    means = np.divide(sums, masked, out=np.full(sums.shape, np.nan), where=masked > 0)
    counted = np.repeat(means.ravel(), batch_size)[: len(nats)]
    counted = counted[~np.isnan(counted)]
    return float(counted.mean()) if len(counted) else math.nan


def _describe_protocol(examples: MaskedExamples, model: MaskedModel, options: MaskedLm) -> str:
    which = "as is stored with them" if examples.is_static else "the same ones for every model"
    words = f"Tokens of the held-out sequences are hidden, {which}, and predicted; the mean is over all of them."
    if not examples.is_static:
        cores = f" on {options.processes} cores" if options.processes > 1 else ""
        words += (
            f" Redrawn: with masks drawn again {options.redraws} times, each batch of {options.batch_size} sequences counting "
            f"the same however many of its tokens are hidden, as run_mlm.py of transformers 4.2.2 evaluates{cores}."
        )
    if examples.has_pairs and model.has_next_sentence:
        words += " Next sentence: whether the second segment follows the first, from the same sequences with hidden tokens."
    return words


def _protocol(examples: MaskedExamples, phase: Objective, options: MaskedLm) -> dict[str, Any]:
    """Return every option that decides a figure, and the definition of what was counted."""
    protocol: dict[str, Any] = {
        "split": "held_out",
        "sequence_length": phase.sequence_length,
        "masks": "static" if examples.is_static else "dynamic",
        **({} if phase.as_published is None else {"as_published": phase.as_published.builder}),
        **phase.masked.model_dump(mode="json", include=set(DRAWN_WITH_DYNAMIC_MASKS)),
        "scored": "every hidden token: also one that a random token replaces, or that stands there still",
        "masks_are": "example, position, what stands there and what was hidden, of each hidden token in order, as int64",
    }
    if examples.is_static:
        return {**protocol, "redrawn": "not measured: the masks are stored with the examples, so there is nothing to redraw"}
    return {
        **protocol,
        **options.model_dump(mode="json"),
        "redrawn": "exp of the mean of the batches' means, each counted once for every sequence of its batch; of several "
        "processes, smaller batches count as whole ones, and what then lies beyond the number of sequences is left out",
        "random_replacements": "any token that is not special; run_mlm.py draws special ones too",
    }


def _describe_figures(figures: dict[str, float | int]) -> str:
    redrawn = f", {figures['redrawn_perplexity']:.4f} redrawn" if "redrawn_perplexity" in figures else ""
    pairs = f"; next sentence {figures['next_sentence_accuracy']:.2%}" if "next_sentence_accuracy" in figures else ""
    perplexity = figures.get("masked_perplexity", math.inf)
    return (
        f"predicted {figures['masked_tokens']:,} masked tokens of {figures['sequences']:,} sequences: "
        f"{figures['masked_nats_per_token']:.4f} nats per token, perplexity {perplexity:.4f}{redrawn}, accuracy "
        f"{figures['masked_accuracy']:.2%}{pairs}"
    )
