"""The passages of LAMBADA's file, which this module reads without torch."""

from pathlib import Path

from relm.corpus.published_rows import parse_json
from relm.errors import RelmError
from relm.evaluation.evaluated_text import BYTE_ORDER_MARK, read_text
from relm.formatting import escape_controls


def read_passages(file: Path, sha256: str | None, text_key: str, limit: int | None) -> tuple[list[str], str]:
    """Return the passages of a file, one from each line, and the file's sha256."""
    content, found = read_text(file, sha256)
    lines = content.removeprefix(BYTE_ORDER_MARK).removesuffix("\n").split("\n")[:limit]
    return [_passage(line, text_key, f"{file}, line {number}") for number, line in enumerate(lines, 1)], found


def _passage(line: str, key: str, where: str) -> str:
    content = parse_json(line, where, f'expected an object such as {{"{key}": "A passage."}}')
    text = content.get(key) if isinstance(content, dict) else None
    if not isinstance(text, str):
        keys = f"the keys {escape_controls(', '.join(content))[:200]}" if isinstance(content, dict) else type(content).__name__
        raise RelmError(
            f"{where}: expected an object with a text under {key!r}, found {keys}; lambada.text_key of the test's file names it"
        )
    if not before_last_space(text).strip() or len(text.split()) < 2:
        raise RelmError(f"{where}: expected a passage of two words or more with a space before the last, found {text[:80]!r}")
    return text


def before_last_space(text: str) -> str:
    """Return what stands before the last space of a text; empty if it has none."""
    return text.rpartition(" ")[0]
