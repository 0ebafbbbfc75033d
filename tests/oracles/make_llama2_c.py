"""Make the golden of llama2.c: `python tests/oracles/make_llama2_c.py FOLDER`, a checkout of karpathy/llama2.c.

train.py runs as a script, with the options of doc/stories260K.md at twin size on its command line; nothing in FOLDER is
changed. It needs the package requests and those of relm.
"""

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from golden_files import STEPS, Golden, draw_weights, hash_weights, read_commit_of, read_versions, write_golden
from llama2_c import (
    HEADS,
    HIDDEN_SIZE,
    KEY_VALUE_HEADS,
    LAYERS,
    LLAMA2_C,
    MICRO_BATCH_SIZE,
    MICRO_BATCHES,
    SEQUENCE_LENGTH,
    VOCABULARY_SIZE,
    WARMUP,
)
from our_runs import twin_of
from torch_recording import Recording, record_optimizers

from relm.devices.contract import open_device
from relm.training.phase_run import open_reader

# The recipe's options are those of doc/stories260K.md; the sizes and the numbers of steps are the twin's.
OPTIONS = {
    "vocab_source": "custom",
    "vocab_size": VOCABULARY_SIZE,
    "max_seq_len": SEQUENCE_LENGTH,
    "dim": HIDDEN_SIZE,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "n_kv_heads": KEY_VALUE_HEADS,
    "multiple_of": 4,
    "dropout": 0.0,
    "batch_size": MICRO_BATCH_SIZE,
    "gradient_accumulation_steps": MICRO_BATCHES,
    "learning_rate": 1e-3,
    "weight_decay": 0.01,
    "beta2": 0.99,
    "warmup_iters": WARMUP,
    "max_iters": STEPS,
    "eval_interval": 1000,
    "eval_iters": 0,
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
}


def read_micro_batches(folder: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the micro-batches of all steps, and those of the update with learning rate 0 that train.py makes after them."""
    recipe = twin_of(LLAMA2_C)
    reader = open_reader(recipe, "main", LLAMA2_C.write_examples(folder), "train", open_device(recipe.run))
    batches = [batch for step in range(1, STEPS + 3) for batch in reader.micro_batches(step)]
    return [(torch.from_numpy(batch["input_ids"]), torch.from_numpy(batch["labels"])) for batch in batches]


def run_original(original: Path, folder: Path) -> Golden:
    """Run train.py, and return what it did."""
    sys.path.insert(0, str(original))
    os.chdir(original)
    import model as theirs
    import tinystories

    recording, models, micro_batches = Recording(), [], read_micro_batches(folder)

    class Recorded(theirs.Transformer):  # type: ignore[misc, name-defined]
        def __init__(self, arguments: Any) -> None:
            super().__init__(arguments)
            drawn = draw_weights({name: tuple(weight.shape) for name, weight in self.named_parameters()})
            self.load_state_dict({name: torch.from_numpy(weight) for name, weight in drawn.items()}, strict=False)
            models.append((self, hash_weights(drawn)))

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
            logits = super().forward(tokens, targets)
            recording.note_batch([tokens, targets], self.last_loss)
            return logits

    def iter_batches(**options: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return iter(micro_batches)

    arguments = ["train.py", f"--out_dir={folder / 'out'}", *(f"--{key}={value}" for key, value in OPTIONS.items())]
    with (
        record_optimizers(recording),
        patch.object(theirs, "Transformer", Recorded),
        patch.object(tinystories.Task, "iter_batches", staticmethod(iter_batches)),
        patch.object(sys, "argv", arguments),
    ):
        runpy.run_path("train.py")
    model, initial = models[0]
    return Golden(
        original="karpathy/llama2.c, train.py",
        commit=read_commit_of(original),
        command="python tests/oracles/make_llama2_c.py FOLDER",
        patched=[
            "Transformer's weights are set to the drawn ones after its constructor.",
            "Task.iter_batches yields the windows that the recipe's seed draws.",
        ],
        versions=read_versions("torch", "numpy"),
        initial_sha256=initial,
        batches_sha256=recording.hashes(MICRO_BATCHES)[:STEPS],
        losses=recording.losses(MICRO_BATCHES)[:STEPS],
        gradient_norms=recording.gradient_norms[:STEPS],
        learning_rates=recording.learning_rates[:STEPS],
        final={name: weight.detach().numpy() for name, weight in model.named_parameters()},
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        write_golden(LLAMA2_C.name, run_original(Path(sys.argv[1]).resolve(), Path(temporary)))
