"""The sequences of llm.c's training, in the order in which the shuffling DataLoader of llmc/dataloader.h reads them.

Each of R processes reads all shards. The k-th sample of a shard begins at its token k R B T. Process r reads B T + 1 tokens
from k R B T + r B T on, which are B sequences of T inputs and labels. Each process has a separate Mersenne Twister, seeded
with seed + r, which permutes the shards before each epoch, and the samples of a shard when the process comes to it. So the
processes of one update read different shards, and no sample is read as a whole.

modded-nanogpt's optimization track reads files of the same form without shuffling: shards and samples follow one another.

Every epoch takes the same count of draws, so the order of any epoch is arithmetic from the seed: nothing before it is read.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.as_published.graphcore_gpt2 import LARGEST_SEED
from relm.examples.causal import CausalExamples, open_windows
from relm.examples.contract import Batch, Integers, require_indices
from relm.recipes.objectives import Objective

SEED = 42
"""The seed that llm.c has in its code."""


class Geometry(NamedTuple):
    """The sizes that decide the order."""

    shards: tuple[int, ...]
    """Tokens of each shard, in order of the files' names."""
    ranks: int
    batch: int
    """Sequences in the batch of one rank."""
    sequence_length: int
    seed: int = SEED
    shuffles: bool = True
    """False: modded-nanogpt's order."""

    @property
    def sample_tokens(self) -> int:
        """Return the tokens from one sample of a shard to the next."""
        return self.ranks * self.batch * self.sequence_length

    @property
    def fewest_tokens(self) -> int:
        """Return the tokens of the shortest shard with a sample; modded-nanogpt wants one more than it reads."""
        return self.sample_tokens + (1 if self.shuffles else 2)

    @property
    def samples(self) -> list[int]:
        """Return the count of samples of each shard."""
        return [(tokens - self.fewest_tokens) // self.sample_tokens + 1 for tokens in self.shards]

    @property
    def epoch_samples(self) -> int:
        """Return the count of samples of all shards, each of which a rank reads once an epoch."""
        return sum(self.samples)


def draw_integers(seed: int, count: int) -> npt.NDArray[np.uint32]:
    """Return the first draws of a Mersenne Twister, MT19937 of 32 bits, seeded as its authors' `init_genrand` does.

    >>> draw_integers(137, 3).tolist()
    [4053805790, 2173880614, 380293709]
    """
    return np.random.RandomState(seed).randint(0, 2**32, size=count, dtype=np.uint32)


def permute(values: list[int], draws: npt.NDArray[np.uint32]) -> None:
    """Permute values in place by Fisher and Yates: the one at i, from the last to the second, is swapped with a draw in 0..i.

    There is one draw less than values; each is taken modulo i + 1.
    """
    chosen = (draws % np.arange(len(values), 1, -1, dtype=np.uint32)).tolist()
    for i, j in zip(range(len(values) - 1, 0, -1), chosen, strict=True):
        values[i], values[j] = values[j], values[i]


def order_of_rank(geometry: Geometry, rank: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the shard and the number in it of each sample that a rank reads in an epoch: (samples, 2)."""
    samples, shards = geometry.samples, list(range(len(geometry.shards)))
    if not geometry.shuffles:
        return np.array([(shard, number) for shard in shards for number in range(samples[shard])], dtype=np.int64).reshape(
            -1, 2
        )
    permuting = len(shards) - 1
    draws_of_epoch = permuting + sum(count - 1 for count in samples)
    draws = draw_integers(geometry.seed + rank, (epoch + 1) * draws_of_epoch)
    for first in range(0, len(draws), draws_of_epoch) if draws_of_epoch else ():
        permute(shards, draws[first : first + permuting])  # what the last epoch left is permuted again
    order, used = np.empty((geometry.epoch_samples, 2), dtype=np.int64), epoch * draws_of_epoch + permuting
    filled = 0
    for shard in shards:
        inside = list(range(samples[shard]))
        permute(inside, draws[used : used + len(inside) - 1])
        order[filled : filled + len(inside), 0] = shard
        order[filled : filled + len(inside), 1] = inside
        used, filled = used + len(inside) - 1, filled + len(inside)
    return order


def order_of_epoch(geometry: Geometry, epoch: int) -> npt.NDArray[np.int64]:
    """Return the shard and the token in it with which each rank's part of each sample begins: (samples, ranks, 2)."""
    order = np.stack([order_of_rank(geometry, rank, epoch) for rank in range(geometry.ranks)], axis=1)
    own = np.arange(geometry.ranks) * geometry.batch * geometry.sequence_length
    order[:, :, 1] = order[:, :, 1] * geometry.sample_tokens + own
    return order


class LlmCOrder:
    """The first token of each training sequence, in the original's order: position p of a run is sequence p of its epoch."""

    is_ordered = True

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._first_tokens = np.cumsum([0, *geometry.shards])
        self._starts = functools.lru_cache(maxsize=2)(self._find_starts)

    def __len__(self) -> int:
        return self.geometry.epoch_samples * self.geometry.ranks * self.geometry.batch

    def starts(self, indices: Integers, epochs: Integers) -> Integers:
        """Return the token of the stream with which each sequence begins."""
        require_indices(indices, len(self))
        parts, rows = np.divmod(indices, self.geometry.batch)
        starts = np.empty(len(indices), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            starts[chosen] = self._starts(epoch)[parts[chosen]]
        starts += rows * self.geometry.sequence_length
        return starts

    def locate(self, starts: Integers) -> Integers:
        """Return the shard of each token of the stream, and its place there: (tokens, 2)."""
        shards = np.searchsorted(self._first_tokens, starts, side="right") - 1
        return np.stack([shards, starts - self._first_tokens[shards]], axis=1)

    def _find_starts(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the token of the stream with which each rank's part of each sample begins: (samples * ranks,)."""
        order = order_of_epoch(self.geometry, epoch).reshape(-1, 2)
        starts: npt.NDArray[np.int64] = self._first_tokens[order[:, 0]] + order[:, 1]
        return starts


class LlmCExamples(LlmCOrder):
    """The training sequences in the original's order."""

    def __init__(self, manifest: Path, objective: Objective, check_content: bool = True) -> None:
        """Open the shards, each of which must hold a sample."""
        self.stream, _ = open_windows(manifest, "train", check_content)
        super().__init__(geometry_of(objective, tuple(self.stream.lengths)))
        if short := [number for number, count in enumerate(self.geometry.samples) if not count]:
            raise RelmError(
                f"{manifest}: training shard {short[0] + 1} has {self.geometry.shards[short[0]]:,} tokens; the original "
                f"reads {self.geometry.ranks} x {self.geometry.batch} sequences of {objective.sequence_length} at once, "
                f"which needs {self.geometry.fewest_tokens:,}; lower as_published.ranks or as_published.batch"
            )

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return ``input_ids`` and ``labels``, (examples, T), of these sequences of their epochs."""
        windows = self.stream.windows(self.starts(indices, epochs), self.geometry.sequence_length + 1)
        return {"input_ids": windows[:, :-1].copy(), "labels": windows[:, 1:].copy()}


class LlmCValidation(CausalExamples):
    """The sequences of the held-out shards from the first on, which llm.c does not shuffle."""

    is_ordered = True


def open_llm_c(
    manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True
) -> LlmCExamples | LlmCValidation:
    """Open the sequences of a split as `relm.examples.builders.open_examples` does; the original's own seed orders them."""
    if split != "train":
        return LlmCValidation(manifest, split, objective.sequence_length, objective.causal, check_content)
    return LlmCExamples(manifest, objective, check_content)


def geometry_of(objective: Objective, shards: tuple[int, ...]) -> Geometry:
    """Return the sizes that decide the order of sequences; raise RelmError for options that llm.c lacks."""
    chosen = objective.as_published
    if chosen is None or chosen.ranks is None or chosen.batch is None:
        raise RelmError(f"as_published.builder: expected llm_c or modded_nanogpt, found {getattr(chosen, 'builder', None)}")
    if chosen.seed + chosen.ranks - 1 > LARGEST_SEED:
        raise RelmError(f"as_published.seed: {chosen.seed:,}, but a Mersenne Twister takes 0 to {LARGEST_SEED:,}; lower it")
    for key in ("stride", "document_attention"):
        if getattr(objective.causal, key):
            raise RelmError(f"causal.{key}: {chosen.builder} has no such option; leave it out")
    return Geometry(shards, chosen.ranks, chosen.batch, objective.sequence_length, chosen.seed, chosen.builder == "llm_c")
