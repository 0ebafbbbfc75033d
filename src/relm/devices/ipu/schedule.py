"""The order of a pipeline's work: which stage computes which micro-batch at which clock, forward and backward.

It is the order of PopART, a form of "one forward, one backward" (Narayanan et al. 2019, "PipeDream"): with S forward stages
there are 2 S - 1 pipeline stages, since the loss's stage computes forward and backward at the same clock; pipeline stage p
computes micro-batch m at clock m + p, and weights change when all micro-batches have passed.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple


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
