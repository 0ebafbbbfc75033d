"""The stages of a pipeline, and its order of work: which stage computes which micro-batch at which clock, in both directions.

The order is PopART's, a form of "one forward, one backward" (Narayanan et al. 2019, "PipeDream"): S forward stages make 2 S - 1
pipeline stages, because the last computes forward and backward at the same clock. Pipeline stage p computes micro-batch m at
clock m + p, and weights change when all micro-batches have passed.
"""

from __future__ import annotations

import itertools
from typing import Iterator, NamedTuple, Sequence


class PipelineStage(NamedTuple):
    """Consecutive segments on one IPU, which compute a micro-batch at one clock of the pipeline."""

    ipu: int
    segments: tuple[str, ...]
    """Their names, in the order of execution."""
    waiting: int
    """The most micro-batches that have begun the forward pass of this stage, but not yet its backward pass."""


def stages_of(placement: Sequence[tuple[str, int]]) -> list[PipelineStage]:
    """Return the forward stages of a placement, whose pairs (segment, IPU) are in the order of execution.

    Forward stage s (from 0) of micro-batch m runs at time m + s, and its backward stage at m + 2 (S - 1) - s. In between, the
    stage begins 2 (S - 1 - s) further micro-batches.
    """
    grouped = [(ipu, tuple(name for name, _ in placed)) for ipu, placed in itertools.groupby(placement, lambda pair: pair[1])]
    return [PipelineStage(*stage, waiting=2 * (len(grouped) - number) - 1) for number, stage in enumerate(grouped)]


class Work(NamedTuple):
    """The forward or backward pass of one micro-batch through one stage."""

    clock: int
    """Stages work at the same clock on different micro-batches, and exchange tensors between clocks."""
    stage: int
    """Index of the forward stage; its backward pass is on the same IPU."""
    is_backward: bool
    micro_batch: int


def pipeline_schedule(stages: int, micro_batches: int) -> Iterator[Work]:
    """Yield the work of one update of one replica, in order, through a count of forward stages."""
    pipeline_stages = 2 * stages - 1
    if micro_batches < pipeline_stages:
        raise ValueError(
            f"{micro_batches} micro-batches for {stages} forward stages; gradient_accumulation must be at least twice the "
            f"stages less one, {pipeline_stages}"
        )
    for clock in range(micro_batches + pipeline_stages - 1):
        for pipeline_stage in range(pipeline_stages):
            micro_batch = clock - pipeline_stage
            if 0 <= micro_batch < micro_batches:
                if pipeline_stage < stages:
                    yield Work(clock, pipeline_stage, is_backward=False, micro_batch=micro_batch)
                if pipeline_stage >= stages - 1:
                    stage = pipeline_stages - 1 - pipeline_stage
                    yield Work(clock, stage, is_backward=True, micro_batch=micro_batch)
