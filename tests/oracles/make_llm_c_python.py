"""Make the golden of llm.c's train_gpt2.py: `python tests/oracles/make_llm_c_python.py FOLDER`, a checkout of karpathy/llm.c.

train_gpt2.py runs as a script, with options on its command line; nothing in FOLDER is changed.
"""

import dataclasses
import os
import runpy
import sys
import tempfile
import types
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llm_c
import numpy as np
import torch
from golden_files import STEPS, Golden, draw_weights, hash_weights, read_commit_of, read_versions, write_golden
from our_runs import twin_of
from torch_recording import Recording, record_optimizers

from relm.devices.contract import open_device
from relm.training.phase_run import open_reader

OPTIONS = (
    "--model d12 --device cpu --write_tensors 0 --overfit_single_batch 0 --val_loss_every 0 --sample_every 0 --dtype float32 "
    f"--batch_size {llm_c.BATCH} --sequence_length {llm_c.SEQUENCE_LENGTH} "
    f"--total_batch_size {llm_c.BATCH * llm_c.MICRO_BATCHES * llm_c.SEQUENCE_LENGTH} --num_iterations {STEPS} "
    f"--weight_decay 0.1 --learning_rate 0.0006 --warmup_iters {llm_c.WARMUP} --learning_rate_decay_frac 0.0"
).split()
SIZES = {
    "block_size": llm_c.SEQUENCE_LENGTH,
    "vocab_size": llm_c.VOCABULARY_SIZE,
    "n_layer": llm_c.LAYERS,
    "n_head": llm_c.HEADS,
    "n_embd": llm_c.HIDDEN_SIZE,
}
PATCHED = (
    "GPTConfig has twin size, whatever model is named.",
    "GPT's weights are set to the drawn ones when it is moved to the device.",
    "tiktoken, whose tokenizer nothing uses here, is an empty module.",
    "Each shard on the disk holds one micro-batch, B T + 1 tokens, in the order of llmc/dataloader.h, which shuffles.",
)


def write_shards(folder: Path) -> None:
    """Write the micro-batches of all steps, each as a shard."""
    recipe, examples = twin_of(llm_c.LLM_C_PYTHON), folder / "examples"
    examples.mkdir()
    reader = open_reader(recipe, "main", llm_c.write_examples(examples), "train", open_device(recipe.run))
    for step in range(1, STEPS + 2):
        for number, batch in enumerate(reader.micro_batches(step)):
            tokens = np.append(batch["input_ids"].ravel(), batch["labels"].ravel()[-1])
            header = np.zeros(256, dtype="<i4")
            header[:3] = 20240520, 1, len(tokens)
            (folder / f"shard_{step:04}_{number}.bin").write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


def run_original(original: Path, folder: Path) -> Golden:
    """Run train_gpt2.py, and return what it did."""
    write_shards(folder)
    recording, models = Recording(), []
    dataclass, move = dataclasses.dataclass, torch.nn.Module.to

    def small_dataclass(cls: Any) -> Any:
        made = dataclass(cls)
        return (lambda **sizes: made(**SIZES)) if cls.__name__ == "GPTConfig" else made

    def move_drawn(module: torch.nn.Module, device: str) -> torch.nn.Module:
        drawn = draw_weights({name: tuple(weight.shape) for name, weight in module.named_parameters()})
        module.load_state_dict({name: torch.from_numpy(weight) for name, weight in drawn.items()}, strict=False)
        module.register_forward_hook(lambda model, given, result: recording.note_batch(given, result[1]))
        models.append((module, hash_weights(drawn)))
        return move(module, device)

    os.chdir(folder)
    arguments = ["train_gpt2.py", *OPTIONS, "--input_bin", str(folder / "shard_*.bin")]
    with ExitStack() as stack:
        for context in (
            record_optimizers(recording),
            patch.object(dataclasses, "dataclass", small_dataclass),
            patch.object(torch.nn.Module, "to", move_drawn),
            patch.dict(sys.modules, {"tiktoken": types.SimpleNamespace(get_encoding=lambda name: None)}),
            patch.object(sys, "argv", arguments),
        ):
            stack.enter_context(context)
        runpy.run_path(str(original / "train_gpt2.py"), run_name="__main__")
    model, initial = models[0]
    return Golden(
        original="karpathy/llm.c, train_gpt2.py",
        commit=read_commit_of(original),
        command="python tests/oracles/make_llm_c_python.py FOLDER",
        patched=PATCHED,
        versions=read_versions("torch", "numpy"),
        initial_sha256=initial,
        batches_sha256=recording.hashes(llm_c.MICRO_BATCHES),
        losses=recording.losses(llm_c.MICRO_BATCHES),
        gradient_norms=recording.gradient_norms,
        learning_rates=recording.learning_rates,
        final={name: weight.detach().numpy() for name, weight in model.named_parameters()},
    )


if __name__ == "__main__":
    # Modules that are imported later would take the patched dataclass.
    import torch._inductor.config
    import torch.distributed.optim

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        write_golden(llm_c.LLM_C_PYTHON.name, run_original(Path(sys.argv[1]).resolve(), Path(temporary)))
