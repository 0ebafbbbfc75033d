"""Collect the lines of plain text from those of wikitext: paragraphs, headings of sections that have content, list items."""

import functools
import re
from collections.abc import Collection

from relm.corpus import compiled

_WORD = re.compile(r"[^\W_]")
_MARKS = frozenset(" \t*#:;|={-!")  # first characters of lines that do not belong to a paragraph


def collect_lines(text: str, dropped: Collection[str]) -> str:
    """Return one paragraph, heading or list item a line; the lines of a paragraph are concatenated.

    Args:
        text: wikitext without links, templates and tables.
        dropped: titles, in lower case, of the sections that are left out.
    """
    if compiled.collect_lines:
        return compiled.collect_lines(text, functools.partial(_read_heading, dropped=dropped), _is_text)
    outline = _Outline()
    paragraph: list[str] = []
    for line in text.split("\n"):
        if line and line[0] not in _MARKS:
            paragraph.append(line)
            continue
        if paragraph:
            outline.text(" ".join(paragraph))
            paragraph = []
        if not line:
            continue
        if line[0] == "=" and (heading := _read_heading(line, dropped)):
            outline.heading(*heading)
        elif not outline.dropping and _is_text(line):
            outline.text(line.lstrip("*#:; \t"))
    outline.text(" ".join(paragraph))
    return "\n".join(outline.lines)


class _Outline:
    """Collects lines; headings wait until their section turns out to have content."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.waiting: list[tuple[int, str]] = []
        self.dropping = 0

    def heading(self, level: int, title: str, is_dropped: bool) -> None:
        if self.dropping and level > self.dropping:
            return
        while self.waiting and self.waiting[-1][0] >= level:
            self.waiting.pop()
        self.dropping = level if is_dropped else 0
        if not is_dropped:
            self.waiting.append((level, title))

    def text(self, line: str) -> None:
        if self.dropping or not line:
            return
        if self.waiting:
            self.lines.extend([title for _, title in self.waiting])
            self.waiting.clear()
        self.lines.append(line)


def _read_heading(line: str, dropped: Collection[str]) -> tuple[int, str, bool] | None:
    """Return level and title of ``== Title ==``, and whether its section is left out; None for other lines."""
    line = line.rstrip()
    if len(line) < 3 or line[-1] != "=":
        return None
    level = min(len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("=")), 6)
    title = line[level:-level].strip()
    return (level, title, title.rstrip(":").lower() in dropped) if title else None


def _is_text(line: str) -> bool:
    """Return whether a line has text; rulers, rows of tables, and indented drawings in typewriter style have none."""
    if line[0] == " " and ("   " in line.strip() or "|" in line or "___" in line or "---" in line):
        return False
    # A row belongs to a table or template that was never closed.
    is_row = line.startswith(("|", "{|", "{{")) or (line[0] == "!" and "|" in line)
    return not is_row and bool(_WORD.search(line))
