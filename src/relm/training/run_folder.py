"""What lies in the run folder of a phase, by name. Imports no torch: the graph and the report ask here, too."""

from pathlib import Path

LOG, ORDER, CHECKPOINTS = "train.jsonl", "order.json", "checkpoints.jsonl"
# Programs of a device that takes long to compile.
COMPILED = "compiled"
# What such a device counted, a line for each process that trained.
DEVICE_FIGURES = "device.json"
# What a phase leaves for whoever trains a part of it again.
RECORDS = (LOG, ORDER, CHECKPOINTS)
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
# Of a checkpoint, beside its state.json.
CHECKPOINT_FILES = (WEIGHTS, OPTIMIZER)


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step lies, or lay."""
    return checkpoints / f"step-{step:08d}"
