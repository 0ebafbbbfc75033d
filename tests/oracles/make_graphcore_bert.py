"""Make the golden of Graphcore's BERT for TensorFlow 1 by its formulas, in float64, with its own learning-rate schedule.

    python tests/oracles/make_graphcore_bert.py FOLDER

FOLDER is a clone of github.com/graphcore/examples at v3.0.0. Its program runs only on IPUs; the formulas are those of
modeling.py (`tensorflow_formula`), of LAMB in ipu_optimizer.py without bias correction, and of the sum of both losses.
"""

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from golden_files import Golden, draw_weights, hash_batch, hash_weights, read_commit_of, read_versions, write_golden
from graphcore_bert import BATCH_SIZE, GRAPHCORE_BERT, HEADS, MICRO_BATCHES, STEPS, variables, write_examples
from our_runs import twin_of
from torch import Tensor

from relm.devices.contract import open_device
from relm.training.phase_run import open_reader
from tensorflow_formula import TensorflowBert

# configs/pretrain_tiny_128_lamb.json
LEARNING_RATE, WARMUP, EPSILON, DECAY = 1e-3, 10, 1e-6, 0.01
BETA_1, BETA_2 = 0.9, 0.999
UNDECAYED, UNADAPTED = ("bias", "beta"), ("bias", "beta", "gamma")
PATCHED = [
    "The program runs on IPUs alone: its formulas stand in for it, in float64, without dropout.",
    "The batches are relm's, in the plain layout; the learning rates are those of its own lr_schedules/polynomial_decay.py.",
]


class Lamb:
    """LAMB without bias correction, a variable at a time."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights
        self.means = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def step(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        """Update all variables."""
        for name, weight in self.weights.items():
            gradient = gradients[name]
            self.means[name] = BETA_1 * self.means[name] + (1 - BETA_1) * gradient
            self.squares[name] = BETA_2 * self.squares[name] + (1 - BETA_2) * gradient**2
            update = self.means[name] / (self.squares[name].sqrt() + EPSILON)
            if not any(re.search(word, name) for word in UNDECAYED):
                update = update + DECAY * weight.detach()
            ratio = 1.0
            if not any(re.search(word, name) for word in UNADAPTED):
                norms = weight.detach().norm(), update.norm()
                ratio = float(norms[0] / norms[1]) if min(norms) > 0 else 1.0
            with torch.no_grad():
                weight -= learning_rate * ratio * update


def columns_of(batch: Mapping[str, np.ndarray], rows: slice) -> dict[str, Tensor]:
    """Return some rows of a batch under the names of `TensorflowBert.plain_terms`."""
    part = {name: torch.from_numpy(np.asarray(array[rows])) for name, array in batch.items()}
    return {
        "input_ids": part["input_ids"],
        "attended": part["attention_mask"],
        "segment_ids": part["token_type_ids"],
        "masked_positions": part["masked_positions"],
        "masked_labels": part["masked_labels"].clamp(min=0),
        "masked_weights": (part["masked_labels"] >= 0).double(),
        "pair_labels": part["next_sentence_labels"],
    }


def loss_of(model: TensorflowBert, batch: Mapping[str, np.ndarray]) -> Tensor:
    """Return the mean over the micro-batches of the loss of masked tokens plus that of pairs."""
    size, losses = BATCH_SIZE // MICRO_BATCHES, []
    for first in range(0, BATCH_SIZE, size):
        columns = columns_of(batch, slice(first, first + size))
        masked, pairs = model.plain_terms(columns)
        losses.append(masked / (columns["masked_weights"].sum() + 1e-5) + pairs / size)
    return torch.stack(losses).mean()


def read_batches() -> list[dict[str, np.ndarray]]:
    """Return the batches of all steps."""
    recipe = twin_of(GRAPHCORE_BERT)
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_examples(Path(folder))
        reader = open_reader(recipe, "phase_1", manifest, "train", open_device(recipe.run))
        return [{name: np.array(array) for name, array in reader.batch(step).items()} for step in range(1, STEPS + 1)]


def main() -> None:
    """Take the steps, and write the golden."""
    original = Path(sys.argv[1])
    sys.path.insert(0, str(original / "nlp/bert/tensorflow1/lr_schedules"))
    from polynomial_decay import LearningRate

    schedule = LearningRate(LEARNING_RATE, WARMUP, STEPS, 1)
    initial = draw_weights(dict(variables().values()))
    model = TensorflowBert(initial, HEADS)
    optimizer, batches = Lamb(model.variables), read_batches()
    losses, norms, rates = [], [], [schedule.get_at_step(step) for step in range(STEPS)]
    for batch, rate in zip(batches, rates, strict=True):
        loss = loss_of(model, batch)
        gradients = dict(zip(model.variables, torch.autograd.grad(loss, list(model.variables.values())), strict=True))
        losses.append(loss.item())
        norms.append(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item())
        optimizer.step(gradients, rate)
    golden = Golden(
        original="graphcore/examples v3.0.0, nlp/bert/tensorflow1, by its formulas",
        commit=read_commit_of(original),
        command="python tests/oracles/make_graphcore_bert.py FOLDER",
        patched=PATCHED,
        versions=read_versions("torch", "numpy"),
        initial_sha256=hash_weights(initial),
        batches_sha256=[hash_batch(batch[name] for name in GRAPHCORE_BERT.arrays) for batch in batches],
        losses=losses,
        gradient_norms=norms,
        learning_rates=rates,
        final={name: weight.detach().numpy() for name, weight in model.variables.items()},
    )
    write_golden("graphcore_bert", golden)


if __name__ == "__main__":
    main()
