"""The trained model as a Hugging Face folder, appearing only when it is complete."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from relm.artifact import checked_sidecar, sidecar_of, write_json, write_sidecar
from relm.errors import RelmError
from relm.models.gpt2 import Gpt2
from relm.training.kill_points import kill_point

WEIGHTS = "model.safetensors"
END_OF_TEXT = "<|endoftext|>"


def write_model(model: Gpt2, folder: Path, tokenizer: Path, end_of_text_id: int, facts: Mapping[str, Any]) -> None:
    """Write `folder` so that `transformers` loads model and tokenizer from it; the weights' sidecar comes last.

    Args:
        tokenizer: a `tokenizer.json`, copied.
        facts: for the sidecar.

    Raises:
        RelmError: it cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save_folder(partial, end_of_text_id)
        shutil.copymode(partial / "config.json", partial / WEIGHTS)  # safetensors writes for the owner alone
        shutil.copyfile(tokenizer, partial / "tokenizer.json")
        write_json(partial / "tokenizer_config.json", tokenizer_config(model.config.positions))
        kill_point("model-written")
        _move_files(partial, folder)
    except (OSError, SafetensorError) as error:
        raise RelmError(
            f"{folder}: the model cannot be written: {error}; checkpoints are intact: see to it (a full disk?) and give "
            "the same command again"
        ) from error
    kill_point("model-renamed")
    write_sidecar(folder / WEIGHTS, **facts)


def _move_files(partial: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    sidecar_of(folder / WEIGHTS).unlink(missing_ok=True)
    for path in sorted(partial.iterdir()):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.replace(path, folder / path.name)
    partial.rmdir()


def tokenizer_config(positions: int) -> dict[str, Any]:
    """What `transformers` needs beside `tokenizer.json`: this class takes that file as it is, and rebuilds nothing."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": positions,
    }


def is_finished(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Whether `folder` holds, undamaged, the model that has these facts."""
    try:
        sidecar = checked_sidecar(folder / WEIGHTS)
    except RelmError:
        return False
    return all(sidecar.get(key) == value for key, value in facts.items())
