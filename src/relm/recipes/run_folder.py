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
# Beside the weights of every trained model; a model that writes text has a generation_config.json as well.
MODEL_PARTS = ("config.json", "tokenizer.json", "tokenizer_config.json")
# Of a published run: the records of all steps, and the sha256 of every other file.
PROVENANCE, METADATA = "provenance.json", "ro-crate-metadata.json"
# Of a checkpoint, beside its state.json.
CHECKPOINT_FILES = (WEIGHTS, OPTIMIZER)


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Where the checkpoint of a step lies, or lay."""
    return checkpoints / f"step-{step:08d}"
