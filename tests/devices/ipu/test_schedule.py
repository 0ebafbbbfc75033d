"""The pipeline's schedule, against one that was written by hand."""

from collections import Counter

import pytest

from relm.devices.ipu.schedule import Work, pipeline_schedule, stages_of
from relm.recipes.machine.pipeline import Pipeline

# Three forward stages, five micro-batches. F0: forward pass of micro-batch 0, B0: its backward pass; the last stage makes both
# at one clock.
BY_HAND = """
clock  stage 0  stage 1  stage 2
0      F0       .        .
1      F1       F0       .
2      F2       F1       F0B0
3      F3       F2B0     F1B1
4      F4B0     F3B1     F2B2
5      B1       F4B2     F3B3
6      B2       B3       F4B4
7      B3       B4       .
8      B4       .        .
"""


def test_three_stages_and_five_micro_batches_are_scheduled_as_by_hand() -> None:
    cells: dict[tuple[int, int], str] = {}
    for work in pipeline_schedule(3, 5):
        cells[work.clock, work.stage] = cells.get((work.clock, work.stage), "") + "FB"[work.is_backward] + str(work.micro_batch)
    rows = [line.split() for line in BY_HAND.strip().splitlines()[1:]]
    expected = {(int(clock), stage): cell for clock, *row in rows for stage, cell in enumerate(row) if cell != "."}
    assert cells == expected


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (1, 4), (2, 3), (5, 9), (5, 20)])
def test_each_stage_computes_each_micro_batch_once_after_what_it_needs(stages: int, micro_batches: int) -> None:
    order = list(pipeline_schedule(stages, micro_batches))
    assert len(order) == len({(w.stage, w.is_backward, w.micro_batch) for w in order}) == 2 * stages * micro_batches
    clocks = {(w.stage, w.is_backward, w.micro_batch): w.clock for w in order}
    positions = {(w.stage, w.is_backward, w.micro_batch): n for n, w in enumerate(order)}
    assert [w.clock for w in order] == sorted(w.clock for w in order)
    for micro_batch in range(micro_batches):
        for stage in range(1, stages):
            # What another stage sends arrives at the next clock.
            assert clocks[stage, False, micro_batch] == clocks[stage - 1, False, micro_batch] + 1
            assert clocks[stage - 1, True, micro_batch] == clocks[stage, True, micro_batch] + 1
        last = stages - 1
        assert clocks[last, True, micro_batch] == clocks[last, False, micro_batch]
        assert positions[last, True, micro_batch] == positions[last, False, micro_batch] + 1


def test_a_stage_makes_one_forward_and_one_backward_pass_at_most_at_a_clock() -> None:
    counts = Counter((w.clock, w.stage, w.is_backward) for w in pipeline_schedule(4, 12))
    assert set(counts.values()) == {1}


def test_the_idle_share_is_that_of_fill_and_drain() -> None:
    """While the pipeline fills, stages make forward passes only, and backward passes only while it drains."""
    stages, micro_batches = 4, 12
    order = list(pipeline_schedule(stages, micro_batches))
    lengths = {kind: len({w.clock for w in order if w.is_backward is kind}) for kind in (False, True)}
    assert lengths == {False: micro_batches + stages - 1, True: micro_batches + stages - 1}


def test_as_many_micro_batches_wait_at_each_stage_as_the_estimate_of_memory_counts() -> None:
    pipeline = Pipeline(layers_per_ipu=[0, 4, 4, 4], position_embedding=1, gradient_accumulation=12)
    waiting, most = Counter(), Counter()
    for work in pipeline_schedule(pipeline.stages, pipeline.gradient_accumulation):
        waiting[work.stage] += -1 if work.is_backward else 1
        most[work.stage] = max(most[work.stage], waiting[work.stage])
    assert [most[stage] for stage in range(5)] == [stage.waiting for stage in stages_of(pipeline.placement)] == [9, 7, 5, 3, 1]


def test_too_few_micro_batches_are_refused() -> None:
    assert list(pipeline_schedule(1, 1)) == [Work(0, 0, False, 0), Work(0, 0, True, 0)]
    with pytest.raises(ValueError, match=r"4 micro-batches for 3 forward stages; gradient_accumulation must be at least .* 5"):
        list(pipeline_schedule(3, 4))
