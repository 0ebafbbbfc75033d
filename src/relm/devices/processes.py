"""Data parallelism over processes that torchrun starts: the all-reduces between ranks that share each global batch.

Gradients, losses and counts are summed, nothing else is exchanged: all ranks begin with the same weights and take the same
step. The order of summation depends on the count of ranks alone, so the same run gives the same bits again.
"""

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from relm.errors import RelmError

# Elements of a bucket of gradients, and the count of buckets that are summed at the same time.
BUCKET = 8 << 20
MAX_PENDING = 2

_rendezvous_numbers = itertools.count()


@dataclass(frozen=True)
class ProcessRank:
    """The rank of this process among several, as torchrun sets it in the environment."""

    rank: int
    ranks: int
    local_rank: int
    """The rank among the processes of this machine."""
    local_ranks: int


def rank_of_this_process(processes: int) -> ProcessRank:
    """Return the rank of this process among `processes`.

    Args:
        processes: the count that the recipe requests.

    Raises:
        RelmError: another count was started; says how to start them.
    """
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    rank, ranks, local_rank, local_ranks = (int(os.environ.get(name, default)) for name, default in names.items())
    if ranks != processes:
        raise RelmError(
            f"run.processes is {processes}, but {'one was' if ranks == 1 else f'{ranks} were'} started; start them with "
            f"`torchrun --standalone --nproc-per-node {processes} -m -- relm pretrain ...`, or correct run.processes"
        )
    return ProcessRank(rank, ranks, local_rank, local_ranks)


class Processes:
    """The connected ranks of a run."""

    def __init__(self, device: torch.device) -> None:
        """Connect to all other ranks. On a GPU gradients are summed by NCCL; counts on the host always by Gloo."""
        on_gpu = device.type == "cuda"
        with translate_lost_ranks():
            store, rank, ranks = next(iter(rendezvous("env://")))
            # A process may connect a second time, and must not find the addresses of the first.
            store = PrefixStore(f"rendezvous {next(_rendezvous_numbers)}", store)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=ranks, device_id=device if on_gpu else None
            )
            # The thread that prepares batches has its own group: two threads' messages must not mix.
            self._counts = dist.new_group(backend="gloo")

    def sum_counts(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum over all ranks; called by the thread that prepares batches."""
        tensor = torch.from_numpy(values.copy())
        with translate_lost_ranks():
            dist.all_reduce(tensor, group=self._counts)
        total: npt.NDArray[np.int64] = tensor.numpy()
        return total

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """All-reduce each gradient in place, bucket by bucket."""
        pending: deque[PendingSum] = deque()
        for bucket in split_into_buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            if len(pending) == MAX_PENDING:
                pending.popleft().finish()
            pending.append(start_sum(bucket))
        for started in pending:
            started.finish()

    def sum_scalars(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        total = values.clone()
        with translate_lost_ranks():
            dist.all_reduce(total)
        return total

    def close(self) -> None:
        """Destroy the process group."""
        dist.destroy_process_group()


class PendingSum(NamedTuple):
    """A bucket of gradients whose all-reduce has started."""

    gradients: list[Tensor]
    flat: Tensor
    """All elements in one row; the gradient itself if there is only one."""
    work: Any

    def finish(self) -> None:
        """Wait for the sums, and copy them into the gradients."""
        with translate_lost_ranks():
            self.work.wait()
        if self.flat is not self.gradients[0]:
            pieces = torch.split(self.flat, [gradient.numel() for gradient in self.gradients])
            shaped = [piece.view_as(gradient) for piece, gradient in zip(pieces, self.gradients, strict=True)]
            torch._foreach_copy_(self.gradients, shaped)


def start_sum(gradients: list[Tensor]) -> PendingSum:
    """Start the all-reduce of gradients of one type."""
    alone = len(gradients) == 1 and gradients[0].is_contiguous()
    flat = gradients[0] if alone else torch.cat([gradient.flatten() for gradient in gradients])
    with translate_lost_ranks():
        return PendingSum(gradients, flat, dist.all_reduce(flat, async_op=True))


def split_into_buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the gradients in order, in lists of one type and bounded size; a large one is alone in its list."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (size + gradient.numel() > BUCKET or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        yield bucket


@contextlib.contextmanager
def translate_lost_ranks() -> Iterator[None]:
    """Raise a plain error where the other ranks cannot be reached.

    Raises:
        RelmError: replaces the error of Gloo or NCCL, which names a socket, or of torch, which names an environment variable.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        what, _, _ = str(error).partition("\n")[0].partition(". This is ")  # advice on Gloo follows
        raise RelmError(
            "another process of this run has ended or cannot be reached, and this one ends with it; the other one's message "
            f"gives the reason. Checkpoints are intact, and the same command resumes the run ({what})"
        ) from error
