"""Reading of `config.json` key by key, and comparison with a recipe's architecture, for all architectures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from relm.models.file_sizes import measure_files, require_fitting_model

# The key in `config.json` for switches that `transformers` lacks; `transformers` ignores unknown keys.
OWN = "relm"
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_erf"}
HUGGINGFACE_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu_erf": "gelu"}

Config = TypeVar("Config")


class Configuration(Protocol):
    """The properties that every architecture's frozen dataclass has."""

    @property
    def architecture(self) -> str:
        """Return the architecture's name in `config.json`."""

    @property
    def vocabulary_size(self) -> int:
        """Return the rows of the embedding."""


class Published:
    """A `config.json` whose keys are checked as they are read; ValueError names a wrong value and what was expected."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def whole(self, key: str, default: int, least: int = 1) -> int:
        """Return a whole number that is at least `least`."""
        found = self.config.get(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < least:
            raise ValueError(f"config.json: {key} is {found!r}, expected a whole number from {least} on")
        return found

    def number(self, key: str, default: float) -> float:
        """Return a number, zero or above."""
        found = self.config.get(key, default)
        if not isinstance(found, (int, float)) or isinstance(found, bool) or found < 0:
            raise ValueError(f"config.json: {key} is {found!r}, expected a number from 0 on")
        return found

    def heads(self, key: str, default: int, width_key: str, width: int) -> int:
        """Return a count of attention heads that divides `width`."""
        found = self.whole(key, default)
        if width % found:
            raise ValueError(f"config.json: {key} is {found}, expected a divisor of {width_key}, {width}")
        return found

    def activation(self, key: str, default: str) -> str:
        """Return an activation under this project's name."""
        return _ACTIVATIONS[self.required(key, default, tuple(_ACTIVATIONS))]

    def required(self, key: str, default: Any, allowed: Collection[Any]) -> Any:
        """Return a value that must be one of `allowed`, for with another the model would compute something else."""
        found = self.config.get(key, default)
        if found not in allowed:
            expected = " or ".join(json.dumps(value) for value in allowed)
            raise ValueError(f"config.json: {key} is {found!r}, expected {expected}: this class cannot express that model")
        return found

    def own(self, names: Collection[str]) -> dict[str, Any]:
        """Return field -> value of this project's switches, which must be among `names`."""
        switches = self.config.get(OWN, {})
        unknown = [name for name in switches if name not in names]
        if unknown:
            raise ValueError(f"config.json: {OWN}.{unknown[0]} is unknown, expected one of {', '.join(sorted(names))}")
        return dict(switches)


def own_switches(config: Any, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the switches that differ from their defaults, if any, under their key in `config.json`."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    switches = {name: getattr(config, name) for name in names if getattr(config, name) != defaults[name]}
    return {OWN: switches} if switches else {}


def require_consistent(config: Any, heads: int, hidden_size: int, activation: str) -> None:
    """Check that an architecture can be built."""
    faults: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name.endswith("dropout") and not 0 <= value < 1:
            faults.append(f"{field.name} is {value!r}, expected a share from 0 to below 1")
        elif field.type == "int" and value < 1:
            faults.append(f"{field.name} is {value!r}, expected a whole number from 1 on")
    if not faults and hidden_size % heads:
        faults.append(f"heads is {heads}, expected a divisor of hidden_size, {hidden_size}")
    if activation not in HUGGINGFACE_ACTIVATIONS:
        faults.append(f"activation is {activation!r}, expected {' or '.join(HUGGINGFACE_ACTIVATIONS)}")
    if faults:
        raise ValueError("; ".join(faults))


def folder_config(folder: Path, kind: type[Config], expected: Config | None = None, also_free: tuple[str, ...] = ()) -> Config:
    """Return the architecture in a folder's `config.json`, or `expected`, which it must match, except for free fields.

    `kind` is a dataclass with `from_huggingface` and `free_fields`, in which models with interchangeable weights may differ.
    """
    path = folder / "config.json"
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is not a JSON object: {error}") from None
    found: Config = kind.from_huggingface(content)  # type: ignore[attr-defined]
    if (weights := folder / "model.safetensors").exists():
        require_fitting_model(found, measure_files([weights]))
    if expected is None:
        return found
    free = (*kind.free_fields, *also_free)  # type: ignore[attr-defined]
    differing = [
        f"{field.name} is {getattr(found, field.name)!r}, expected {getattr(expected, field.name)!r}"
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.name not in free and getattr(found, field.name) != getattr(expected, field.name)
    ]
    if differing:
        raise ValueError(f"{path}: {'; '.join(differing)}")
    return expected
