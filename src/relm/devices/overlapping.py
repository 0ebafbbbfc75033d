"""All-reduces of gradients that start while the backward pass computes those of earlier layers.

Buckets are those of `relm.devices.processes.Processes.sum_gradients` and are summed separately, so the bits are the same. The
last bucket starts first, because the backward pass ends with the first parameters, and all ranks start them in one order.
"""

from collections import deque
from collections.abc import Iterable

from torch import Tensor, nn

from relm.devices.processes import PendingSum, split_into_buckets, start_sum


class OverlappedSums:
    """The all-reduces of one model's gradients, bucket by bucket during a backward pass."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Watch the gradients of these parameters: all that are trained."""
        self._buckets: list[list[Tensor]] = list(split_into_buckets(list(parameters)))
        self._bucket_of = {parameter: number for number, bucket in enumerate(self._buckets) for parameter in bucket}
        self._missing = [0] * len(self._buckets)
        self._next = -1
        self._pending: deque[PendingSum] = deque()
        self.started_early = 0
        """Buckets of the newest step that started before the end of its backward pass."""
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Prepare for the last backward pass of a step, which follows."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._next = len(self._buckets) - 1

    def finish(self) -> None:
        """Start the remaining sums, and wait for all."""
        self.started_early = len(self._buckets) - 1 - self._next
        while self._next >= 0:
            self._start()
        while self._pending:
            self._pending.popleft().finish()

    def _count(self, parameter: Tensor) -> None:
        """Start, in order, each bucket whose gradients are all computed."""
        self._missing[self._bucket_of[parameter]] -= 1
        while self._next >= 0 and not self._missing[self._next]:
            self._start()

    def _start(self) -> None:
        """Start the next bucket, and copy back those that are already summed, so that few copies exist at a time."""
        while self._pending and self._pending[0].work.is_completed():
            self._pending.popleft().finish()
        gradients = [parameter.grad for parameter in self._buckets[self._next] if parameter.grad is not None]
        self._next -= 1
        if gradients:
            self._pending.append(start_sum(gradients))
