"""Export of the trained model as a Hugging Face folder, which appears only when it is complete."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from tokenizers import Tokenizer

from relm.artifact import checked_sidecar, companions, sidecar_of, sync_path, write_json, write_sidecar
from relm.errors import RelmError
from relm.models.contract import LanguageModel
from relm.training.kill_points import kill_point

WEIGHTS = "model.safetensors"
# Key of `transformers` -> name of the special token.
ROLES = {"bos_token": "end_of_text", "eos_token": "end_of_text", "pad_token": "pad"}


def write_model(
    model: LanguageModel, folder: Path, tokenizer: Path, special: Mapping[str, int | None], facts: Mapping[str, Any]
) -> None:
    """Write `folder` so that `transformers` loads model and tokenizer from it; the sidecar, which lists all files, comes last.

    `special` maps the name of a special token, as in `TokenizerFacts`, to its id; `facts` are further keys of the sidecar.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.save_folder(partial, token_ids(special))
        shutil.copymode(partial / "config.json", partial / WEIGHTS)  # safetensors lets only the owner read it
        shutil.copyfile(tokenizer, partial / "tokenizer.json")
        positions = getattr(model.config, "positions", None)
        settings = tokenizer_config(tokenizer, special, positions, model.tokenizer_outputs)
        write_json(partial / "tokenizer_config.json", settings)
        kill_point("model-written")
        files = companions(path for path in partial.iterdir() if path.name != WEIGHTS)
        _move_files(partial, folder)
    except (OSError, SafetensorError) as error:
        raise RelmError(
            f"{folder}: cannot write the model: {error}. Checkpoints are intact. Fix the cause (is the disk full?) and run "
            "the same command again"
        ) from error
    kill_point("model-renamed")
    write_sidecar(folder / WEIGHTS, **facts, files=files)


def _move_files(partial: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    sidecar_of(folder / WEIGHTS).unlink(missing_ok=True)
    for path in sorted(partial.iterdir()):
        sync_path(path)
        os.replace(path, folder / path.name)
    partial.rmdir()


def token_ids(special: Mapping[str, int | None]) -> dict[str, int]:
    """Return the ids of special tokens under their names in `config.json`."""
    return {f"{role}_id": found for role, name in ROLES.items() if (found := special.get(name)) is not None}


def tokenizer_config(
    tokenizer: Path,
    special: Mapping[str, int | None],
    positions: int | None,
    outputs: Sequence[str] = ("input_ids", "attention_mask"),
) -> dict[str, Any]:
    """Return `tokenizer_config.json`, whose class makes `transformers` load `tokenizer.json` unchanged.

    `outputs` are the names of the tokenizer's outputs; without them the class leaves out the segments of pairs.
    """
    known = Tokenizer.from_file(str(tokenizer))
    names = {"unk_token": "unk" if special.get("unk") is not None else "end_of_text"}
    roles = {**ROLES, **names, "cls_token": "cls", "sep_token": "sep", "mask_token": "mask"}
    tokens = {role: known.id_to_token(found) for role, name in roles.items() if (found := special.get(name)) is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
        "model_input_names": list(outputs),
        "clean_up_tokenization_spaces": False,
        **({"model_max_length": positions} if positions else {}),
    }


def is_finished(folder: Path, facts: Mapping[str, Any]) -> bool:
    """Return True if `folder` holds the undamaged model with these facts and its sidecar lists every file."""
    try:
        sidecar = checked_sidecar(folder / WEIGHTS)
    except RelmError:
        return False
    return "files" in sidecar and all(sidecar.get(key) == value for key, value in facts.items())
