"""Make the goldens of modded-nanogpt's optimization track: `python tests/oracles/make_modded_nanogpt.py FOLDER`, a checkout.

The programs run whole, in a process of one, with the lines of `REPLACEMENTS` replaced in memory; nothing in FOLDER is changed.
The AdamW entry's program is the part of its log before the line of equals signs.
"""

import os
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import modded_nanogpt as twin
import numpy as np
import torch
import torch.distributed as dist
from golden_files import STEPS, Golden, draw_weights, hash_weights, read_commit_of, read_versions, write_golden
from our_runs import Oracle
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch_recording import Recording, norm_of

RULE = "=" * 100
# Lines of the programs -> what runs in their place, and why. The original's other lines are unchanged.
REPLACEMENTS = {
    # Sizes.
    "head_dim=128": f"head_dim={twin.HIDDEN_SIZE // twin.HEADS}",
    "seq_len=1024": f"seq_len={twin.SEQUENCE_LENGTH}",
    "val_tokens = 20 * 524288": f"val_tokens = {twin.BATCH * twin.SEQUENCE_LENGTH}",
    "batch_size = 8 * 64 * 1024": f"batch_size = {twin.BATCH * twin.MICRO_BATCHES * twin.SEQUENCE_LENGTH}",
    "mbs = 64": f"mbs = {twin.BATCH}",
    "vocab_size=50304, num_layers=12, model_dim=768": (
        f"vocab_size={twin.VOCABULARY_SIZE}, num_layers={twin.LAYERS}, model_dim={twin.HIDDEN_SIZE}"
    ),
    "train_steps = 3250": f"train_steps = {STEPS}",
    "train_steps = 5625": f"train_steps = {STEPS}",
    "block_adamw_warmup_steps = 250": f"block_adamw_warmup_steps = {twin.WARMUP}",
    # A CPU, and float32.
    'torch.device("cuda", int(os.environ["LOCAL_RANK"]))': 'torch.device("cpu")',
    "torch.cuda.set_device(device)": "pass",
    "torch.cuda.get_device_name(device)": "device",
    'device="cuda"': 'device="cpu"',
    'dist.init_process_group(backend="nccl", device_id=device)': (
        'dist.init_process_group(backend="gloo", init_method=f"file://{os.getcwd()}/group", rank=0, world_size=1)'
    ),
    "pin_memory=True": "pin_memory=False",
    ").cuda()": ")",
    "model.compile(dynamic=False)": "pass",
    "@torch.compile\n": "",
    "nn.Embedding(vocab_size, model_dim).bfloat16()": "nn.Embedding(vocab_size, model_dim)",
    "X = G.bfloat16()": "X = G.clone()",
}


def read_program(original: Path, path: Path) -> tuple[str, list[str]]:
    """Return a program with its replaced lines, and a sentence on each."""
    code = (original / path).read_text().split(RULE)[0] if path.suffix == ".txt" else (original / path).read_text()
    if path.suffix == ".txt":
        code = code.rstrip("\n") + "\n"
    sentences = []
    for line, other in REPLACEMENTS.items():
        if line in code:
            code = code.replace(line, other)
            sentences.append(f"`{line.strip()}` is {f'`{other}`' if other else 'left out'}.")
    return code, sentences


def write_shards(folder: Path) -> None:
    """Write the shards' tokens as the program reads them, and the first as the validation's."""
    (folder / "data/fineweb10B").mkdir(parents=True)
    for number, tokens in enumerate([twin.draw_shards()[0], *twin.draw_shards()]):
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, len(tokens)
        name = f"fineweb_train_{number:06}.bin" if number else "fineweb_val_000000.bin"
        (folder / "data/fineweb10B" / name).write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())


class Recorder:
    """The figures that a program's model and optimizers see."""

    def __init__(self) -> None:
        self.recording, self.models, self.initial = Recording(), [], ""
        self.optimizers: list[torch.optim.Optimizer] = []

    def take_model(self, module: torch.nn.Module) -> None:
        """Set the drawn weights when training begins, and record each forward pass in it."""
        drawn = draw_weights({name: tuple(weight.shape) for name, weight in module.named_parameters()})
        self.initial = hash_weights(drawn)
        module.load_state_dict({name: torch.from_numpy(weight) for name, weight in drawn.items()}, strict=False)
        tokens = twin.BATCH * twin.SEQUENCE_LENGTH
        module.register_forward_hook(
            lambda model, given, loss: self.recording.note_batch(given, loss / tokens) if model.training else None
        )
        self.models.append(module)

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the learning rate of the matrices at the last optimizer of a step, whose others were called before."""
        self.optimizers.append(optimizer)
        if len(self.optimizers) % 2:
            gradients = [weight.grad for weight in self.models[0].parameters()]
            tokens = twin.BATCH * twin.MICRO_BATCHES * twin.SEQUENCE_LENGTH
            self.recording.gradient_norms.append(norm_of(gradients) / tokens)
        else:
            self.recording.learning_rates.append(float(optimizer.param_groups[0]["lr"]))


def run_original(original: Path, oracle: Oracle, path: Path, folder: Path) -> Golden:
    """Run a program, and return what it did."""
    write_shards(folder)
    code, replaced = read_program(original, path)
    recorder = Recorder()
    os.chdir(folder)
    (folder / "program.py").write_text(code)
    barrier, calls = dist.barrier, []

    def first_barrier_of_training() -> None:
        # The program's second barrier is the one after its weights are drawn and before the first validation.
        calls.append(sys._getframe(1).f_globals.get("model"))
        if calls[-1] is not None and not recorder.models:
            recorder.take_model(calls[-1])
        barrier()

    hook = register_optimizer_step_pre_hook(lambda optimizer, arguments, options: recorder.note_step(optimizer))
    with patch.object(dist, "barrier", first_barrier_of_training), patch.object(sys, "argv", ["program.py"]):
        exec(compile(code, "program.py", "exec"), {"__name__": "__main__"})
    hook.remove()
    model = recorder.models[0]
    recording = recorder.recording
    return Golden(
        original=oracle.original,
        commit=read_commit_of(original),
        command="python tests/oracles/make_modded_nanogpt.py FOLDER",
        patched=[*replaced, "GPT's weights are set to the drawn ones before the first validation."],
        versions=read_versions("torch", "numpy"),
        initial_sha256=recorder.initial,
        batches_sha256=recording.hashes(twin.MICRO_BATCHES),
        losses=recording.losses(twin.MICRO_BATCHES),
        gradient_norms=recording.gradient_norms,
        learning_rates=recording.learning_rates,
        final={name: weight.detach().numpy() for name, weight in model.named_parameters()},
    )


PROGRAMS = ((twin.MODDED_NANOGPT_MUON, twin.MUON_PROGRAM), (twin.MODDED_NANOGPT_ADAMW, twin.ADAMW_PROGRAM))

if __name__ == "__main__":
    torch.set_num_threads(1)
    checkout = Path(sys.argv[1]).resolve()
    for made, program in PROGRAMS:
        with tempfile.TemporaryDirectory() as temporary:
            write_golden(made.name, run_original(checkout, made, program, Path(temporary)))
