"""Make the golden of nanoGPT: `python tests/oracles/make_nanogpt.py FOLDER`, a checkout of karpathy/nanoGPT.

train.py runs as a script, with options on its command line; nothing in FOLDER is changed.
"""

import os
import pickle
import runpy
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from golden_files import STEPS, Golden, draw_tokens, draw_weights, hash_weights, read_commit_of, read_versions, write_golden
from nanogpt import BATCH_SIZE, DECAY_END, NANOGPT, SEQUENCE_LENGTH, TOKENS, VOCABULARY_SIZE, WARMUP
from our_runs import twin_of
from torch_recording import Recording, record_optimizers

from relm.devices.contract import open_device
from relm.training.phase_run import open_reader

OPTIONS = {
    "eval_interval": 1000,
    "eval_iters": 0,
    "wandb_log": False,
    "gradient_accumulation_steps": 1,
    "batch_size": BATCH_SIZE,
    "block_size": SEQUENCE_LENGTH,
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "dropout": 0.0,
    "learning_rate": 1e-3,
    "max_iters": STEPS - 1,
    "lr_decay_iters": DECAY_END,
    "min_lr": 1e-4,
    "beta2": 0.99,
    "warmup_iters": WARMUP,
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
}


def draw_starts(folder: Path) -> list[torch.Tensor]:
    """Return the starts of each step's windows, and of the batch that train.py fetches in vain after the last step."""
    recipe = twin_of(NANOGPT)
    reader = open_reader(recipe, "main", NANOGPT.write_examples(folder), "train", open_device(recipe.run))
    return [torch.from_numpy(reader.numbers(step)[0]) for step in range(1, STEPS + 2)]


def write_dataset(folder: Path) -> None:
    """Write train.bin and meta.pkl as nanoGPT's data/shakespeare_char/prepare.py does."""
    draw_tokens(TOKENS, VOCABULARY_SIZE).astype(np.uint16).tofile(folder / "train.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY_SIZE}))


def run_original(original: Path, folder: Path) -> Golden:
    """Run train.py, and return what it did."""
    sys.path.insert(0, str(original))
    os.chdir(original)
    import model as theirs

    write_dataset(folder)
    recording, models, options = Recording(), [], {**OPTIONS, "dataset": str(folder), "out_dir": str(folder / "out")}
    starts = iter(draw_starts(folder))

    class Recorded(theirs.GPT):  # type: ignore[misc, name-defined]
        def __init__(self, config):
            super().__init__(config)
            drawn = draw_weights({name: tuple(weight.shape) for name, weight in self.named_parameters()})
            self.load_state_dict({name: torch.from_numpy(weight) for name, weight in drawn.items()}, strict=False)
            models.append((self, hash_weights(drawn)))

        def forward(self, idx, targets=None):
            logits, loss = super().forward(idx, targets)
            recording.note_batch([idx, targets], loss)
            return logits, loss

    arguments = ["train.py", "config/train_shakespeare_char.py", *(f"--{key}={value}" for key, value in options.items())]
    with (
        record_optimizers(recording),
        patch.object(theirs, "GPT", Recorded),
        patch.object(torch, "randint", lambda limit, shape: next(starts)),
        patch.object(sys, "argv", arguments),
    ):
        runpy.run_path("train.py")
    model, initial = models[0]
    return Golden(
        original="karpathy/nanoGPT, train.py",
        commit=read_commit_of(original),
        command="python tests/oracles/make_nanogpt.py FOLDER",
        patched=[
            "GPT's weights are set to the drawn ones after its constructor.",
            "torch.randint, which get_batch calls for the starts of its windows, returns those that the recipe's seed draws.",
        ],
        versions=read_versions("torch", "numpy"),
        initial_sha256=initial,
        batches_sha256=recording.hashes(1),
        losses=recording.losses(1),
        gradient_norms=recording.gradient_norms,
        learning_rates=recording.learning_rates,
        final={name: weight.detach().numpy() for name, weight in model.named_parameters()},
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        write_golden(NANOGPT.name, run_original(Path(sys.argv[1]).resolve(), Path(temporary)))
