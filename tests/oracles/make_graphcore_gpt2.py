"""Make the golden of Graphcore's GPT-2: `python tests/oracles/make_graphcore_gpt2.py FOLDER`, its nlp/gpt2/pytorch at v3.4.1.

train_gpt2.py runs as a script with torch 2.0.1 and transformers 4.26.1 on Python 3.8, as it did on IPUs. PopTorch, PopDist and
Horovod are replaced by modules that run the same model by torch on the CPU, in float32; `PATCHED` says how.
"""

from __future__ import annotations

import os
import runpy
import struct
import sys
import tempfile
import types
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import graphcore_gpt2_sizes as sizes
import torch
from golden_files import Golden, draw_weights, hash_weights, read_commit_of, read_versions, write_golden
from torch_recording import Recording, record_optimizers

if TYPE_CHECKING:
    from collections.abc import Sequence

PATCHED = (
    "GPT2Config.from_json_file reads config.json, and changes its sizes, and its dropout to 0.",
    "GPT2LMHeadModel's weights are set to the drawn ones after its constructor.",
    "half() leaves the model in float32.",
    "GELU is its tanh form, which PopTorch compiles for both forms.",
    "poptorch.optim.AdamW is torch's AdamW with the groups and options of get_optimizer, and with correction of the bias, "
    "which PopTorch compiles whatever bias_correction says; it has no loss scale.",
    "poptorch.trainingModel takes deviceIterations updates a call by torch, each with the mean of the gradients of its "
    "micro-batches. It reads the learning rate when it is made and at setOptimizer, as PopTorch does.",
    "poptorch.DataLoader is torch's with the combined batch; BeginBlock, identity_loss, custom_op, serializedMatMul and others "
    "return what they annotate.",
)
OPTIONS = (
    f"--model gpt2 --max-len {sizes.SEQUENCE_LENGTH} --optimizer AdamW --learning-rate 0.00015 --lr-schedule cosine "
    f"--lr-warmup {sizes.WARMUP_SHARE} --layers-per-ipu 0 1 1 0 --matmul-proportion 0.15 0.15 0.15 0.15 --ipus-per-replica 4 "
    f"--replication-factor 1 --epochs {sizes.EPOCHS} --gradient-accumulation {sizes.GRADIENT_ACCUMULATION} "
    f"--device-iterations {sizes.UPDATES_OF_A_CALL} --batch-size 1 --enable-sequence-serialized True --serialized-seq-len 16 "
    "--remap-logit True --embedding-serialization-factor 4 --recompute-checkpoint-every-layer True --enable-half-partials True "
    "--dataset mmap --replicated-tensor-sharding True --num-workers 0"
).split()


class TrainingModel:
    """A stand-in for poptorch.trainingModel's result: a call takes several updates by torch."""

    def __init__(self, recording: Recording, model: Any, options: Any, optimizer: Any) -> None:
        self.recording, self.model, self.optimizer = recording, model, optimizer
        self.setOptimizer(optimizer)

    def setOptimizer(self, optimizer: Any) -> None:
        """Read the optimizer's learning rates: the device has none of later ones before the next call of this."""
        self.learning_rates = [group["lr"] for group in optimizer.param_groups]

    def __call__(self, input_ids: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
        """Take a call's updates, and return the sums of losses and accuracies over its micro-batches."""
        scheduled = [group["lr"] for group in self.optimizer.param_groups]
        self._set(self.learning_rates)
        sums = torch.zeros(2)
        for ids, wanted in zip(input_ids.chunk(sizes.UPDATES_OF_A_CALL), labels.chunk(sizes.UPDATES_OF_A_CALL)):
            self.optimizer.zero_grad()
            for one, its_labels in zip(ids.split(1), wanted.split(1)):
                loss, accuracy = self.model(input_ids=one, labels=its_labels)
                self.recording.note_batch([one, its_labels], loss)
                (loss / sizes.GRADIENT_ACCUMULATION).backward()
                sums += torch.stack([loss.detach(), accuracy.detach()])
            self.optimizer.step()
        self._set(scheduled)
        return list(sums)

    def _set(self, learning_rates: Sequence[float]) -> None:
        for group, learning_rate in zip(self.optimizer.param_groups, learning_rates):
            group["lr"] = learning_rate


class Anything:
    """Options of the device: every attribute and call returns itself."""

    def __int__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Anything:
        return self


def stand_ins(recording: Recording) -> dict[str, types.ModuleType]:
    """Return the modules that train_gpt2.py imports and that need an IPU, or that it uses for nothing here."""

    def module(name: str, **content: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update(content)
        made.__getattr__ = lambda attribute: Anything()  # type: ignore[method-assign]
        return made

    def adamw(groups: Any, lr: float, weight_decay: float, eps: float, bias_correction: bool, **device: Any) -> Any:
        return torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay, eps=eps)

    def loader(options: Any, dataset: Any, batch_size: int, mode: Any, **others: Any) -> Any:
        others.pop("auto_distributed_partitioning")
        combined = batch_size * sizes.GRADIENT_ACCUMULATION * sizes.UPDATES_OF_A_CALL
        return torch.utils.data.DataLoader(dataset, batch_size=combined, **others)

    optim = module("poptorch.optim", AdamW=adamw)
    poptorch = module(
        "poptorch",
        optim=optim,
        enums=module("poptorch.enums"),
        DataLoader=loader,
        BeginBlock=lambda layer, *placed, **elsewhere: layer,
        Attribute=lambda **attributes: nullcontext(),
        recomputationCheckpoint=lambda tensor: tensor,
        serializedMatMul=lambda x, weight, mode, factor: torch.matmul(x, weight),
        identity_loss=lambda loss, reduction: loss,
        custom_op=lambda inputs, *others, **options: inputs,
        trainingModel=partial(TrainingModel, recording),
    )
    popdist = module("popdist", isPopdistEnvSet=lambda: False, poptorch=module("popdist.poptorch"))
    unused = ("wandb", "popart", "horovod", "horovod.torch", "tfrecord", "tfrecord.reader", "examples_utils")
    named = {**{name: module(name) for name in unused}, "poptorch": poptorch, "poptorch.optim": optim}
    named["horovod"].torch = named["horovod.torch"]  # type: ignore[attr-defined]
    return {**named, "poptorch.enums": poptorch.enums, "popdist": popdist, "popdist.poptorch": popdist.poptorch}


def write_dataset(prefix: Path) -> None:
    """Write Megatron's PREFIX.bin and PREFIX.idx."""
    tokens, lengths = sizes.draw_documents()
    prefix.with_suffix(".bin").write_bytes(tokens.astype("<u2").tobytes())
    starts = 2 * (lengths.cumsum() - lengths)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1)
    documents = torch.arange(len(lengths) + 1).numpy()
    arrays = (lengths.astype("<i4"), starts.astype("<i8"), documents.astype("<i8"))
    prefix.with_suffix(".idx").write_bytes(header + b"".join(array.tobytes() for array in arrays))


def run_original(original: Path, folder: Path) -> Golden:
    """Run train_gpt2.py, and return what it did."""
    import transformers
    from transformers.activations import GELUActivation

    sys.path.insert(0, str(original))
    os.chdir(original)
    write_dataset(folder / "text")
    recording, models = Recording(), []
    read = transformers.GPT2Config.from_json_file

    def read_small(path: str) -> Any:
        config = read(path)
        config.n_embd, config.n_layer, config.n_head = sizes.HIDDEN_SIZE, sizes.LAYERS, sizes.HEADS
        config.vocab_size = sizes.VOCABULARY_SIZE
        config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
        return config

    class Drawn(transformers.GPT2LMHeadModel):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            drawn = draw_weights({name: tuple(weight.shape) for name, weight in self.named_parameters()})
            self.load_state_dict({name: torch.from_numpy(weight) for name, weight in drawn.items()}, strict=False)
            models.append((self, hash_weights(drawn)))

    with ExitStack() as stack:
        for context in (
            record_optimizers(recording),
            patch.dict(sys.modules, stand_ins(recording)),
            patch.object(transformers, "GPT2LMHeadModel", Drawn),
            patch.object(transformers.GPT2Config, "from_json_file", read_small),
            patch.object(torch.nn.Module, "half", lambda module: module),
            patch.object(GELUActivation, "forward", lambda module, x: torch.nn.functional.gelu(x, approximate="tanh")),
            patch.object(sys, "argv", ["train_gpt2.py", *OPTIONS, "--input-files", str(folder / "text")]),
        ):
            stack.enter_context(context)
        runpy.run_path("train_gpt2.py", run_name="__main__")
    model, initial = models[0]
    micro_batches = sizes.GRADIENT_ACCUMULATION
    return Golden(
        original="graphcore/examples v3.4.1, nlp/gpt2/pytorch/train_gpt2.py",
        commit=read_commit_of(original),
        command="python tests/oracles/make_graphcore_gpt2.py FOLDER",
        patched=PATCHED,
        versions=read_versions("torch", "transformers", "numpy"),
        initial_sha256=initial,
        batches_sha256=recording.hashes(micro_batches),
        losses=recording.losses(micro_batches),
        gradient_norms=recording.gradient_norms,
        learning_rates=recording.learning_rates,
        final={name: weight.detach().numpy() for name, weight in model.named_parameters()},
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        write_golden("graphcore_gpt2", run_original(Path(sys.argv[1]).resolve(), Path(temporary)))
