"""Records without the user's name, the home folder or secrets, and steps without secrets that they do not need."""

import getpass
import os
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from relm.recipes.files.own_folders import expand_home, home_folder
from relm.recipes.identity import work_folder

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
LOGGER_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
"""Variables with a secret, or the path of one, of a logger that `run.loggers` may name."""
LOGGER_ADDRESSES = ("WANDB_BASE_URL",)
"""Variables with a logger's server, whose address may hold a login."""
LOGGING_STEP = "pretrain"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIAL", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_HOME = re.compile(r"^(/(?:home|Users)/)[^/\s'\",;:]+")
_ABSOLUTE_PATH = re.compile(r"(?<![\w.~:/-])/[^\s'\"]+")


def _list_short_names() -> list[tuple[str, str]]:
    """Return absolute folders with their short names, the most specific first."""
    folders = [(os.path.abspath(work_folder()), "work"), (os.getcwd(), "."), (str(home_folder() or ""), "~")]
    return [(folder, name) for folder, name in folders if len(folder) > 1]


def shorten_path(path: Path) -> str:
    """Return a path as `work/...` wherever the work folder is, or relative to the current folder or to `~`."""
    absolute = os.path.abspath(path)
    for folder, name in _list_short_names():
        if absolute == folder:
            return name
        if absolute.startswith(folder + os.sep):
            return absolute[len(folder) + 1 :] if name == "." else f"{name}{absolute[len(folder) :]}"
    return mask_secrets(absolute)


def expand_path(path: str) -> Path:
    """Return the path that `shorten_path` shortened to ``path``."""
    first, _, rest = path.partition("/")
    if first == "work":
        return work_folder() / rest
    return expand_home(path)


def mask_secrets(text: str) -> str:
    """Return ``text`` with tokens masked, and without the current folder, the home and the user's name in its paths."""
    for name, value in os.environ.items():
        if len(value) >= (4 if name in TOKENS else 8) and (name in TOKENS or _SECRET_NAME.search(name)):
            text = text.replace(value, "***")
    text = _URL_LOGIN.sub("***@", _SECRET_TEXT.sub("***", text))
    for folder, name in _list_short_names():
        text = re.sub(rf"(?<![\w.~-]){re.escape(folder)}(?=[/\s'\",;:)]|$)", name, text)
    return _ABSOLUTE_PATH.sub(_mask_user, text)


def _mask_user(match: re.Match[str]) -> str:
    path = _HOME.sub(r"\1USER", match[0])  # in a container the user's name and home are unknown
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        return path
    return "/".join("USER" if part == user else part for part in path.split("/"))


def mask_value(value: Any) -> Any:
    """Return a JSON value with `mask_secrets` applied to every string."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, dict):
        return {key: mask_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_value(inner) for inner in value]
    return value


def withhold_logger_keys(step: str, environment: MutableMapping[str, str]) -> None:
    """Remove the secrets of loggers from the environment of a step that does not train, and of the processes that it starts."""
    if step != LOGGING_STEP:
        for name in (*LOGGER_KEYS, *LOGGER_ADDRESSES):
            environment.pop(name, None)
