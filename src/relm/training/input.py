"""The input of each step, prepared by a thread while the device computes the steps before it."""

import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from torch import Tensor

from relm.devices.contract import Device, UpdatingDevice
from relm.errors import RelmError
from relm.examples.contract import Batch, Examples, Integers, numbers_at
from relm.examples.order import rank_positions
from relm.recipes.phase import Phase
from relm.training.kill_points import kill_point
from relm.training.step import loss_denominators, scored_counts

# Rounds that are prepared ahead of the current one.
AHEAD = 2

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class StepInput:
    """This process's part of a global batch."""

    step: int
    micro_batches: list[dict[str, Tensor]]
    """Staged on the host."""
    denominators: list[dict[str, float]]
    """For each micro-batch, term -> the divisor of its nats."""
    scored: dict[str, int]
    """Term -> count of labels that it scores in this process's part."""
    stops: bool
    """True if a rank had received a stop request when this was prepared; the same on all ranks."""


@dataclasses.dataclass(frozen=True)
class Round:
    """The inputs of the steps that a device takes in one call: one step, or `updates_per_call` of its contract."""

    steps: list[StepInput]

    @property
    def first(self) -> int:
        """Return its first step."""
        return self.steps[0].step

    @property
    def last(self) -> int:
        """Return its last step."""
        return self.steps[-1].step

    @property
    def stops(self) -> bool:
        """Return True if a rank had received a stop request when one of its steps was prepared."""
        return any(given.stops for given in self.steps)

    def reaches(self, interval: int) -> bool:
        """Return True if a multiple of `interval` is among its steps."""
        return self.last // interval > (self.first - 1) // interval


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reader of one rank's parts of the global batches of a phase."""

    examples: Examples
    settings: Phase
    order_seed: int
    """The seed of the order in which examples are read."""
    micro_batch_size: int
    device: Device
    masks_padding: bool = True
    """False: batches have no `attention_mask`, since no sequence has padding."""

    def numbers(self, step: int) -> tuple[Integers, Integers]:
        """Return indices and epochs of the global batch's examples: example j of step s is at position (s - 1) B + j."""
        return numbers_at(self.examples, self.order_seed, rank_positions(step, self.settings.global_batch_size))

    def batch(self, step: int) -> Batch:
        """Return this process's part of the global batch."""
        positions = rank_positions(step, self.settings.global_batch_size, self.device.part, self.device.parts)
        batch = self.examples.batch(*numbers_at(self.examples, self.order_seed, positions))
        return batch if self.masks_padding else {name: array for name, array in batch.items() if name != "attention_mask"}

    def micro_batches(self, step: int) -> list[Batch]:
        """Return this process's part of the global batch in micro-batches."""
        batch, size = self.batch(step), self.micro_batch_size
        pieces = range(0, self.settings.global_batch_size // self.device.parts, size)
        return [{name: array[first : first + size] for name, array in batch.items()} for first in pieces]

    def step_input(self, step: int, stop_requested: bool = False) -> StepInput:
        """Return a step's input from the host; ranks exchange the counts of labels that their micro-batches score."""
        kill_point("data")
        micro_batches = self.micro_batches(step)
        counts = [scored_counts(batch, self.settings.declaration.labels) for batch in micro_batches]
        names = list(counts[0])
        # One sum a step, in which each rank fills its row, gives every rank the others' step, stop request and counts.
        rows = np.zeros((self.device.ranks, 2 + len(counts) * len(names)), dtype=np.int64)
        rows[self.device.rank] = [step, stop_requested, *(count[name] for count in counts for name in names)]
        rows = self.device.sum_counts(rows)
        require_same_step(rows[:, 0].tolist())
        scored = rows[: self.device.parts, 2:]
        if self.device.parts == 1:
            require_same_batch(step, rows[:, 2:])
        global_counts = [dict(zip(names, count, strict=True)) for count in scored.reshape(-1, len(names)).tolist()]
        denominators = loss_denominators(global_counts, self.settings.loss_shares)
        first = self.device.part * len(counts)
        staged = [self.device.stage(batch) for batch in micro_batches]
        own = {name: sum(count[name] for count in counts) for name in names}
        return StepInput(step, staged, denominators[first : first + len(counts)], own, bool(rows[:, 1].any()))

    def rounds(self, first: int, last: int, stop_requested: Callable[[], bool]) -> Generator[Round, None, None]:
        """Yield the inputs of steps `first` to `last`; with several ranks, end after a round whose `stops` is True."""
        ended, length = False, self.device.updates_per_call

        def prepare(begin: int) -> Round | None:
            nonlocal ended
            if ended:  # the other ranks are not waiting for this round
                return None
            ended = True  # after an error as well, or the next counts would be added to this step's
            prepared = Round([self.step_input(step, stop_requested()) for step in range(begin, begin + length)])
            ended = prepared.stops and self.device.ranks > 1
            return prepared

        # The worker of a device that takes whole updates also sums counts: all ranks must do both in one order.
        in_order = self.device.ranks > 1 and isinstance(self.device, UpdatingDevice)
        for prepared in prefetch(prepare, range(first, last + 1, length), 0 if in_order else AHEAD):
            if prepared is None:
                return
            yield prepared


def require_same_step(steps: list[int]) -> None:
    """Raise if ranks are at different steps."""
    if len(set(steps)) > 1:
        found = ", ".join(f"rank {rank} at {step:,}" for rank, step in enumerate(steps))
        raise RelmError(
            f"the processes are at different steps: {found}. All of them must find the same checkpoints: give every machine "
            "the same work folder (RELM_WORK) and run the same command again"
        )


def require_same_batch(step: int, counts: Integers) -> None:
    """Raise if ranks that each read the whole global batch differ in their scored labels; `counts` has a row for each."""
    others = [rank for rank, row in enumerate(counts) if (row != counts[0]).any()]
    if others:
        raise RelmError(
            f"step {step:,}: rank {', '.join(map(str, others))} read other examples than rank 0. Give every machine the "
            "same recipe and the same work folder (RELM_WORK), or a copy of it"
        )


def prefetch(make: Callable[[int], Result], numbers: Iterable[int], depth: int) -> Iterator[Result]:
    """Yield `make(number)` of each number in order, computed by a thread up to `depth` results ahead of the consumer.

    An error of `make` is raised in place of its result.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(1, "input") as thread:
        try:
            for number in numbers:
                waiting.append(thread.submit(make, number))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # After an error or an early end, leaving the pool would otherwise wait for all of them.
            for future in waiting:
                future.cancel()
