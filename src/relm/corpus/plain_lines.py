"""Read the texts of documents in bulk, without the JSON parser, from lines in the form in which relm writes them.

A line is plain if it is ``{"id":"...","title":"...","text":"..."}``, with or without spaces between the parts, and all escapes
in its strings have two characters, such as ``\\n``. All else that JSON allows, and every fault, is left to the parser: this
module recognises a line or returns None, and never decides that a line is wrong.
"""

import re

import numpy as np
import numpy.typing as npt

from relm.corpus.utf8_texts import SEPARATOR, Utf8Texts, valid_leads

# The start of a line up to its text.
_PLAIN = rb'[^"\\\x00-\x1f]*'
_STRING = rb'"' + _PLAIN + rb'(?:\\["\\/bfnrt]' + _PLAIN + rb')*"'
_HEAD = re.compile(rb'\{ *"id": *' + _STRING + rb', *"title": *' + _STRING + rb', *"text": *"')
_TAIL = b'"}'
_QUOTE, _BACKSLASH, _SPACE = (np.uint8(ord(character)) for character in '"\\ ')
# The first, never in UTF-8, separates texts; the second, forbidden in the strings of JSON, marks an escaped backslash.
_SEPARATOR, _ESCAPED_BACKSLASH = b"\xff", b"\1"
# The second byte of an escape -> its character; 0 for any other second byte.
_ESCAPED = np.zeros(256, dtype=np.uint8)
_ESCAPED[list(b'"\\/bfnrt')] = list(b'"' + _ESCAPED_BACKSLASH + b"/\b\f\n\r\t")


def read_plain_texts(content: bytes) -> Utf8Texts | None:
    """Return the text of each line in UTF-8; None: a line is not plain. The last one may lack its newline."""
    if not content:
        return Utf8Texts.of([])
    if (bodies := _bodies(content)) is None:
        return None
    joined = bytearray(_SEPARATOR).join(bodies)
    escaped = _unescape(np.frombuffer(joined, dtype=np.uint8))
    if escaped is None:
        return None
    joined = joined.replace(b"\\", b"")  # three times as fast as a selection by numpy
    if _ESCAPED_BACKSLASH[0] in escaped:
        joined = joined.replace(_ESCAPED_BACKSLASH, b"\\")
    data = np.frombuffer(joined, dtype=np.uint8)
    texts = _split(joined, data)
    if len(texts) != len(bodies) or (leads := valid_leads(data)) is None:
        return None
    return Utf8Texts(texts, joined, blanks_only=ord("\b") not in escaped, known_leads=leads)


def _bodies(content: bytes) -> list[memoryview] | None:
    """Return the text between the quotes of each line, with its escapes; None: a line has another form."""
    bodies = []
    view = memoryview(content)
    start, size = 0, len(content)
    match, find = _HEAD.match, content.find
    while start < size:
        end = find(b"\n", start)
        if end < 0:
            end = size
        head = match(content, start, end)
        if head is None or not content.endswith(_TAIL, head.end(), end) or not _is_utf8(head[0]):
            return None
        bodies.append(view[head.end() : end - len(_TAIL)])
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


def _unescape(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
    """Put the character of each escape into its second byte, and return the characters; the backslash is removed later.

    None: a text has a control character, a quote, or a backslash without an escape.
    """
    if data.min(initial=_SPACE) < _SPACE:
        return None
    escapes = _escapes(np.flatnonzero(data == _BACKSLASH))
    if len(escapes) and escapes[-1] == len(data) - 1:
        return None
    escaped = data[escapes + 1]
    characters = _ESCAPED[escaped]
    if not characters.all() or np.count_nonzero(data == _QUOTE) != np.count_nonzero(escaped == _QUOTE):
        return None
    data[escapes + 1] = characters
    return characters


def _escapes(backslashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the positions of backslashes that begin an escape: in a run the first, the third and so on."""
    follows = np.diff(backslashes, prepend=-2) == 1
    if not follows.any():
        return backslashes
    order = np.arange(len(backslashes))
    runs = np.maximum.accumulate(np.where(follows, 0, order))
    escapes: npt.NDArray[np.int64] = backslashes[(order - runs) % 2 == 0]
    return escapes


def _split(joined: bytearray, data: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return the texts between the separators, and put those of `Utf8Texts` in their places.

    A search is faster than ``split``, which looks at each byte.
    """
    texts, ends = [], []
    start = 0
    view, find = memoryview(joined), joined.find
    while (end := find(_SEPARATOR, start)) >= 0:
        texts.append(view[start:end].tobytes())
        ends.append(end)
        start = end + 1
    texts.append(view[start:].tobytes())
    data[ends] = SEPARATOR[0]
    return texts
