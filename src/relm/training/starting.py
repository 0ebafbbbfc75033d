"""What a phase keeps of the one before it, beside the weights: what its optimizer remembers.

The loss scale is not kept: it belongs to the phase's own `loss_scaling`, and begins as that says.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relm.artifact import read_json
from relm.errors import RelmError
from relm.recipes.optimization import LossScaling
from relm.recipes.run_folder import OPTIMIZER
from relm.training.loss_scaling import LossScaler
from relm.training.optimizers import as_kept_here, restore_optimizer
from relm.training.tensor_file import Damaged, read_tensors


def kept_optimizer(folder: Path, fingerprint: str) -> dict[str, Tensor]:
    """What the optimizer remembered at a checkpoint, as `optimizers.optimizer_tensors` gave it, checked byte by byte.

    Args:
        folder: RUN/PHASE/checkpoints/step-XXXXXXXX of the last step of the phase before.
        fingerprint: of the run that goes on.

    Raises:
        RelmError: the checkpoint is gone or damaged, says what makes it again; or it is another run's.
    """
    state = _state(folder)
    if state["fingerprint"] != fingerprint:
        raise RelmError(
            f"{folder}: optimizer_state: kept goes on with an optimizer of the same run, {fingerprint}; this checkpoint is of "
            f"{state['fingerprint']}; give --optimizer-from the checkpoint of this run's phase before"
        )
    try:
        tensors = read_tensors(folder / OPTIMIZER, state["sha256"][OPTIMIZER])
    except Damaged as error:
        raise RelmError(f"{error}; {_how_to_make_again(folder)}") from None
    scaling = LossScaler(LossScaling(), torch.device("cpu")).tensors()
    return {name: tensor for name, tensor in tensors.items() if name not in scaling}


def device_of(folder: Path) -> str:
    """The kind of device on which a checkpoint that `kept_optimizer` read was made."""
    return str(_state(folder).get("made_on", {}).get("device"))


def go_on(optimizer: torch.optim.Optimizer, model: nn.Module, kept: Mapping[str, Tensor], made_elsewhere: bool = False) -> None:
    """Give a new optimizer of `model` what `kept_optimizer` found: its next update is the one after the last of the old.

    Args:
        made_elsewhere: on another kind of device, whose AdamW may count its updates in another way.

    Raises:
        RelmError: it is the state of an optimizer of another kind.
    """
    try:
        restore_optimizer(optimizer, model, as_kept_here(optimizer, kept) if made_elsewhere else kept)
    except ValueError as error:
        raise RelmError(
            f"optimizer_state: kept: the phase before left another kind of state: {error}; give both phases the same "
            "optimizer.name, form, bias_correction and state_precision, or begin with optimizer_state: fresh"
        ) from None


def _state(folder: Path) -> Mapping[str, Any]:
    path = folder / "state.json"
    if not path.exists():
        raise RelmError(
            f"{folder}: no such checkpoint; optimizer_state: kept goes on with what it holds; {_how_to_make_again(folder)}"
        )
    with contextlib.suppress(RelmError):
        state = read_json(path)
        if isinstance(state, dict) and {"fingerprint", "sha256"} <= set(state) and OPTIMIZER in state["sha256"]:
            return state
    raise RelmError(f"{path}: damaged; {_how_to_make_again(folder)}")


def _how_to_make_again(folder: Path) -> str:
    model = folder.parent.parent / "model" / "model.safetensors"
    return f"`snakemake --force {model}` makes it again, from the newest checkpoint of that phase that is intact"
