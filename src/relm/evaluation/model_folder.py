"""Safe reading of a model's folder: nothing is executed, unpickled, or read from elsewhere."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from relm.artifact import require_regular_file, sha256_of
from relm.errors import RelmError
from relm.models.configuration import OWN, folder_config
from relm.models.file_sizes import measure_files, require_fitting_keys
from relm.recipes.architectures import names_with
from relm.training.model_files import NOTICED, checked_weights

Config = TypeVar("Config")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
# Bytes of the longest JSON file of a model; a tokenizer of a quarter of a million tokens has 30 MB.
LONGEST_JSON = 1 << 28
# Keys of a configuration that make `transformers` read other weights or fetch a program.
OTHER_WEIGHTS = "transformers_weights"
KERNELS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
# Errors that libraries raise when a folder's files are damaged or of another format.
UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, RuntimeError, ArithmeticError, AssertionError,
    MemoryError, SafetensorError,
)  # fmt: skip


@contextlib.contextmanager
def readable(folder: Path, what: str) -> Iterator[None]:
    """Turn errors while a model's folder is read into a message for the user."""
    try:
        _require_readable_files(folder)
        yield
    except UNREADABLE as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(".:")
        raise RelmError(
            f"{folder}: cannot be read as a {what}: {first}; give a folder with config.json and model.safetensors"
        ) from None


def _require_readable_files(folder: Path) -> None:
    """Reject a folder in which a file that loaders read is a pipe, a device, or far too long."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if any(fnmatch(path.name, pattern) for pattern in NOTICED):
            require_regular_file(path)
            if path.suffix == ".json" and path.is_file() and path.stat().st_size > LONGEST_JSON:
                raise ValueError(f"{path.name} has {path.stat().st_size:,} bytes, expected at most {LONGEST_JSON:,}")


def configuration(folder: Path) -> dict[str, Any]:
    """Return the content of `config.json`, within `readable`, which turns its OSError and ValueError into a message."""
    path = folder / "config.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is not a JSON object: {error}") from None


def model_type(folder: Path) -> str:
    """Return the architecture that `config.json` names."""
    return str(configuration(folder).get("model_type", ""))


def read_own_config(folder: Path, kind: type[Config], architecture: type) -> Config | None:
    """Return the configuration of a model that relm implements; None for options that only `transformers` has."""
    config = configuration(folder)
    if config.get("model_type") not in names_with(architecture) or not (folder / WEIGHTS).exists():
        return None
    try:
        return folder_config(folder, kind)
    except ValueError:
        if OWN in config:  # `transformers` would ignore these options
            raise
        return None


def weights_sha256(folder: Path) -> str:
    """Return the sha256 of the weights, after checking every file of the model that has a sidecar.

    For several files of weights it is the sha256 of their names and hashes.
    """
    weights, index = folder / WEIGHTS, folder / INDEX
    measured = measure_files(path for path in sorted(folder.glob("*.safetensors")) if path.is_file())
    if not index.exists() and not weights.exists() and any(folder.glob("pytorch_model*.bin")):
        raise ValueError("its weights are pickled (pytorch_model.bin), which can run code, so they are not read: convert them")
    sha256 = checked_weights(folder) if weights.exists() or not index.exists() else _sha256_of_several(folder)
    if (folder / ADAPTER).exists():  # PEFT, where it is installed, would have another model read
        raise ValueError(f"{ADAPTER} names an adapter, which is not applied here: merge it into the weights, or remove it")
    if (folder / "config.json").exists():
        config = configuration(folder)
        _require_nothing_from_elsewhere(config)
        require_fitting_keys(config, measured)
    return sha256


def _require_nothing_from_elsewhere(config: Mapping[str, Any]) -> None:
    """Reject a configuration that names other weights, or compiled programs of the Hugging Face hub."""
    if config.get(OTHER_WEIGHTS) is not None:
        raise ValueError(f"config.json: {OTHER_WEIGHTS} is {config[OTHER_WEIGHTS]!r}, expected no such key: remove it")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in KERNELS:
            if "/" in str(part.get(key)):
                raise ValueError(f"config.json: {key} is {part[key]!r}, a program of the hub's, which is not run: remove it")


def _sha256_of_several(folder: Path) -> str:
    """Return the sha256 of the names and hashes of the files that an index names."""
    index = folder / INDEX
    names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    if odd := [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]:
        raise ValueError(f"{INDEX} names {odd[0]}, expected safetensors files in the same folder")
    lines = "".join(f"{sha256_of(folder / name)}  {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()
