"""Reading documents: JSON lines, one object with a `text` each, UTF-8."""

import json
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from relm.errors import RelmError

AGAIN = "run the step that extracts the documents again"


def document_texts(lines: Iterable[bytes], path: Path, first_line: int = 1) -> Iterator[str]:
    """The text of each line of `path`; `lines` begin at line `first_line`.

    Raises:
        RelmError: a line is not JSON, not UTF-8, or not an object with a string `text`; names the file and line.
    """
    for number, line in zip(count(first_line), lines, strict=False):
        try:
            text = json.loads(line)["text"]
            text.encode()
        except (UnicodeDecodeError, UnicodeEncodeError, json.JSONDecodeError) as error:
            fault = f"{error.msg} column {error.colno}" if isinstance(error, json.JSONDecodeError) else error.reason
            raise RelmError(f"{path}:{number}: not valid JSON in UTF-8: {fault}; {AGAIN}") from None
        except (KeyError, TypeError, AttributeError):
            found = line[:60].decode("utf-8", "replace").strip()
            raise RelmError(f'{path}:{number}: expected an object with a string "text", found {found}; {AGAIN}') from None
        yield text


def first_texts(documents: list[Path], limit: int) -> Iterator[str]:
    """Texts of several files in order until their UTF-8 fills `limit` bytes; the last one is cut there, between characters."""
    left = limit
    for path in documents:
        with open(path, "rb") as lines:
            for text in document_texts(lines, path):
                encoded = text.encode()
                yield text if len(encoded) <= left else encoded[:left].decode("utf-8", "ignore")
                left -= len(encoded)
                if left <= 0:
                    return
