"""Read the texts of documents in bulk, without the JSON parser, where their lines have the form in which relm writes them.

A line is plain if it is ``{"id":"...","title":"...","text":"..."}``, with or without spaces between the parts, and if no string
has an escape other than those of two characters, such as ``\\n``. Whatever else JSON allows, and every fault, is the parser's:
the function here recognises a line or returns None, and never decides that a line is wrong.
"""

import re

import numpy as np
import numpy.typing as npt

from relm.corpus.utf8_texts import SEPARATOR, Utf8Texts

# The start of a line up to its text. The bytes below U+0020, which JSON forbids in strings, are checked apart.
_STRING = rb'"(?:[^"\\]|\\["\\/bfnrt])*"'
_HEAD = re.compile(rb'\{ *"id": *' + _STRING + rb', *"title": *' + _STRING + rb', *"text": *"')
_TAIL = b'"}'
_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
# Both are forbidden in the strings of JSON: one separates texts, the other stands for an escaped backslash.
_SEPARATOR, _ESCAPED_BACKSLASH = b"\0", b"\1"
# The second byte of an escape -> its character; 0 where that is no escape of two characters.
_ESCAPED = np.zeros(256, dtype=np.uint8)
_ESCAPED[list(b'"\\/bfnrt')] = list(b'"' + _ESCAPED_BACKSLASH + b"/\b\f\n\r\t")


def read_plain_texts(content: bytes) -> Utf8Texts | None:
    """Return the text of each line in UTF-8, or None unless all lines are plain.

    Args:
        content: whole lines; the last one may lack its newline.
    """
    if not content:
        return Utf8Texts.of([])
    if (bodies := _bodies(content)) is None or not _is_utf8(content):
        return None
    control = np.count_nonzero(np.frombuffer(content, dtype=np.uint8) < _SPACE)
    if control != len(bodies) - (not content.endswith(b"\n")):
        return None
    texts = _unescaped(_SEPARATOR.join(bodies))
    if texts is None:
        return None
    joined = texts.replace(_SEPARATOR, SEPARATOR)
    return Utf8Texts(_split(texts), joined, few_controls=True)  # which only a longer escape could give


def _bodies(content: bytes) -> list[bytes] | None:
    """Return what each line has between the quotes of its text; None if a line has another form."""
    bodies = []
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        head = _HEAD.match(content, start, end)
        if head is None or not content.endswith(_TAIL, head.end(), end):
            return None
        bodies.append(content[head.end() : end - len(_TAIL)])
        start = end + 1
    return bodies


def _is_utf8(content: bytes) -> bool:
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unescaped(bodies: bytes) -> bytes | None:
    """Return the texts of concatenated bodies; None if one has a quote or a backslash that begins no escape."""
    data = np.frombuffer(bytearray(bodies), dtype=np.uint8)
    escapes = _escapes(np.flatnonzero(data == _BACKSLASH))
    if len(escapes) and escapes[-1] == len(data) - 1:
        return None
    escaped = data[escapes + 1]
    characters = _ESCAPED[escaped]
    if not characters.all() or np.count_nonzero(data == _QUOTE) != np.count_nonzero(escaped == _QUOTE):
        return None
    data[escapes + 1] = characters
    texts = data.tobytes().replace(b"\\", b"")  # three times as fast as a selection by numpy
    return texts.replace(_ESCAPED_BACKSLASH, b"\\") if _ESCAPED_BACKSLASH in texts else texts


def _escapes(backslashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of the backslashes that begin an escape: of a run of them the first, the third and so on."""
    follows = np.diff(backslashes, prepend=-2) == 1
    if not follows.any():
        return backslashes
    order = np.arange(len(backslashes))
    runs = np.maximum.accumulate(np.where(follows, 0, order))
    escapes: npt.NDArray[np.int64] = backslashes[(order - runs) % 2 == 0]
    return escapes


def _split(texts: bytes) -> list[bytes]:
    """Return ``texts.split(_SEPARATOR)``, which looks at each byte, by a search for the separator."""
    found = []
    start = 0
    while (end := texts.find(_SEPARATOR, start)) >= 0:
        found.append(texts[start:end])
        start = end + 1
    return [*found, texts[start:]]
