"""What each step reads, made ready by a thread while the device computes the steps before it."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from torch import Tensor

from relm.devices.contract import Device
from relm.errors import RelmError
from relm.examples.contract import Batch, Examples, Integers, numbers_at
from relm.examples.order import rank_positions
from relm.recipes.recipe import Phase
from relm.training.kill_points import kill_point
from relm.training.step import loss_denominators, scored_counts

# So many steps are made ready ahead.
AHEAD = 2

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class StepInput:
    """This process's part of a global batch."""

    step: int
    micro_batches: list[dict[str, Tensor]]
    """Staged on the host."""
    denominators: list[dict[str, float]]
    """Of each micro-batch, term -> what its nats are divided by."""
    stops: bool
    """Whether a rank had been asked to stop when this was made ready; all ranks are told the same."""


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads the global batches of a phase, as one of equal ranks."""

    examples: Examples
    settings: Phase
    order_seed: int
    """Of the permutation in which examples are read."""
    micro_batch_size: int
    device: Device

    def numbers(self, step: int) -> tuple[Integers, Integers]:
        """Which examples the global batch has, and in which epoch each: example j of step s is at position (s - 1) B + j."""
        return numbers_at(self.examples, self.order_seed, rank_positions(step, self.settings.global_batch_size))

    def batch(self, step: int) -> Batch:
        """This process's part of the global batch."""
        positions = rank_positions(step, self.settings.global_batch_size, self.device.part, self.device.parts)
        return self.examples.batch(*numbers_at(self.examples, self.order_seed, positions))

    def micro_batches(self, step: int) -> list[Batch]:
        """The same in pieces."""
        batch, size = self.batch(step), self.micro_batch_size
        pieces = range(0, self.settings.global_batch_size // self.device.parts, size)
        return [{name: array[first : first + size] for name, array in batch.items()} for first in pieces]

    def step_input(self, step: int, stop_requested: bool = False) -> StepInput:
        """Everything that a step needs of the host; ranks tell each other how many labels their pieces score."""
        kill_point("data")
        micro_batches = self.micro_batches(step)
        counts = [scored_counts(batch, self.settings.declaration.labels) for batch in micro_batches]
        names = list(counts[0])
        told = np.zeros((self.device.ranks, 2 + len(counts) * len(names)), dtype=np.int64)
        told[self.device.rank] = [step, stop_requested, *(count[name] for count in counts for name in names)]
        told = self.device.sum_counts(told)
        require_same_step(told[:, 0].tolist())
        counted = told[: self.device.parts, 2:]
        if self.device.parts == 1:
            require_same_batch(step, told[:, 2:])
        of_all = [dict(zip(names, count, strict=True)) for count in counted.reshape(-1, len(names)).tolist()]
        denominators = loss_denominators(of_all, self.settings.loss_shares)
        first = self.device.part * len(counts)
        staged = [self.device.stage(batch) for batch in micro_batches]
        return StepInput(step, staged, denominators[first : first + len(counts)], bool(told[:, 1].any()))

    def step_inputs(self, first: int, last: int, stop_requested: Callable[[], bool]) -> Iterator[StepInput]:
        """The inputs of the steps `first` to `last`; none after one that says `stops`, where there are other ranks."""
        ended = False

        def prepare(step: int) -> StepInput | None:
            nonlocal ended
            if ended:  # the other ranks are not waiting for this step
                return None
            ended = True  # after an error as well: what is told next would be taken for this step's
            made = self.step_input(step, stop_requested())
            ended = made.stops and self.device.ranks > 1
            return made

        for made in ahead(prepare, range(first, last + 1), AHEAD):
            if made is None:
                return
            yield made


def require_same_step(steps: list[int]) -> None:
    """Refuse to sum what belongs to different steps.

    Args:
        steps: of each rank.

    Raises:
        RelmError: they differ; names them.
    """
    if len(set(steps)) > 1:
        found = ", ".join(f"rank {rank} at {step:,}" for rank, step in enumerate(steps))
        raise RelmError(
            f"the processes are at different steps: {found}; all of them must find the same checkpoints: have every machine "
            "see one work folder (RELM_WORK), and give the same command again"
        )


def require_same_batch(step: int, counts: Integers) -> None:
    """Refuse to make one batch of what is not the same on every process that reads all of it.

    Args:
        counts: of each rank a row, the labels that its pieces score.

    Raises:
        RelmError: they differ; names the ranks.
    """
    others = [rank for rank, row in enumerate(counts) if (row != counts[0]).any()]
    if others:
        raise RelmError(
            f"step {step:,}: rank {', '.join(map(str, others))} read other examples than rank 0; give every machine the same "
            "recipe and the same work folder (RELM_WORK), or a copy of it"
        )


def ahead(make: Callable[[int], Result], numbers: Iterable[int], depth: int) -> Iterator[Result]:
    """`make` of each number, in order, by a thread that is up to `depth` results ahead of whoever takes them.

    An error of `make` is raised where its result would have been.
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
            for future in waiting:
                future.cancel()
