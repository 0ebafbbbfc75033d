"""The optimizer state that a phase with `optimizer_state: kept` takes from the previous phase.

The loss scale is not kept: it starts with the value of the phase's `loss_scaling`.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relm.errors import RelmError
from relm.recipes.optimization import LossScaling
from relm.recipes.run_folder import OPTIMIZER
from relm.training.checkpoint_state import STATE, read_state
from relm.training.loss_scaling import LossScaler
from relm.training.optimizers import convert_update_counts, restore_optimizer
from relm.training.tensor_file import Damaged, read_tensors


def read_kept_optimizer(folder: Path, fingerprint: str) -> dict[str, Tensor]:
    """Return the checked optimizer state in the previous phase's last checkpoint, named as in `optimizer_tensors`."""
    state = _state(folder)
    if state["fingerprint"] != fingerprint:
        raise RelmError(
            f"{folder}: optimizer_state: kept needs a checkpoint of run {fingerprint}, found run {state['fingerprint']}. Set "
            "--optimizer-from to the checkpoint of this run's phase before"
        )
    try:
        tensors = read_tensors(folder / OPTIMIZER, state["sha256"][OPTIMIZER])
    except Damaged as error:
        raise RelmError(f"{error}; {_remedy(folder)}") from None
    # Made only for the names of its tensors, which this phase does not keep.
    scaling = LossScaler(LossScaling(), torch.device("cpu")).tensors()
    return {name: tensor for name, tensor in tensors.items() if name not in scaling}


def restore_kept_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, kept: Mapping[str, Tensor]) -> None:
    """Load the result of `read_kept_optimizer` into a new optimizer of `model`, which continues the count of updates."""
    try:
        restore_optimizer(optimizer, model, convert_update_counts(optimizer, kept))
    except ValueError as error:
        raise RelmError(
            f"optimizer_state: kept: the phase before has another kind of state: {error}. Give both phases the same "
            "optimizer.name, form, bias_correction and state_precision, or set optimizer_state: fresh"
        ) from None


def _state(folder: Path) -> Mapping[str, Any]:
    path = folder / STATE
    if not path.exists():
        raise RelmError(f"{folder}: no such checkpoint; optimizer_state: kept needs its optimizer state; {_remedy(folder)}")
    with contextlib.suppress(RelmError):
        return read_state(folder)
    raise RelmError(f"{path}: damaged; {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    """Return a sentence with the command that makes a checkpoint again."""
    model = folder.parent.parent / "model" / "model.safetensors"
    return f"`snakemake --force {model}` makes it again, from the newest intact checkpoint of that phase"
