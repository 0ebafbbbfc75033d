"""Optimizers by name, and their state as named tensors."""

from relm.training.optimizers.building import build_optimizer, set_learning_rate, weight_type
from relm.training.optimizers.state import convert_update_counts, optimizer_tensors, restore_optimizer

__all__ = [
    "build_optimizer",
    "convert_update_counts",
    "optimizer_tensors",
    "restore_optimizer",
    "set_learning_rate",
    "weight_type",
]
