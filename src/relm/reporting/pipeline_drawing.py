"""A pipeline of IPUs as SVG text: the IPUs in a ring, in the order of execution, and the schedule of its first micro-batches.

The drawings have the page's own colours, by classes of its style sheet, and no identifiers.
"""

import itertools
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relm.devices.ipu.schedule import pipeline_schedule
from relm.forecast.pipeline_memory import ForwardStage, list_stages
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
    gap = 32 if columns <= 4 else 16
    outlines = min(pipeline.replicas, 4) - 1
    side = min(230.0, (width - 2 * PADDING - outlines * OFFSET - (columns - 1) * gap - 2) / columns)
    texts = [_list_lines(ipu, stages, parameters[ipu], side) for ipu in range(count)]
    boxes = _place_boxes(place_in_ring(count, columns), [len(lines) for lines in texts], side, gap)
    frame = Box(0.5, 0.5, max(_right(box) for box in boxes) + PADDING, max(_bottom(box) for box in boxes) + PADDING)
    parts = [
        *_draw_outlines(frame, outlines),
        *_draw_arrows(boxes, [stage.ipu for stage in stages]),
        *(part for box, lines in zip(boxes, texts, strict=True) for part in _draw_box(box, lines)),
    ]
    return _document(width, frame.height + outlines * OFFSET + 1, parts)


def _place_boxes(places: Sequence[tuple[int, int]], lines: Sequence[int], side: float, gap: float) -> list[Box]:
    """Return the boxes of IPUs; those of one row are as high as the one with the most lines of text."""
    heights: dict[int, int] = {}
    for (_, row), count in zip(places, lines, strict=True):
        heights[row] = max(heights.get(row, 0), 2 * PADDING + LINE * count)
    tops = {row: PADDING + sum(heights[above] + gap for above in range(row)) for row in heights}
    return [Box(PADDING + column * (side + gap), tops[row], side, heights[row]) for column, row in places]


def _right(box: Box) -> float:
    return box.x + box.width


def _bottom(box: Box) -> float:
    return box.y + box.height


def _list_lines(ipu: int, stages: Sequence[ForwardStage], parameters: int, width: float) -> list[tuple[str, str]]:
    """Return the (class, text) of each line in a box: the IPU, its stages by number, its parameters."""
    letters = int((width - 2 * PADDING) / LETTER)
    lines = [("name", f"IPU {ipu}")]
    for number, stage in enumerate(stages, 1):
        if stage.ipu == ipu:
            first, *others = name_segments(stage.segments)
            for text in (f"{number}: {first}", *(f"\u2002{name}" for name in others)):
                lines += [("segment", line) for line in textwrap.wrap(text, letters, subsequent_indent="\u2002")]
    return lines + [("soft", line) for line in textwrap.wrap(_format_parameters(parameters), letters)]


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
            beside = 14 * (number - (len(changes) - 1) / 2)
            yield _draw_arrow(boxes[one], boxes[other], beside if one < other else -beside)


def _draw_arrow(start: Box, end: Box, shift: float) -> str:
    """Return an arrow from the edge of one box to that of another, `shift` pixels beside the line between their centres."""
    (x, y), (end_x, end_y) = start.centre, end.centre
    length = math.hypot(end_x - x, end_y - y)
    right, down = (end_x - x) / length, (end_y - y) / length
    x, y, end_x, end_y = x - shift * down, y + shift * right, end_x - shift * down, end_y + shift * right
    leaves, arrives = _distance_to_edge(start, right, down), _distance_to_edge(end, right, down)
    x, y, end_x, end_y = x + leaves * right, y + leaves * down, end_x - arrives * right, end_y - arrives * down
    back_x, back_y = end_x - 7 * right, end_y - 7 * down
    points = [(end_x, end_y), (back_x + 4 * down, back_y - 4 * right), (back_x - 4 * down, back_y + 4 * right)]
    head = " ".join(f"{across:g},{along:g}" for across, along in points)
    line = f'<line class="arrow" x1="{x:g}" y1="{y:g}" x2="{back_x:g}" y2="{back_y:g}"/>'
    return f'{line}<polygon class="head" points="{head}"/>'


def _distance_to_edge(box: Box, right: float, down: float) -> float:
    """Return the distance from the centre of a box to its edge in a direction of length 1."""
    across = box.width / 2 / abs(right) if right else math.inf
    along = box.height / 2 / abs(down) if down else math.inf
    return min(across, along)


def _format_parameters(count: int) -> str:
    """Return a count of parameters in three digits or so.

    >>> _format_parameters(38_608_896), _format_parameters(54_080), _format_parameters(0)
    ('38.6 M parameters', '54 k parameters', 'no parameters')
    """
    if not count:
        return "no parameters"
    return f"{count / 1e6:,.1f} M parameters" if count >= 1e6 else f"{count / 1e3:,.0f} k parameters"


def draw_schedule(pipeline: Pipeline, narrow: bool = False) -> str:
    """Return an SVG of the stages' work on the first micro-batches of an update, one row for each stage, time to the right.

    Args:
        pipeline: the pipeline of a phase.
        narrow: draw for a phone.
    """
    width, left, row = NARROW if narrow else WIDE, 66 if narrow else 110, 26
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
