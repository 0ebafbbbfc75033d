"""Counts, notes and examples as lines of text for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from relm.examples.token_text import paragraph

BAR = 36
NO_BREAK = "\N{NO-BREAK SPACE}"


def format_note(name: str, text: str) -> str:
    """Return a text behind its name, wrapped."""
    margin = f"  {name:10} "
    return paragraph(text, " " * len(margin)).replace(" " * len(margin), margin, 1).replace(NO_BREAK, " ")


def format_counts(name: str, counts: Mapping[str, Any], histogram: Sequence[Sequence[int]] = ()) -> list[str]:
    """Return the lines on a split or file: its counts and shares, without those that are None, and a chart of lengths."""
    shown = [_format_count(name, count) for name, count in counts.items() if count is not None]
    return ["", format_note(name, ", ".join(shown)), *_draw_chart(histogram)]


def format_example(heading: str, paragraphs: Sequence[str]) -> list[str]:
    """Return the lines of an example."""
    return ["", heading, *map(paragraph, paragraphs)]


def _format_count(name: str, count: float) -> str:
    words = f"{count:.1%} {name}" if isinstance(count, float) else f"{count:,} {name.removesuffix('s') if count == 1 else name}"
    return words.replace(" ", NO_BREAK)


def _draw_chart(histogram: Sequence[Sequence[int]]) -> list[str]:
    """Return a bar for each range of lengths, the longest of `BAR` characters."""
    if not histogram:
        return []
    most = max(count for _, count in histogram)
    labels = [f"{bound // 2 + 1:,} to {bound:,}" if bound > 2 else str(bound) for bound, _ in histogram]
    margin, digits = max(map(len, labels)), len(f"{most:,}")
    lines = [f"  {'tokens':>{margin}}"]
    for label, (_, count) in zip(labels, histogram, strict=True):
        bar = "█" * max(1, round(BAR * count / most)) if count else ""
        lines.append(f"  {label:>{margin}}  {count:>{digits},} {bar}".rstrip())
    return lines
