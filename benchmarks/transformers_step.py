"""A training step of `transformers`' own model as a program for the TPU's compiler, for `benchmarks/compiled.py`.

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 .venv-tpu/bin/python benchmarks/transformers_step.py SHAPE.json STEP.hlo

The batch is dealt out to the devices, as ours is, and the compiler adds the sums of gradients; on one device it is a core's
own part, and nothing is summed. The loss is taken at every position, as the library's models take it, attention is "eager",
which takes less memory here than the library's call of `scaled_dot_product_attention`, and nothing is executed.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from relm.forecast.compilation.tracing import Traced, TracingDevice, trace_step
from relm.recipes.run import Run


@dataclasses.dataclass(frozen=True)
class Shape:
    """The model and step to trace."""

    config: dict[str, Any]
    """The configuration in the form of `to_huggingface`."""
    batch: int
    """The sequences of all devices."""
    devices: int
    """The devices that share the batch: all of a slice, or one with its own part."""
    of: int
    """The count of the slice's devices; all get the same program."""
    length: int
    target_length: int | None
    """The decoder's length, for an encoder-decoder."""
    precision: str
    optimizer: str
    """adamw, or adafactor."""
    clipping: float | None


def model_of(shape: Shape) -> nn.Module:
    """Return the library's model, without memory for its weights."""
    described = dict(shape.config)
    (kind,) = described.pop("architectures")
    config = transformers.AutoConfig.for_model(described.pop("model_type"), **described, use_cache=False)
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, kind)._from_config(config, attn_implementation="eager")
        if not shape.config["tie_word_embeddings"]:  # the library ties a T5's head whatever its configuration says
            model.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
    return model.train()


def optimizer_of(shape: Shape, model: nn.Module) -> torch.optim.Optimizer:
    if shape.optimizer == "adafactor":
        fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
        return transformers.Adafactor(model.parameters(), lr=1e-4, **fixed)
    return torch.optim.AdamW(model.parameters(), lr=5e-5)


def batch_of(shape: Shape) -> dict[str, np.ndarray]:
    """Return arrays of the right sizes; their content is in no program."""
    whole = np.ones((shape.batch, shape.length), dtype=np.int64)
    labels = whole if shape.target_length is None else np.ones((shape.batch, shape.target_length), dtype=np.int64)
    return {"input_ids": whole, "attention_mask": whole, "labels": labels}


def step_of(shape: Shape, model: nn.Module, optimizer: torch.optim.Optimizer, device: TracingDevice) -> Callable[[], Tensor]:
    batch = device.feed(device.stage(batch_of(shape)))

    def step() -> Tensor:
        with device.autocast(shape.precision):
            loss: Tensor = model(**batch).loss
        loss.backward()
        if shape.clipping is not None:
            nn.utils.clip_grad_norm_(model.parameters(), shape.clipping)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def program_of(shape: Shape) -> tuple[Traced, tuple[int, ...]]:
    """Return the step's program, and the sizes of the model's parameters."""
    with closing(TracingDevice(Run(device="tpu"), one=shape.devices == 1)) as device:
        model: Any = device.place(model_of(shape))  # type: ignore[arg-type]
        optimizer = optimizer_of(shape, model)
        sizes = tuple(sorted({parameter.numel() for parameter in model.parameters()}))
        return trace_step(device, model, optimizer, step_of(shape, model, optimizer, device)), sizes


def main(given: Path, hlo: Path) -> None:
    shape = Shape(**json.loads(given.read_text()))
    traced, sizes = program_of(shape)
    hlo.write_bytes(traced.hlo)
    print(traced.to_program(shape.of, sizes).model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
