"""The loss on windows that begin at random tokens: an estimate, as nanoGPT makes it while it trains (`estimate_loss`)."""

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from relm.artifact import write_json
from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.evaluation.models import load_for_evaluation, require_context
from relm.evaluation.perplexity import fitting_batch_size
from relm.examples.causal import CausalExamples
from relm.examples.contract import numbers_at
from relm.examples.manifest import read_manifest
from relm.objectives import Causal
from relm.recipe import Run

Floats = npt.NDArray[np.float64]
# Name of the figure -> the split it is of. nanoGPT prints both.
SPLITS = {"loss": "held_out", "train_loss": "train"}
PROTOCOL = {
    "windows": "of each split, drawn with replacement from all that begin at any token",
    "scored": "every token of a window but its first, given those before it in the window",
    "precision": "float32, means in float64, natural logarithms",
}


def evaluate_random_windows(
    model_folder: Path,
    manifest: Path,
    output: Path,
    context: int,
    batch_size: int,
    batches: int = 20,
    seed: int = 0,
    threads: int | None = None,
) -> str:
    """Estimate the loss on both splits and write `eval/random_windows.json`.

    A window of `context` labels begins at any token that leaves room for it, each as likely, and independently of the others:
    some tokens are scored several times, others never. The estimate is the mean of the batches' mean losses, and its standard
    error is that of a mean of so many independent ones.

    Args:
        model_folder: Hugging Face folder of a GPT-2.
        manifest: of the examples; its tokenizer is the model's.
        output: the JSON file.
        context: tokens that the model sees at once.
        batch_size: windows in a batch.
        batches: how many are drawn from each split.
        seed: of the draws.
        threads: of the CPU; None: all cores this process may use.

    Raises:
        RelmError: model, manifest and context do not fit together, or the loss is not finite.
    """
    started = perf_counter()
    facts = read_manifest(manifest)
    model, model_sha256 = load_for_evaluation(model_folder, facts.tokenizer.vocabulary_size)
    require_context(model_folder, model, context)
    logits = open_device(Run(threads=threads)).place(model).logits
    at_once = fitting_batch_size(batch_size, context * model.config.vocabulary_size)
    options = Causal(
        stride=1, sampling="with_replacement", end_of_text="never" if facts.tokenizer.end_of_text_id is None else "after"
    )
    drawn = {"context": context, "batch_size": batch_size, "batches": batches, "seed": seed}
    figures: dict[str, float] = {}
    for name, split in SPLITS.items():
        examples = CausalExamples(manifest, split, context, options)
        losses = window_losses(logits, examples, seed, batches * batch_size, at_once)
        if not np.isfinite(losses).all():
            raise RelmError(f"{model_folder}: its loss is not finite: training diverged; lower the learning rate, train again")
        figures |= estimate(name, losses.reshape(batches, batch_size).mean(axis=1))
    figures |= {"windows": batches * batch_size}
    result = {
        "task": "random_windows",
        "protocol": {"tokenizer_sha256": facts.tokenizer.sha256, **drawn, **PROTOCOL},
        "figures": figures,
        "model_sha256": model_sha256,
    }
    write_json(output, result)
    seconds = perf_counter() - started
    return (
        f"estimated from {batches} batches of {batch_size} windows: loss {figures['loss']:.4f} held out, "
        f"{figures['train_loss']:.4f} in training; {len(SPLITS) * batches * batch_size * context / seconds:,.0f} tokens/s"
    )


def window_losses(
    model: Callable[[Tensor], Tensor], examples: CausalExamples, seed: int, windows: int, batch_size: int
) -> Floats:
    """(windows,) mean losses in nats of the first so many windows that the seed draws.

    Args:
        model: input ids (batch, sequence) int64 -> logits (batch, sequence, vocabulary).
        batch_size: windows at once; it changes losses by rounding at most.
    """
    losses = np.empty(windows)
    with torch.inference_mode(), tqdm(total=windows, unit=" windows", disable=None) as bar:
        for first in range(0, windows, batch_size):
            positions = np.arange(first, min(first + batch_size, windows))
            batch = examples.batch(*numbers_at(examples, seed, positions))
            scores = model(torch.from_numpy(batch["input_ids"])).float()
            nats = F.cross_entropy(scores.transpose(1, 2), torch.from_numpy(batch["labels"]), reduction="none")
            losses[positions] = nats.double().mean(dim=1).numpy()
            bar.update(len(positions))
    return losses


def estimate(name: str, means: Floats) -> dict[str, float]:
    """The mean of the batches' means under its name, and its standard error, which one batch alone does not tell."""
    found = {name: float(means.mean())}
    if len(means) > 1:
        found[f"{name}_standard_error"] = float(means.std(ddof=1)) / math.sqrt(len(means))
    return found
