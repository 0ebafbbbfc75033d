"""Data parallelism over processes that are started together: the all-reduces between ranks that share each global batch.

Only sums of gradients, losses and counts are exchanged: all ranks begin with the same weights and take the same step. The
order of summation depends only on the count of ranks, so the same run gives the same bits again.
"""

import contextlib
import itertools
import os
import re
import shlex
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from relm.devices.ranks import launcher
from relm.errors import RelmError

TIMEOUT = "RELM_RANK_TIMEOUT"
"""Environment variable with the seconds that a rank waits for another."""
SECONDS_TO_WAIT = 1800
# Elements of a bucket of gradients, and the count of buckets that are summed at the same time.
BUCKET = 8 << 20
MAX_PENDING = 2

_rendezvous_numbers = itertools.count()
_addresses: list[str] = []
"""The address of each rank, once this process is connected."""


def read_rank(processes: int) -> tuple[int, int, int, int]:
    """Return rank and count of this process among those that the recipe requests, then among those of this machine."""
    names = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    rank, ranks, local_rank, local_ranks = (int(os.environ.get(name, default)) for name, default in names.items())
    if ranks != processes:
        raise RelmError(
            f"run.processes is {processes}, but {'one was' if ranks == 1 else f'{ranks} were'} started; start them with "
            f"`{shlex.join(launcher(processes))} pretrain ...`, on several hosts by srun or torchrun, or correct run.processes"
        )
    return rank, ranks, local_rank, local_ranks


def longest_wait() -> timedelta:
    """Return the time after which a rank gives up waiting for another: RELM_RANK_TIMEOUT in seconds, or half an hour.

    The end of a process closes its connections, which the others notice at once. This limit is for a host that is cut off, and
    exceeds all work of a single rank, such as writing a large checkpoint.
    """
    setting = os.environ.get(TIMEOUT, "").strip() or str(SECONDS_TO_WAIT)
    if not re.fullmatch("[0-9]{1,7}", setting) or not int(setting):
        raise RelmError(f"{TIMEOUT}: expected a whole number of seconds of 1 or more, found {setting!r}; correct or unset it")
    return timedelta(seconds=int(setting))


class Processes:
    """The connected ranks of a run."""

    def __init__(self, device: torch.device) -> None:
        """Connect to all other ranks. On a GPU gradients are summed by NCCL; counts on the host always by Gloo."""
        on_gpu, longest = device.type == "cuda", longest_wait()
        with translate_lost_ranks():
            store, rank, ranks = next(iter(rendezvous("env://", timeout=longest)))
            # A process may connect a second time, and must not find the addresses of the first.
            store = PrefixStore(f"rendezvous {next(_rendezvous_numbers)}", store)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                timeout=longest,
                store=store,
                rank=rank,
                world_size=ranks,
                device_id=device if on_gpu else None,
            )
            # The thread that prepares batches has a separate group: two threads' messages must not mix.
            self._counts = dist.new_group(backend="gloo", timeout=longest)
            _addresses[:] = exchange_addresses(store, rank, ranks)

    def sum_counts(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum over all ranks; only the thread that prepares batches may call it while it lives."""
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
    """Yield the gradients in order, in lists of one type and bounded size; a larger one has a list for itself."""
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
    """Raise a plain error if the other ranks cannot be reached."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        what, _, _ = str(error).partition("\n")[0].partition(". This is ")  # advice on Gloo follows
        raise RelmError(
            f"another process of this run{name_lost_rank(what, _addresses)} has ended or cannot be reached, and this one ends "
            f"with it. The other one's message gives the reason; checkpoints are intact, and the same command resumes the run "
            f"({what})"
        ) from error


def exchange_addresses(store: Store, rank: int, ranks: int) -> list[str]:
    """Return the address of each rank, as the others see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # of a datagram: nothing is sent
        store.set(f"address {rank}", probe.getsockname()[0])
    store.set(f"connected {rank}", "")
    store.wait([f"connected {number}" for number in range(ranks)])
    names = [f"address {number}" for number in range(ranks)]
    return [store.get(name).decode() if store.check([name]) else "" for name in names]


def name_lost_rank(error: str, addresses: Sequence[str]) -> str:
    """Return ` (rank R on ADDRESS)` if an error of Gloo's has the address of exactly one rank; else nothing.

    >>> name_lost_rank("Connection closed by peer [10.0.0.2]:4051", ["10.0.0.1", "10.0.0.2"])
    ' (rank 1 on 10.0.0.2)'
    """
    found = re.search(r"\[([0-9a-fA-F.:]+)\]:\d+", error)
    fitting = [rank for rank, address in enumerate(addresses) if found and address == found[1]]
    return f" (rank {fitting[0]} on {addresses[fitting[0]]})" if len(fitting) == 1 else ""
