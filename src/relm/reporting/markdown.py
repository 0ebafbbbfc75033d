"""Escape text of recipes for Markdown, so that it makes no heading, table, link or HTML.

Code between backticks stays code.
"""

import re

_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:.+?)(?<!`)\1(?!`)")
_INLINE = re.compile(r"[\\\[\]<]")
# These begin a new block at the start of a line, also inside a list item.
_BLOCK = re.compile(r"(#{1,6}(?=\s|$)|>|[-+*](?=\s|$)|~~~|```|=+\s*$|([-*_]\s*){3,}$|\|)")
_NUMBER = re.compile(r"(\d{1,9})([.)])(?=\s|$)")


def escape_prose(text: object) -> str:
    r"""Return Markdown that shows a text literally.

    >>> print(escape_prose("# Verdict: [consistent](javascript:x) with `<s>`"))
    \# Verdict: \[consistent\](javascript:x) with `<s>`
    """
    line = " ".join(str(text).split())
    parts, end = [], 0
    for code in _CODE.finditer(line):
        parts += [_escape(line[end : code.start()]), code[0]]
        end = code.end()
    escaped = "".join([*parts, _escape(line[end:])])
    escaped = _NUMBER.sub(r"\1\\\2", escaped, count=1) if _NUMBER.match(escaped) else escaped
    return f"\\{escaped}" if _BLOCK.match(escaped) else escaped


def _escape(text: str) -> str:
    return _INLINE.sub(lambda found: f"\\{found[0]}", text)


def escape_cell(text: object) -> str:
    """Return a text as a cell of a table."""
    return escape_prose(text).replace("|", "\\|")


def escape_target(address: str) -> str:
    """Return an address as the target of a link; a parenthesis would end it."""
    return address.replace("(", "%28").replace(")", "%29")
