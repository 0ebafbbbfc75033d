"""A source that does not fit on the disk, such as mT5's corpus: shards that are read one after the other, in one order.

What is guaranteed:

- The order is a function of the list of shards, the seed, `lanes` and `block` alone. It has no end and needs no count of items.
- Shards are dealt to lanes, in a new order each epoch. Position p of the stream is the next item of lane p mod lanes, so any
  `lanes` neighbours come from as many shards; within a shard every block of items has an order of its own, new in each epoch.
- Each item comes once in each epoch, in the lane that its shard is dealt to. A lane goes on to its next epoch by itself: where
  lanes get more items than others, these are ahead. Many shards of about one size, a multiple of `lanes`, keep them together.
- Rank r of R reads the positions r, r + R, r + 2R and so on, for any R that divides `lanes`. So a global batch that is a
  multiple of R is the same for each R, each item is read by one rank, and a rank opens the shards of its own lanes only.
- The state after any batch is a few numbers for each lane. Going on from it opens one shard a lane and skips within this one
  (Parquet: within one row group), so it takes as long at the end of an epoch as at its beginning; what follows is what would
  have followed.

Memory holds one open shard and one block of items for each lane that is read.
"""

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, NamedTuple
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.examples.draws import drawn
from relm.examples.order import example_indices, permuted, row_keys

PARQUET = ".parquet"
DECOMPRESSED: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
}
REMOTE = ("http://", "https://")
SILENT_SECONDS = 60
FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
# Rows of a Parquet file that become Python objects at once.
ROWS = 1024
State = dict[str, Any]
# A line as it stands, or a row.
Raw = bytes | dict[str, Any]


class Item(NamedTuple):
    """One line or row of a shard."""

    epoch: int
    shard: str
    number: int
    """In the shard, counted from 0."""
    value: dict[str, Any]


class Place(NamedTuple):
    """How far a lane has been read."""

    epoch: int = 0
    turn: int = 0
    """How many of the lane's shards come before the one that is being read, in this epoch."""
    item: int = 0
    """How many items of this shard have been read."""


@dataclass(frozen=True)
class StreamOrder:
    """What decides the order of a stream."""

    shards: tuple[str, ...]
    seed: int
    lanes: int
    """Shards that are read at the same time by all ranks together."""
    block: int
    """Neighbouring items of a shard that are put into a random order."""

    def digest(self) -> str:
        """Equal for equal orders."""
        order = [list(self.shards), self.seed, self.lanes, self.block]
        return hashlib.sha256(canonical_json(order).encode()).hexdigest()

    def turns(self, lane: int) -> int:
        """How many shards a lane has in an epoch."""
        return len(range(lane, len(self.shards), self.lanes))

    def shard(self, lane: int, epoch: int, turn: int) -> int:
        """The number of a shard: each is in one lane of each epoch, once."""
        size = len(self.shards)
        return int(example_indices(self.seed, np.array([epoch * size + turn * self.lanes + lane]), size)[0])

    def within_block(self, epoch: int, shard: int, number: int, size: int) -> list[int]:
        """The order of the `size` items of one block."""
        key = drawn(row_keys("order in a shard", self.seed, np.array([epoch]), np.array([shard])), number)
        places: list[int] = permuted(np.arange(size, dtype=np.uint64), np.repeat(key, size), size).tolist()
        return places


class ShardStream:
    """The items of one rank, one after the other without end; see the module for what is guaranteed."""

    def __init__(
        self,
        shards: Sequence[str],
        seed: int,
        lanes: int = 8,
        block: int = 1024,
        rank: int = 0,
        ranks: int = 1,
        state: State | None = None,
    ) -> None:
        """Begin at the beginning or where a state was taken; no shard is opened yet.

        Args:
            shards: JSON lines, plain or with .gz, .xz or .bz2 at the end of the name, or .parquet: local paths, or addresses
                that begin with http (JSON lines only), which are read from the network.
            seed: of all orders.
            lanes: shards that are read at the same time by all ranks together.
            block: neighbouring items of a shard that are put into a random order; 1 leaves them as they are.
            rank: which of `ranks` readers this is.
            state: of the same stream, read by any number of ranks; see `merged_states`.

        Raises:
            RelmError: there are fewer shards than lanes, or the state is another stream's.
            ValueError: the ranks do not divide the lanes, or another number makes no sense.
        """
        if lanes < 1 or block < 1 or not 0 <= rank < ranks or lanes % ranks:
            raise ValueError(
                f"expected ranks that divide lanes, found rank {rank} of {ranks}, {lanes} lanes, blocks of {block}"
            )
        if len(shards) < lanes:
            raise RelmError(f"{len(shards)} shards cannot be read in {lanes} lanes; lower lanes, or cut the shards smaller")
        self.order = StreamOrder(tuple(shards), seed, lanes, block)
        self.ranks = ranks
        self._places = dict.fromkeys(range(rank, lanes, ranks), Place())
        self._position = rank
        if state is not None:
            self._go_on(state, rank)
        self._readers: dict[int, Iterator[tuple[Place, Item]]] = {}

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        """The next item.

        Raises:
            RelmError: a shard is absent, damaged or no such file (shard and line are named); the same again when asked again.
        """
        lane = self._position % self.order.lanes
        if lane not in self._readers:
            self._readers[lane] = lane_items(self.order, lane, self._places[lane])
        try:
            self._places[lane], item = next(self._readers[lane])
        except BaseException:
            del self._readers[lane]  # it has ended; the next one begins at the same place
            raise
        self._position += self.ranks
        return item

    def state(self) -> State:
        """Where this rank is, as JSON can hold it; `position` is what all ranks have read together if each has read as many."""
        lanes = {str(lane): list(place) for lane, place in self._places.items()}
        return {"order": self.order.digest(), "position": self._position // self.ranks * self.ranks, "lanes": lanes}

    def _go_on(self, state: State, rank: int) -> None:
        if state["order"] != self.order.digest():
            raise RelmError(
                "state of a stream: it was taken with other shards, seed, lanes or block; give the same, or begin anew"
            )
        if missing := [lane for lane in self._places if str(lane) not in state["lanes"]]:
            raise RelmError(f"state of a stream: lacks lane {missing[0]}; merge the states of all ranks")
        if state["position"] % self.ranks:
            raise RelmError(
                f"state of a stream: position {state['position']} lies within a round of {self.ranks} ranks; "
                "take the state after whole global batches"
            )
        self._places = {lane: Place(*state["lanes"][str(lane)]) for lane in self._places}
        self._position = state["position"] + rank


def merged_states(states: Sequence[State]) -> State:
    """One state of those of all ranks, taken after the same batch; any number of ranks can go on from it.

    Raises:
        RelmError: they are of different streams or positions.
    """
    for key in ("order", "position"):
        if len(found := {str(state[key]) for state in states}) != 1:
            raise RelmError(f"states of a stream: they differ in {key} ({', '.join(sorted(found))}); take all at once")
    lanes = {lane: place for state in states for lane, place in state["lanes"].items()}
    return {**states[0], "lanes": dict(sorted(lanes.items(), key=lambda pair: int(pair[0])))}


def lane_items(order: StreamOrder, lane: int, place: Place) -> Iterator[tuple[Place, Item]]:
    """The items of a lane from a place on, epoch after epoch, each with the place after it.

    Raises:
        RelmError: a shard cannot be read, or there is no item in any shard of a whole epoch.
    """
    epoch, first_turn, first = place
    found = place != Place(epoch)  # what was read before this place counts
    while True:
        for turn in range(first_turn, order.turns(lane)):
            shard = order.shard(lane, epoch, turn)
            for count, item in enumerate(shard_items(order, epoch, shard, first), first + 1):
                yield Place(epoch, turn, count), item
                found = True
            first = 0
        if not found:
            raise RelmError(f"{order.shards[shard]}: holds no items, like all shards of its lane; leave empty shards out")
        epoch, first_turn, found = epoch + 1, 0, False


def shard_items(order: StreamOrder, epoch: int, shard: int, first: int) -> Iterator[Item]:
    """The items of a shard in their order of an epoch, without the `first` ones."""
    name = order.shards[shard]
    start = first // order.block * order.block
    with contextlib.closing(_raw_items(name, start)) as raw:  # type: ignore[type-var]
        while block := list(islice(raw, order.block)):
            for place in order.within_block(epoch, shard, start // order.block, len(block))[first - start :]:
                yield Item(epoch, name, start + place, _parsed(block[place], name, start + place))
            start += len(block)
            first = start


def _raw_items(shard: str, first: int) -> Iterator[Raw]:
    """Lines or rows from number `first` on."""
    is_table = shard.endswith(PARQUET)
    number = -1
    try:
        for number, item in _rows(shard, first) if is_table else _lines(shard):
            if number >= first:
                yield item
    except FileNotFoundError:
        raise RelmError(f"{shard}: no such file; correct the list of shards") from None
    except FAULTS as error:
        place = "" if is_table else f", line {number + 2}"
        raise RelmError(f"{shard}{place}: cannot be read ({error}): truncated or damaged; get it again") from None


def _lines(shard: str) -> Iterator[tuple[int, Raw]]:
    with open_shard(shard) as file:
        yield from enumerate(file)


def _rows(shard: str, first: int) -> Iterator[tuple[int, Raw]]:
    """The rows of a Parquet file with their numbers, from the row group on that has row `first`."""
    if shard.startswith(REMOTE):
        raise RelmError(f"{shard}: Parquet is read from local files only; download it first")
    with pq.ParquetFile(shard) as file:
        start = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if start + rows > first:
                batches = file.iter_batches(batch_size=ROWS, row_groups=[group])
                yield from enumerate((row for batch in batches for row in batch.to_pylist()), start)
            start += rows


@contextlib.contextmanager
def open_shard(shard: str) -> Iterator[IO[bytes]]:
    """The content of a shard, decompressed as it is read; an address is read from the network."""
    with contextlib.ExitStack() as stack:
        if shard.startswith(REMOTE):
            raw = stack.enter_context(urlopen(shard, timeout=SILENT_SECONDS))
        else:
            raw = stack.enter_context(open(shard, "rb"))
        ending = next((ending for ending in DECOMPRESSED if shard.endswith(ending)), None)
        yield raw if ending is None else stack.enter_context(DECOMPRESSED[ending](raw))


def _parsed(raw: Raw, shard: str, number: int) -> dict[str, Any]:
    if isinstance(raw, dict):
        return raw
    place = f"{shard}, line {number + 1}"
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise RelmError(f"{place}: not valid JSON in UTF-8 ({error}); correct it or get the shard again") from None
    if not isinstance(value, dict):
        raise RelmError(f"{place}: expected a JSON object, found {type(value).__name__}")
    return value
