"""The tokens that begin and end a text, as the files next to a tokenizer name them.

A `tokenizer.json` lists the special tokens without their roles. `tokenizer_config.json`, or in older folders
`special_tokens_map.json`, names these. The model's configuration may list more ids that end a text, as in chat models.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

log = logging.getLogger(__name__)

TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
# Classes of `transformers` that have only the special tokens that their settings name.
PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
MODEL_SETTINGS = ("generation_config.json", "config.json")


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the tokens that begin and end a text; None if the tokenizer has no such token."""

    bos: int | None
    """The token that begins a text."""
    eos: int | None
    """The token that ends one."""
    ends: frozenset[int]
    """All ids that end a text: `eos`, and those that the model's configuration lists."""


def special_tokens(tokenizer: LoadedTokenizer, model_folder: Path) -> SpecialTokens:
    """Return the tokens that begin and end the texts of a model.

    The tokenizer's settings come first, then the model's configuration, and last, for the end of a text, a special token with a
    usual name.
    """
    named = named_tokens(tokenizer, model_folder)
    listed = {role: _listed(tokenizer, model_folder, f"{role}_id") for role in ("bos_token", "eos_token")}
    first = {role: next(iter(ids), None) for role, ids in listed.items()}
    bos = named.get("bos_token", first["bos_token"])
    by_name = tokenizer.special.end_of_text if first["eos_token"] is None else first["eos_token"]
    eos = named.get("eos_token", by_name)
    return SpecialTokens(bos, eos, frozenset(listed["eos_token"] if eos is None else [eos, *listed["eos_token"]]))


def named_tokens(tokenizer: LoadedTokenizer, model_folder: Path | None) -> dict[str, int | None]:
    """Return role -> id of the tokens that a tokenizer's settings name; None for a role that they set to null."""
    folder = settings_folder(tokenizer, model_folder)
    found: dict[str, int | None] = {}
    for path in (folder / name for name in TOKENIZER_SETTINGS) if folder is not None else ():
        settings = read_settings(path)
        roles = [role for role in ("bos_token", "eos_token", "pad_token") if role in settings and role not in found]
        found |= {role: _id_of(settings[role], role, path, tokenizer) for role in roles}
    return found


def has_only_named_tokens(tokenizer: LoadedTokenizer, model_folder: Path | None) -> bool:
    """Return whether the tokenizer's class has only the special tokens that its settings name."""
    folder = settings_folder(tokenizer, model_folder)
    return folder is not None and read_settings(folder / TOKENIZER_SETTINGS[0]).get("tokenizer_class") in PLAIN_CLASSES


def settings_folder(tokenizer: LoadedTokenizer, model_folder: Path | None) -> Path | None:
    """Return the folder whose settings belong to a tokenizer: the model's if it has the same tokenizer, else the latter's."""
    for folder in (model_folder, tokenizer.path.parent):
        same = folder / "tokenizer.json" if folder is not None else None
        if folder is None or same is None or not any((folder / name).exists() for name in TOKENIZER_SETTINGS):
            continue
        if same.exists() and sha256_of(same) == tokenizer.sha256:
            return folder
    return None


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a file; empty without the file."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise RelmError(f"{path}: is a {type(content).__name__}, expected a JSON object; copy the folder again")
    return content


def _id_of(value: Any, role: str, path: Path, tokenizer: LoadedTokenizer) -> int | None:
    """Return the id of a token, given as its text or as a mapping with it."""
    name = value.get("content") if isinstance(value, dict) else value
    if name is None:
        return None
    found = tokenizer.tokenizer.token_to_id(name) if isinstance(name, str) else None
    if found is None:
        raise RelmError(
            f"{path}: {role} is {name!r}, which is not a token of {tokenizer.path}; give the text of one of its tokens, or null"
        )
    return int(found)


def _listed(tokenizer: LoadedTokenizer, model_folder: Path, key: str) -> list[int]:
    """Return the ids under a key of the model's configuration that are special tokens of the tokenizer.

    Others are left out: many configurations hold their architecture's default id, which is a letter in another tokenizer.
    """
    special = {number for number, token in tokenizer.tokenizer.get_added_tokens_decoder().items() if token.special}
    found: list[int] = []
    for path in (model_folder / name for name in MODEL_SETTINGS):
        value = read_settings(path).get(key)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number in special:
                found.append(number)
            elif number is not None:
                log.warning("%s: %s %s is not the id of a special token of the tokenizer, and is ignored", path, key, number)
    return found
