"""A pipeline of IPUs as SVG text: the IPUs in a ring, in the order of execution, and the schedule of its first micro-batches.

The drawings have the page's own colours, by classes of its style sheet, and no identifiers.
"""

import itertools
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relm.devices.ipu.schedule import pipeline_schedule
from relm.forecast.pipeline_memory import Stage, list_stages
from relm.forecast.pipeline_table import name_segments
from relm.recipes.pipeline import Pipeline

WIDE, NARROW = 880, 358
"""Widths in pixels: of the page's column, and of a phone's."""
SHOWN_MICRO_BATCHES = 4
# Height of a line of text, padding within boxes, offset of the outlines of further replicas.
LINE, PADDING, OFFSET = 16, 9, 5
# Width of a letter, on average and at most, of text that is 12 pixels high.
LETTER = 6.6


class Box(NamedTuple):
    """The rectangle of one IPU, in pixels."""

    x: float
    y: float
    width: float
    height: float

    @property
    def centre(self) -> tuple[float, float]:
        """Return the middle of the rectangle."""
        return self.x + self.width / 2, self.y + self.height / 2


def place_in_ring(count: int, columns: int) -> list[tuple[int, int]]:
    """Return the (column, row) of each IPU in a ring of two rows, or of two columns, so that neighbours lie side by side.

    >>> place_in_ring(8, columns=4)
    [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (2, 1), (1, 1), (0, 1)]
    >>> place_in_ring(6, columns=2)
    [(0, 0), (1, 0), (1, 1), (1, 2), (0, 2), (0, 1)]
    """
    if count <= 2:
        return [(column, 0) for column in range(count)]
    rows = count // columns
    down = [(columns - 1, row) for row in range(1, rows)]
    back = [(column, rows - 1) for column in range(columns - 2, -1, -1)]
    up = [(0, row) for row in range(rows - 2, 0, -1)]
    return [*((column, 0) for column in range(columns)), *down, *back, *up]


def draw_pipeline(pipeline: Pipeline, parameters: Sequence[int], narrow: bool = False) -> str:
    """Return an SVG of one replica's IPUs as boxes with their stages, and arrows from each stage to the next.

    Args:
        pipeline: the pipeline of a phase.
        parameters: the count of parameters on each IPU.
        narrow: draw for a phone.
    """
    width, count, stages = NARROW if narrow else WIDE, pipeline.ipus_per_replica, list_stages(pipeline)
    columns = 2 if narrow else max(2, count // 2)
    gap = 34 if columns <= 4 else 22
    outlines = min(pipeline.replicas, 4) - 1
    side = min(230.0, (width - 2 * PADDING - outlines * OFFSET - (columns - 1) * gap) / columns)
    texts = [_list_lines(ipu, stages, parameters[ipu], side) for ipu in range(count)]
    height = 2 * PADDING + LINE * max(len(lines) for lines in texts)
    places = place_in_ring(count, columns)
    boxes = [Box(PADDING + column * (side + gap), PADDING + row * (height + gap), side, height) for column, row in places]
    frame = Box(0.5, 0.5, max(_right(box) for box in boxes) + PADDING, max(_bottom(box) for box in boxes) + PADDING)
    parts = [
        *_draw_outlines(frame, outlines),
        *_draw_arrows(boxes, [stage.ipu for stage in stages]),
        *(part for box, lines in zip(boxes, texts, strict=True) for part in _draw_box(box, lines)),
    ]
    return _document(width, frame.height + outlines * OFFSET + 1, parts)


def _right(box: Box) -> float:
    return box.x + box.width


def _bottom(box: Box) -> float:
    return box.y + box.height


def _list_lines(ipu: int, stages: Sequence[Stage], parameters: int, width: float) -> list[tuple[str, str]]:
    """Return the (class, text) of each line in a box: the IPU, its stages by number, its parameters."""
    letters = int((width - 2 * PADDING) / LETTER)
    lines = [("name", f"IPU {ipu}")]
    for number, stage in enumerate(stages, 1):
        if stage.ipu == ipu:
            text = f"{number}: {', '.join(name_segments(stage.segments))}"
            lines += [("segment", line) for line in textwrap.wrap(text, letters, subsequent_indent="\u2002")]
    counted = f"{parameters / 1e6:,.1f} M parameters"
    return lines + [("soft", line) for line in textwrap.wrap(counted, letters)]


def _draw_outlines(frame: Box, count: int) -> Iterator[str]:
    """Yield the frame of the replica that is drawn, before the edges of others behind it."""
    for number in range(count, -1, -1):
        x, y = frame.x + number * OFFSET, frame.y + number * OFFSET
        yield f'<rect class="replica" x="{x:g}" y="{y:g}" width="{frame.width:g}" height="{frame.height:g}" rx="10"/>'


def _draw_box(box: Box, lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f'<rect class="ipu" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}" rx="7"/>'
    for number, (kind, text) in enumerate(lines):
        y = box.y + PADDING + LINE * (number + 0.75)
        yield f'<text class="{kind}" x="{box.x + PADDING:g}" y="{y:g}">{text}</text>'


def _draw_arrows(boxes: Sequence[Box], ipus: Sequence[int]) -> Iterator[str]:
    """Yield an arrow for each change of IPU; several between the same two lie side by side."""
    between: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one, other in itertools.pairwise(ipus):
        between[min(one, other), max(one, other)].append((one, other))
    for changes in between.values():
        for number, (one, other) in enumerate(changes):
            yield _draw_arrow(boxes[one], boxes[other], 14 * (number - (len(changes) - 1) / 2))


def _draw_arrow(start: Box, end: Box, shift: float) -> str:
    """Return an arrow between two boxes that lie side by side or one below the other, `shift` pixels from their middle."""
    (x, y), (end_x, end_y) = start.centre, end.centre
    right, down = (end_x > x) - (end_x < x), (end_y > y) - (end_y < y)
    if abs(end_x - x) >= abs(end_y - y):  # side by side
        down, y = 0, y + shift
        end_y = y
    else:
        right, x = 0, x + shift
        end_x = x
    x, y = x + right * start.width / 2, y + down * start.height / 2
    end_x, end_y = end_x - right * end.width / 2, end_y - down * end.height / 2
    back_x, back_y = end_x - 7 * right, end_y - 7 * down
    head = f"{end_x:g},{end_y:g} {back_x + 4 * down:g},{back_y + 4 * right:g} {back_x - 4 * down:g},{back_y - 4 * right:g}"
    line = f'<line class="arrow" x1="{x:g}" y1="{y:g}" x2="{back_x:g}" y2="{back_y:g}"/>'
    return f'{line}<polygon class="head" points="{head}"/>'


def draw_schedule(pipeline: Pipeline, narrow: bool = False) -> str:
    """Return an SVG of the stages' work on the first micro-batches of an update, one row for each stage, time to the right.

    Args:
        pipeline: the pipeline of a phase.
        narrow: draw for a phone.
    """
    width, left, row = NARROW if narrow else WIDE, 62 if narrow else 92, 26
    stages, shown = list_stages(pipeline), min(SHOWN_MICRO_BATCHES, pipeline.gradient_accumulation)
    clocks = shown + 2 * len(stages) - 2
    cell = min(34.0, (width - left - 1) / clocks)
    parts = []
    for number, stage in enumerate(stages):
        label = f"{number + 1} · IPU {stage.ipu}" if narrow else f"stage {number + 1} · IPU {stage.ipu}"
        y = number * row
        parts.append(f'<text class="soft" x="0" y="{y + 16:g}">{label}</text>')
        parts.append(
            f'<line class="row" x1="{left}" y1="{y + row - 1.5:g}" x2="{left + clocks * cell:g}" y2="{y + row - 1.5:g}"/>'
        )
    for work in pipeline_schedule(len(stages), max(pipeline.gradient_accumulation, 2 * len(stages) - 1)):
        if work.clock >= clocks:
            break
        if work.micro_batch < shown:
            # Forward in the upper half of a row and backward in the lower one: the last stage does both at once.
            x, y = left + work.clock * cell, work.stage * row + (12 if work.is_backward else 0)
            kind = "backward" if work.is_backward else "forward"
            parts.append(f'<rect class="{kind}" x="{x + 0.5:g}" y="{y + 0.5:g}" width="{cell - 1:g}" height="11" rx="2"/>')
            if cell >= 11:
                parts.append(f'<text class="cell" x="{x + cell / 2:g}" y="{y + 9.5:g}">{work.micro_batch + 1}</text>')
    return _document(width, len(stages) * row, parts)


def _document(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
