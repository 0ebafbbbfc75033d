"""Collect the lines of plain text from those of wikitext: paragraphs, headings of sections that have content, list items."""

import functools
import re
from collections.abc import Callable, Collection

from relm.corpus import compiled

INDENT = "\x1f"
"""Stands for the space that begins a line of the source, which makes it preformatted."""

_CELL = re.compile(r"[|!] *(?:v?align|style|class|width|height|colspan|rowspan|bgcolor|scope) *=", re.IGNORECASE)
_HEADING = re.compile(r"(={1,6})(.+)\1", re.DOTALL)
_WORD = re.compile(r"[^\W_]")
_MARKS = frozenset(f"{INDENT}*#:;|={{-!")  # first characters of lines outside paragraphs
_BROKEN = ("{{", "}}", "{|", "|}", "\n|-", "\n|+", "\n!!")  # remains of a template or table without its end


def collect_lines(text: str, dropped: Collection[str]) -> str:
    """Return one paragraph, heading or list item a line, from wikitext without links, templates and tables.

    Sections whose titles, in lower case, are in ``dropped`` are left out.
    """
    has_rows = functools.cache(lambda: any(mark in text for mark in _BROKEN))
    is_text = functools.partial(_is_text, has_rows=has_rows)
    if compiled.collect_lines:
        return compiled.collect_lines(text, functools.partial(_read_heading, dropped=dropped), is_text)
    outline = _Outline()
    paragraph: list[str] = []
    for line in text.split("\n"):
        if line[:1] in (" ", "\t"):  # something before it vanished
            line = line.lstrip(" \t")
            is_plain = bool(line)
        else:
            is_plain = line != "" and line[0] not in _MARKS
        if is_plain:
            paragraph.append(line)
            continue
        if paragraph:
            outline.text(" ".join(paragraph))
            paragraph = []
        if not line:
            continue
        if line[0] == "=" and (heading := _read_heading(line, dropped)):
            outline.heading(*heading)
        elif not outline.dropping and is_text(line):
            outline.text(_read_marked(line))
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
    heading = _HEADING.fullmatch(line.rstrip())
    title = heading[2].strip() if heading else ""
    return (len(heading[1]), title, title.rstrip(":").lower() in dropped) if heading and title else None


def _read_marked(line: str) -> str:
    """Return the text of a list item, an indented line, or what follows a ruler."""
    text = line.lstrip(f"*#:; \t{INDENT}")
    return text.lstrip("-") if text.startswith("----") else text


def _is_text(line: str, has_rows: Callable[[], bool]) -> bool:
    """Return whether a line has text, unlike rulers, rows of unfinished tables (`has_rows`) and indented drawings."""
    is_row = line.startswith(("|", "{|", "{{")) or (line[0] == "!" and "|" in line)
    if is_row and (_CELL.match(line) or has_rows()):
        return False
    if line[0] == INDENT and ("   " in (shown := line.strip()) or "|" in line or "___" in line or "---" in line):
        # A drawing is mostly lines and spaces.
        spaces = shown.count(" ")
        return len(_WORD.findall(shown)) > 2 / 3 * (len(shown) - spaces) and spaces < 0.4 * len(shown)
    return bool(_WORD.search(line))
