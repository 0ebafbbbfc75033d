"""A pipeline's drawings: each IPU is a box with its stages, arrows join neighbours, and the schedule is the pipeline's own."""

import itertools
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from relm.artifact import record_of, write_sidecar
from relm.forecast.pipeline_memory import list_stages
from relm.recipes.pipeline import Pipeline
from relm.recipes.project import Project
from relm.reporting.findings import gather
from relm.reporting.pipeline import report_pipeline
from relm.reporting.pipeline_drawing import NARROW, WIDE, draw_pipeline, draw_schedule, place_in_ring
from relm.reporting.report import report_page
from small_project import CHECKOUT
from small_tokenizers import save_words

SVG = "{http://www.w3.org/2000/svg}"
SMALL = Pipeline(layers_per_ipu=[0, 4, 4, 4], position_embedding=1, replicas=4, gradient_accumulation=512)
BACK_AND_FORTH = Pipeline(layers_per_ipu=[1, 5, 5, 5], position_embedding=1, gradient_accumulation=64)
ONE = Pipeline(layers_per_ipu=[2], gradient_accumulation=12)
# The head lies on the IPU across the ring, beside one without layers.
ACROSS = Pipeline(layers_per_ipu=[0, 1, 1, 0], position_embedding=1, gradient_accumulation=16)
PIPELINES = [SMALL, BACK_AND_FORTH, ONE, ACROSS, Pipeline(layers_per_ipu=[2] * 16, replicas=2, gradient_accumulation=64)]


def parts(svg: str, tag: str, kind: str) -> list[ElementTree.Element]:
    return [part for part in ElementTree.fromstring(svg).iter(f"{SVG}{tag}") if part.get("class") == kind]


def numbers(part: ElementTree.Element, *names: str) -> list[float]:
    return [float(part.get(name, "nan")) for name in names]


def drawn(pipeline: Pipeline, narrow: bool = False) -> str:
    return draw_pipeline(pipeline, [1_500_000] * pipeline.ipus_per_replica, narrow)


@pytest.mark.parametrize("columns", [1, 2, 4, 8])
def test_neighbours_in_a_ring_lie_side_by_side(columns: int) -> None:
    for count, across in {(2 * columns, max(2, columns)), (2 * columns, 2)}:
        places = place_in_ring(count, across)
        assert len(set(places)) == count
        for (column, row), (next_column, next_row) in itertools.pairwise(places + places[:1]):
            assert abs(next_column - column) + abs(next_row - row) == 1


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: str(each.layers_per_ipu))
def test_a_box_for_each_ipu_and_an_arrow_for_each_change_lie_within_the_drawing(pipeline: Pipeline, narrow: bool) -> None:
    svg = drawn(pipeline, narrow)
    boxes = [numbers(box, "x", "y", "width", "height") for box in parts(svg, "rect", "ipu")]
    assert len(boxes) == pipeline.ipus_per_replica
    assert len(parts(svg, "line", "arrow")) == pipeline.stages - 1
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    assert width == (NARROW if narrow else WIDE)
    outlines = [numbers(box, "x", "y", "width", "height") for box in parts(svg, "rect", "replica")]
    assert len(outlines) == min(pipeline.replicas, 4)
    assert all(x >= 0 and y >= 0 and x + across < width and y + down < height for x, y, across, down in [*boxes, *outlines])
    for (x, y, across, down), (other_x, other_y, *_) in itertools.combinations(boxes, 2):
        assert other_x >= x + across or other_x + across <= x or other_y >= y + down or other_y < y


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: str(each.layers_per_ipu))
def test_an_arrow_leads_from_the_edge_of_one_box_to_that_of_the_next(pipeline: Pipeline) -> None:
    svg = drawn(pipeline)
    boxes = [numbers(box, "x", "y", "width", "height") for box in parts(svg, "rect", "ipu")]

    def on_edge(x: float, y: float, box: list[float]) -> bool:
        left, top, width, height = box
        across, along = abs(x - left - width / 2) - width / 2, abs(y - top - height / 2) - height / 2
        return abs(max(across, along)) < 0.1  # on one edge, and not beyond another

    changes = [(one.ipu, other.ipu) for one, other in itertools.pairwise(list_stages(pipeline))]
    for line, head in zip(parts(svg, "line", "arrow"), parts(svg, "polygon", "head"), strict=True):
        start = numbers(line, "x1", "y1")
        end = [float(number) for number in str(head.get("points")).split(" ")[0].split(",")]
        drawn_changes = [each for each in changes if on_edge(*start, boxes[each[0]]) and on_edge(*end, boxes[each[1]])]
        assert drawn_changes
        changes.remove(drawn_changes[0])
    assert changes == []


def test_boxes_name_their_stages_in_the_order_of_execution() -> None:
    texts = [str(part.text).strip() for part in ElementTree.fromstring(drawn(BACK_AND_FORTH)).iter(f"{SVG}text")]
    assert texts == [
        *("IPU 0", "1: token embedding", "3: layer 0", "7: head", "1.5 M parameters"),
        *("IPU 1", "2: position embedding", "4: layers 1-5", "1.5 M parameters"),
        *("IPU 2", "5: layers 6-10", "1.5 M parameters", "IPU 3", "6: layers 11-15", "1.5 M parameters"),
    ]


def test_arrows_between_the_same_two_ipus_do_not_cover_one_another() -> None:
    heights = [numbers(line, "y1", "y2") for line in parts(drawn(BACK_AND_FORTH), "line", "arrow")]
    assert len({y for y, end in heights if y == end}) == 4  # three between IPUs 0 and 1, and one below from 2 to 3
    two = Pipeline(layers_per_ipu=[2, 2], position_embedding=1, gradient_accumulation=16)
    assert len({y for y, _ in (numbers(line, "y1", "y2") for line in parts(drawn(two), "line", "arrow"))}) == 4


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_the_schedule_has_each_stages_work_on_the_first_four_micro_batches(narrow: bool) -> None:
    svg = draw_schedule(SMALL, narrow)
    forward, backward = ([numbers(cell, "x", "y") for cell in parts(svg, "rect", kind)] for kind in ("forward", "backward"))
    assert len(forward) == len(backward) == 5 * 4
    assert len({tuple(cell) for cell in forward + backward}) == 2 * 5 * 4  # none covers another
    rows = sorted({y for _, y in forward})
    starts = [min(x for x, y in forward if y == row) for row in rows]
    step = starts[1] - starts[0]
    assert starts == pytest.approx([starts[0] + stage * step for stage in range(5)])
    # The last stage computes backward where it computes forward, and the first one eight clocks after its own forward pass.
    assert min(x for x, _ in backward) == pytest.approx(starts[-1])
    ends = sorted(backward, key=lambda cell: cell[1])[:4]
    assert sorted(x for x, _ in ends) == pytest.approx([starts[0] + (8 + batch) * step for batch in range(4)])


def test_one_ipu_has_one_row_and_no_arrow() -> None:
    assert len(parts(draw_schedule(ONE), "text", "soft")) == 1
    assert parts(drawn(ONE), "line", "arrow") == []


@pytest.mark.parametrize("name", ["gpt2_large_1024_pod16", "bert_large_pod64", "bert_tiny_ipu", "smoke/gpt2_small_pod16"])
def test_every_pipeline_of_a_recipe_can_be_reported(name: str) -> None:
    shown = report_pipeline(Project(CHECKOUT).plan(name))
    assert shown is not None
    assert list(shown.phases) == list(Project(CHECKOUT).plan(name).phases)
    assert ("simulator" in shown.introduction) == name.startswith("smoke/")


def test_a_run_without_a_pipeline_reports_none() -> None:
    assert report_pipeline(Project(CHECKOUT).plan("quickstart")) is None


def test_the_page_of_a_run_through_a_pipeline_draws_it(finished_run: Callable[..., Any], recipe: Callable[..., Any]) -> None:
    pipeline = {"layers_per_ipu": [1, 1], "gradient_accumulation": 8}
    phase = {"objective": "causal", "sequence_length": 64, "global_batch_size": 8, "steps": 50}
    pretrain = {"main": {**phase, "optimizer": {"learning_rate": 0.001}}}
    run = finished_run(recipe(pretrain=pretrain, run={"device": "ipu_simulator", "pipeline": pipeline}))
    write_sidecar(save_words(run.plan.tokenizer, ["a", "b"], ["<|endoftext|>"], "<|endoftext|>"))
    record_of(run.plan.tokenizer).unlink()  # it is of the tokenizer before
    text = report_page(gather(run.plan, run.verify, run.evaluations))
    assert text.count('<section id="pipeline">') == 1
    assert text.count('class="ipu"') == 2 * 2  # for wide pages and for phones
    assert "1 replica of 2 IPUs, 3 forward stages" in text
    assert "relm&#39;s simulator of a pipeline computed this run on a CPU" in text
    for label in re.findall(r'<svg class="(?:wide|narrow)" role="img" aria-label="([^"]+)"', text):
        assert label.endswith(".")


def test_the_page_of_another_run_has_no_pipeline(finished_run: Callable[..., Any]) -> None:
    run = finished_run()
    assert 'id="pipeline"' not in report_page(gather(run.plan, run.verify, run.evaluations))
