"""The description of a file of examples, as text for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relm.examples.token_text import paragraph

BAR = 36
NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass
class SplitStatistics:
    """The counts of one split or file."""

    name: str
    counts: Mapping[str, Any]
    """Name -> count or share; None is left out."""
    histogram: Sequence[Sequence[int]] = ()


@dataclass
class Contents:
    """The description of a file."""

    path: Path
    kind: str
    """The kind of file in a few words."""
    notes: dict[str, str] = field(default_factory=dict)
    statistics: list[SplitStatistics] = field(default_factory=list)
    examples: list[tuple[str, list[str]]] = field(default_factory=list)
    """Heading and lines of text of each example."""


def format_contents(contents: Contents) -> str:
    """Return a description as text for a terminal."""
    lines = [str(contents.path), f"  {contents.kind}"]
    lines += [_labelled(name, note) for name, note in contents.notes.items()]
    for statistics in contents.statistics:
        counts = [_count(name, count) for name, count in statistics.counts.items() if count is not None]
        lines += ["", _labelled(statistics.name, ", ".join(counts)), *_chart(statistics.histogram)]
    for heading, paragraphs in contents.examples:
        lines += ["", heading, *(paragraph(text) for text in paragraphs)]
    return "\n".join(lines)


def _labelled(name: str, text: str) -> str:
    margin = f"  {name:10} "
    return paragraph(text, " " * len(margin)).replace(" " * len(margin), margin, 1).replace(NO_BREAK, " ")


def _count(name: str, count: float) -> str:
    words = f"{count:.1%} {name}" if isinstance(count, float) else f"{count:,} {name.removesuffix('s') if count == 1 else name}"
    return words.replace(" ", NO_BREAK)


def _chart(histogram: Sequence[Sequence[int]]) -> list[str]:
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
