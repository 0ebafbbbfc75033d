"""Several equal processes that share each global batch, as torchrun starts them: what they tell each other.

Gradients, losses and counts are summed, nothing else is exchanged: all ranks begin with the same weights and take the same
step. Sums are made in an order that depends on nothing but the number of ranks, so the same run gives the same bits again.
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

# Gradients are summed in pieces of about so many numbers, of which so many are on their way at once.
BUCKET = 8 << 20
ON_THEIR_WAY = 2

_meetings = itertools.count()


@dataclass(frozen=True)
class ProcessRank:
    """The rank of this process among several, as torchrun sets it in the environment."""

    rank: int
    ranks: int
    local_rank: int
    """Among the processes of this machine."""
    local_ranks: int


def rank_of_this_process(processes: int) -> ProcessRank:
    """Return the rank of this process among `processes`.

    Args:
        processes: how many the recipe wants.

    Raises:
        RelmError: another number was started; says how to start them.
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
    """The ranks of a run, connected."""

    def __init__(self, device: torch.device) -> None:
        """Meet all other ranks. On a GPU gradients travel by NCCL; what the host counts always goes by Gloo."""
        on_gpu = device.type == "cuda"
        with lost_ranks_in_words():
            store, rank, ranks = next(iter(rendezvous("env://")))
            # A process may meet the others again, who must not find the addresses of the last time.
            store = PrefixStore(f"meeting {next(_meetings)}", store)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=ranks, device_id=device if on_gpu else None
            )
            # The thread that prepares batches has a group of its own: two threads' messages must not cross.
            self._counts = dist.new_group(backend="gloo")

    def exchanged(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum over all ranks; from the thread that prepares batches."""
        tensor = torch.from_numpy(values.copy())
        with lost_ranks_in_words():
            dist.all_reduce(tensor, group=self._counts)
        total: npt.NDArray[np.int64] = tensor.numpy()
        return total

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make each gradient its sum over all ranks, in place."""
        on_their_way: deque[Travelling] = deque()
        for bucket in buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            if len(on_their_way) == ON_THEIR_WAY:
                on_their_way.popleft().arrive()
            on_their_way.append(sent(bucket))
        for travelling in on_their_way:
            travelling.arrive()

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        total = values.clone()
        with lost_ranks_in_words():
            dist.all_reduce(total)
        return total

    def close(self) -> None:
        """Take leave."""
        dist.destroy_process_group()


class Travelling(NamedTuple):
    """Gradients whose sum is being made."""

    gradients: list[Tensor]
    flat: Tensor
    """All their numbers in one row; the one gradient itself, where it is alone."""
    work: Any

    def arrive(self) -> None:
        """Wait for the sums, and put them where the gradients were."""
        with lost_ranks_in_words():
            self.work.wait()
        if self.flat is not self.gradients[0]:
            pieces = torch.split(self.flat, [gradient.numel() for gradient in self.gradients])
            shaped = [piece.view_as(gradient) for piece, gradient in zip(pieces, self.gradients, strict=True)]
            torch._foreach_copy_(self.gradients, shaped)


def sent(gradients: list[Tensor]) -> Travelling:
    """Begin to sum gradients of one type over all ranks."""
    alone = len(gradients) == 1 and gradients[0].is_contiguous()
    flat = gradients[0] if alone else torch.cat([gradient.flatten() for gradient in gradients])
    with lost_ranks_in_words():
        return Travelling(gradients, flat, dist.all_reduce(flat, async_op=True))


def buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The gradients in order, in lists of one type and bounded size; a big one comes alone."""
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
def lost_ranks_in_words() -> Iterator[None]:
    """Say what it means when the others cannot be reached.

    Raises:
        RelmError: instead of the error of Gloo or NCCL, which names a socket, or of torch, which names an environment variable.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        what, _, _ = str(error).partition("\n")[0].partition(". This is ")  # advice on Gloo follows
        raise RelmError(
            "another process of this run has ended or cannot be reached, and this one ends with it; what the other one said "
            f"tells why, checkpoints are intact, and the same command goes on ({what})"
        ) from error
