"""Optimizers by name, and their state as named tensors."""

from relm.training.optimizers.building import build_optimizer, set_learning_rate, weight_type
from relm.training.optimizers.state import as_kept_here, optimizer_tensors, restore_optimizer

__all__ = ["as_kept_here", "build_optimizer", "optimizer_tensors", "restore_optimizer", "set_learning_rate", "weight_type"]
