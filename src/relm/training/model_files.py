"""Checks of a model's folder against the sidecar of its weights. Imports no torch, because the report and the bucket use it.

The sidecar of a trained model's weights lists every other file of the folder, with its sha256, in `files`: with another
`config.json` the same weights are another model.
"""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from relm.artifact import checked_sidecar, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.recipes.run_folder import WEIGHTS

# The other files that a model is loaded from; those of a downloaded or converted model each have a sidecar.
COMPANIONS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
# Names of files that `transformers` or PEFT load if they are there, and that would change the model or tokenizer.
NOTICED = (
    "adapter_*", "config.json", "generation_config.json", "custom_generate", "*processor_config.json", "*tokenizer_config.json",
    "*.safetensors", "*.index.json", "*.bin", "*.gguf", "*.h5", "*.msgpack", "*.py",
    "added_tokens.json", "special_tokens_map.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "tekken.json",
    "chat_template*", "additional_chat_templates",
)  # fmt: skip


def checked_weights(folder: Path) -> str:
    """Return the sha256 of a folder's weights after checking every file of the model that has a sidecar."""
    for name in COMPANIONS:
        if sidecar_of(folder / name).exists():
            checked_sidecar(folder / name)
    weights = folder / WEIGHTS
    return str(checked_model(weights)["sha256"]) if sidecar_of(weights).exists() else sha256_of(weights)


def checked_model(weights: Path) -> Mapping[str, Any]:
    """Return the sidecar of a model's weights after comparing the whole model with it.

    Raise RelmError if a file is missing or changed, or if the folder has another file that a loader would read.
    """
    sidecar = checked_sidecar(weights)
    if "files" in sidecar:
        require_no_others(weights, sidecar["files"])
    elif "fingerprint" in sidecar:  # a model trained here; the files of a download each have a sidecar
        path = sidecar_of(weights)
        raise RelmError(
            f"{path}: does not name config.json and tokenizer; an earlier version of relm wrote it. Delete it, and "
            f"`snakemake {path}` writes the model again from its last checkpoint"
        )
    return sidecar


def require_no_others(weights: Path, files: Mapping[str, Any]) -> None:
    """Raise RelmError if the weights' folder has a file that a loader would read and that is not among `files`."""
    for path in sorted(weights.parent.iterdir()):
        is_known = path.name in files or path.name == weights.name
        if not is_known and any(fnmatch(path.name, pattern) for pattern in NOTICED):
            raise RelmError(
                f"{weights.parent}: contains {path.name}, which loaders read but {sidecar_of(weights).name} does not name. "
                "Remove it, or copy the folder without that sidecar if it is another model"
            )
