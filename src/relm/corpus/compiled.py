"""Compiled functions that do what Python code of relm does, in less time.

Each is None if the environment was made without a C compiler, as for the images, or the C source has changed since.
"""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def _find(module: str, name: str) -> Any:
    try:
        found = importlib.import_module(module)
        source = Path(__file__).with_name(f"{module.removeprefix('relm_')}.c").read_bytes()
    except (ImportError, OSError):
        return None
    is_current = getattr(found, "SOURCE", None) == hashlib.sha256(source).hexdigest()
    return getattr(found, name) if is_current else None


decompress_together: Callable[[bytes, Sequence[int]], bytes | None] | None = _find("relm_bzip2_walks", "decompress")
"""Return the content of up to `TOGETHER` blocks, given by the bits where each begins and ends; None: one is damaged."""

count_words: Callable[[str], int] | None = _find("relm_text_passes", "count_words")
collect_lines: Callable[[str, Callable[[str], tuple[int, str, bool] | None], Callable[[str], bool]], str] | None = _find(
    "relm_text_passes", "collect_lines"
)
remove_quotes: Callable[[str, Callable[[str], str]], str] | None = _find("relm_text_passes", "remove_quotes")
replace_links: Callable[[str, Callable[[str, str, str], str]], str] | None = _find("relm_text_passes", "replace_links")
tidy_spaces: Callable[[str], str] | None = _find("relm_text_passes", "tidy_spaces")
