"""Several equal processes that share each global batch, as torchrun starts them: what they tell each other.

Gradients, losses and counts are summed, nothing else is exchanged: all ranks begin with the same weights and take the same
step. Sums are made in an order that depends on nothing but the number of ranks, so the same run gives the same bits again.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from relm.errors import RelmError

# Gradients are summed in pieces of about so many numbers: while one is on its way, the next is packed.
BUCKET = 8 << 20


@dataclass(frozen=True)
class Place:
    """Which of several processes this one is, as torchrun says it in the environment."""

    rank: int
    ranks: int
    local_rank: int
    """Among the processes of this machine."""
    local_ranks: int


def place_of_this_process(processes: int) -> Place:
    """Where this process stands.

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
            f"`torchrun --standalone --nproc-per-node {processes} -m relm pretrain ...`, or correct run.processes"
        )
    return Place(rank, ranks, local_rank, local_ranks)


class Processes:
    """The ranks of a run, connected."""

    def __init__(self, device: torch.device) -> None:
        """Meet all other ranks. On a GPU gradients travel by NCCL; what the host counts always goes by Gloo."""
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        # The thread that prepares batches has a group of its own: two threads' messages must not cross.
        self._counts = dist.new_group(backend="gloo")

    def exchanged(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The sum over all ranks; from the thread that prepares batches."""
        tensor = torch.from_numpy(values.copy())
        dist.all_reduce(tensor, group=self._counts)
        total: npt.NDArray[np.int64] = tensor.numpy()
        return total

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make each gradient its sum over all ranks, in place."""
        on_their_way: list[tuple[list[Tensor], Tensor, Any]] = []
        for bucket in buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            on_their_way.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        for bucket, flat, work in on_their_way:
            work.wait()
            pieces = torch.split(flat, [gradient.numel() for gradient in bucket])
            torch._foreach_copy_(bucket, [piece.view_as(old) for piece, old in zip(pieces, bucket, strict=True)])

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all ranks."""
        total = values.clone()
        dist.all_reduce(total)
        return total

    def close(self) -> None:
        """Take leave."""
        dist.destroy_process_group()


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
