"""The loss on windows that begin at random tokens, as nanoGPT estimates it during training (`estimate_loss`)."""

import math
from pathlib import Path

import numpy as np

from relm.artifact import sha256_of
from relm.evaluation.baselines import BLOCK
from relm.evaluation.causal_model import CausalModel, require_context
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.models import load_causal
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import Floats, ScoredSequences, score
from relm.examples.causal import CausalExamples
from relm.examples.contract import numbers_at
from relm.examples.manifest import read_manifest
from relm.progress import ProgressBar
from relm.recipes.evaluation.evaluations import RandomWindows
from relm.recipes.objectives import Causal

# Name of the figure -> its split. nanoGPT prints both.
SPLITS = {"loss": "held_out", "train_loss": "train"}
DESCRIPTION = (
    "The mean loss of {windows} windows of {context} tokens that begin at random tokens, as nanoGPT estimates it in training: "
    "some tokens are scored several times, others never."
)
PROTOCOL = {
    "begin": "none",
    "windows": "of each split, drawn with replacement from all that begin at any token",
    "scored": "every token of a window but its first, given those before it in the window",
}


@evaluation
def evaluate_random_windows(
    model_folder: Path,
    manifest: Path,
    context: int,
    batch_size: int,
    options: RandomWindows | None = None,
    execution: Execution = ON_THE_HOST,
) -> Scored:
    """Estimate the loss on both splits as the mean loss of batches of `batch_size` windows of `context` labels.

    A window begins at any token that leaves enough tokens for it, with equal probability and independently of the others.
    """
    options = options or RandomWindows()
    batches, seed = options.batches, options.seed
    facts = read_manifest(manifest)
    model = load_causal(model_folder, facts.tokenizer.vocabulary_size, execution)
    require_context(model, context)
    windows = Causal(
        stride=1, sampling="with_replacement", end_of_text="never" if facts.tokenizer.end_of_text_id is None else "after"
    )
    figures: dict[str, float | int] = {}
    for name, split in SPLITS.items():
        examples = CausalExamples(manifest, split, context, windows)
        losses = score_windows(model, examples, seed, batches * batch_size, execution.batch_tokens)
        figures |= estimate(name, losses.reshape(batches, batch_size).mean(axis=1))
    figures |= {"windows": batches * batch_size}
    protocol = {
        "in_words": DESCRIPTION.format(windows=f"{batches * batch_size:,}", context=f"{context:,}"),
        "tokenizer_sha256": facts.tokenizer.sha256,
        "manifest_sha256": sha256_of(manifest),
        "context": context,
        "batch_size": batch_size,
        "batches": batches,
        "seed": seed,
        **PROTOCOL,
        "precision": f"{execution.precision}, means in float64, natural logarithms",
    }
    sentence = (
        f"estimated from {batches} batches of {batch_size} windows: loss {figures['loss']:.4f} held out, "
        f"{figures['train_loss']:.4f} in training"
    )
    return Scored(figures, protocol, model.sha256, sentence, (len(SPLITS) * batches * batch_size * context, "tokens"))


def score_windows(model: CausalModel, examples: CausalExamples, seed: int, windows: int, batch_tokens: int) -> Floats:
    """Return the mean loss in nats of each of the first windows that the seed draws, (windows,)."""
    losses = np.empty(windows)
    length = examples.sequence_length
    at_once = max(1, BLOCK // length)
    with ProgressBar(total=windows * length, unit=" tokens", unit_scale=True, disable=None) as bar:
        for first in range(0, windows, at_once):
            positions = np.arange(first, min(first + at_once, windows))
            numbers, _epochs = numbers_at(examples, seed, positions)
            tokens = examples.windows(numbers).reshape(-1)
            starts = np.arange(len(positions)) * (length + 1)
            sequences = ScoredSequences(tokens, starts, starts + length + 1, np.full(len(positions), length))
            losses[positions] = score(model, sequences, batch_tokens, bar.update).nats.reshape(-1, length).mean(axis=1)
    return losses


def estimate(name: str, means: Floats) -> dict[str, float | int]:
    """Return the mean of the batches' means under its name, and its standard error if there are several batches."""
    found: dict[str, float | int] = {name: float(means.mean())}
    if len(means) > 1:
        found[f"{name}_standard_error"] = float(means.std(ddof=1)) / math.sqrt(len(means))
    return found
