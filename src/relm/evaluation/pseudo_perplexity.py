"""Pseudo-perplexity: each token is masked alone and predicted from all others of its sequence.

Salazar et al. 2020, "Masked Language Model Scoring" (arXiv 1910.14659), section 2.1 and equation 5. No distribution over
sequences has these probabilities, so the figure compares masked models with each other, and with no causal one.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.masked_models import MaskedModel, load_masked
from relm.evaluation.masked_scoring import chunks_of, mask_token, masked_manifest, require_positions, score_masked
from relm.evaluation.result import perplexity
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import Flags, Integers
from relm.examples.contract import Batch
from relm.examples.masking import candidates
from relm.examples.sharded_tables import ExampleTables
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.progress import ProgressBar
from relm.recipes.evaluation.evaluations import PseudoPerplexity

# Sequences whose tokens are enumerated together; their copies are made a chunk at a time.
ROWS = 64
PROTOCOL = {
    "in_words": "Each token of the first held-out sequences is hidden alone and predicted from all others: the "
    "pseudo-perplexity of Salazar et al. 2020, which compares masked models with each other only.",
    "split": "held_out",
    "scored": "every token but [CLS], [SEP] and padding, replaced by the mask token; the mean is over all tokens",
}


class Originals(NamedTuple):
    """Sequences without masked tokens."""

    input_ids: Integers
    """(rows, L) ids."""
    lengths: Integers
    """(rows,) tokens that are not padding."""
    second_start: Integers
    """(rows,) position at which the second segment begins; the length if there is none."""


@evaluation
def evaluate_pseudo_perplexity(
    model_folder: Path,
    manifest: Path,
    options: PseudoPerplexity | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
) -> Scored:
    """Score each token of held-out masked examples by itself, after undoing their masks."""
    options = options or PseudoPerplexity()
    facts = masked_manifest(manifest)
    mask = mask_token(facts.tokenizer.special.get("mask"), manifest)
    tables = ExampleTables(manifest, "held_out")
    model = load_masked(model_folder, facts.tokenizer.vocabulary_size, execution)
    count = min(len(tables), options.examples, options.examples if limit is None else limit)
    require_positions(model, int(tables.rows("length", np.arange(count)).max()))
    nats, tokens = _sum_losses(model, tables, SpecialIds(**facts.tokenizer.special), mask, count, execution.batch_tokens)
    if not tokens:
        raise RelmError(f"{manifest}: {count:,} held-out examples have only special tokens; build the examples again")
    per_token = nats / tokens
    figures: dict[str, float | int] = {"pseudo_nats_per_token": per_token, **perplexity("pseudo_perplexity", per_token)}
    figures |= {"tokens": tokens, "sequences": count}
    protocol = {
        **PROTOCOL,
        "tokenizer_sha256": facts.tokenizer.sha256,
        "manifest_sha256": sha256_of(manifest),
        "examples": options.examples,
        **({} if limit is None else {"limit": limit}),
        "precision": f"{execution.precision}, probabilities in float32, sums in float64, natural logarithms",
    }
    sentence = (
        f"predicted each of {tokens:,} tokens of {count:,} sequences by itself: {figures['pseudo_nats_per_token']:.4f} "
        "pseudo-nats per token"
    )
    return Scored(figures, protocol, model.sha256, sentence, (tokens, "passes"))


def _sum_losses(
    model: MaskedModel, tables: ExampleTables, special: SpecialIds, mask: int, count: int, batch_tokens: int
) -> tuple[float, int]:
    """Return the sum of -ln P over the scored tokens of the first `count` examples, and the count of these tokens."""
    sums: list[float] = []
    tokens = 0
    with ProgressBar(total=count, unit=" sequences", disable=None) as bar:
        for first in range(0, count, ROWS):
            numbers = np.arange(first, min(first + ROWS, count))
            found = originals(tables, numbers)
            for batch in mask_one_by_one(found, candidates(found.input_ids, found.lengths, special), mask):
                nats = score_masked(model, batch, batch_tokens).nats
                sums.append(math.fsum(nats[:, 0]))
                tokens += len(nats)
            bar.update(len(numbers))
    return math.fsum(sums), tokens


def originals(tables: ExampleTables, numbers: Integers) -> Originals:
    """Return the examples with these numbers as they were before masking."""
    ids, lengths, second = (tables.rows(name, numbers).astype(np.int64) for name in ("input_ids", "length", "second_start"))
    if "masked_positions" in tables.columns:
        names = ("masked_positions", "masked_labels", "masked_count")
        positions, labels, counts = (tables.rows(name, numbers).astype(np.int64) for name in names)
        row, slot = np.nonzero(np.arange(labels.shape[1]) < counts[:, None])
        ids[row, positions[row, slot]] = labels[row, slot]
    return Originals(ids, lengths, second)


def mask_one_by_one(found: Originals, scored: Flags, mask: int) -> Iterator[Batch]:
    """Yield a copy of each sequence for each of its scored tokens, with that one masked, in batches of bounded size.

    Args:
        scored: (rows, L) True for tokens to score.
        mask: the id of the mask token.
    """
    rows, positions = np.nonzero(scored)
    columns: npt.NDArray[np.int64] = np.arange(found.input_ids.shape[1])
    for copies in chunks_of(len(rows), len(columns)):
        row, position = rows[copies], positions[copies]
        input_ids = found.input_ids[row]
        labels = input_ids[np.arange(len(row)), position]
        input_ids[np.arange(len(row)), position] = mask
        attention_mask = columns < found.lengths[row][:, None]
        yield {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": (attention_mask & (columns >= found.second_start[row][:, None])).astype(np.int64),
            "masked_positions": position[:, None],
            "masked_labels": labels[:, None],
        }
