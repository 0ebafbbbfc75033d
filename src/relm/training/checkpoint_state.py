"""A checkpoint's `state.json`, which contains a hash of its content, so that a changed value is found. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import read_sealed, seal, write_json
from relm.json_shapes import require_shape
from relm.recipes.run_folder import STATE_SHAPE

STATE = "state.json"


def write_state(checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a checkpoint into its folder."""
    write_json(checkpoint / STATE, seal(state))


def read_state(checkpoint: Path, remedy: str = "it is damaged") -> dict[str, Any]:
    """Return the state of a checkpoint; raise RelmError with the `remedy` if it is absent, changed, or of another shape."""
    path = checkpoint / STATE
    state = read_sealed(path, remedy)
    require_shape(state, STATE_SHAPE, str(path), remedy)
    return dict(state)
