"""The index maps of Graphcore's GPT-2 for PyTorch v3.4.1, GPTDataset in data/indexed_dataset.py, bit for bit.

All epochs are shuffled as one. Their documents are put in a random order, the resulting stream of tokens is cut into samples
of L + 1 tokens that share one with their neighbours, and the samples are shuffled again. The three maps are Megatron's
(``doc_idx``, ``sample_idx``, ``shuffle_idx``), drawn from one ``RandomState``. The original fills the second one token span by
token span in Python; here it is arithmetic.

One defect of the original is not repeated: it keeps the maps in files whose names lack the split, so with as many epochs of
training as of validation (one) it validates on the training set.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.contract import Batch, require_indices
from relm.examples.manifest import Shard, read_manifest
from relm.examples.storage import TokenStream, index_of
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Objective

Integers = npt.NDArray[np.integer]

# The share of the documents for training, rounded down; the rest is for validation.
TRAIN_SHARE = 0.997
# With this many samples or more they are numbered in 64 bits.
LARGEST_UINT32_COUNT = np.iinfo(np.uint32).max - 1
LARGEST_SEED = 2**32 - 1
# Documents whose offsets are in memory at once.
BLOCK = 2**16
# The offset of the sizes in an .idx, after magic, version, type and the counts of sequences and documents.
HEADER = 34


class IndexMaps(NamedTuple):
    """The maps from samples to their tokens."""

    doc_idx: npt.NDArray[np.int32]
    """(epochs * documents,), document numbers in the order of the stream."""
    sample_idx: npt.NDArray[np.int32]
    """(samples + 1, 2), index into `doc_idx` and token in that document where each sample begins and the last one ends."""
    shuffle_idx: npt.NDArray[np.integer]
    """(samples,), uint32 or int64: the sample at each position of the run."""


def split_documents(documents: int, split: str) -> range:
    """Return the numbers of the documents for training (``train``) or validation (``held_out``).

    >>> split_documents(1000, "train"), split_documents(1000, "held_out")
    (range(0, 997), range(997, 1000))
    """
    cut = int(documents * TRAIN_SHARE)
    return range(cut) if split == "train" else range(cut, documents)


def draw_index_maps(sizes: Integers, documents: Integers, epochs: int, sequence_length: int, seed: int) -> IndexMaps:
    """Return all three maps, drawn from one generator in the original's order.

    `sizes` are the tokens of every document, by number, `documents` the numbers of those that are used, `epochs` times each.
    """
    draws = np.random.RandomState(seed)
    order = doc_idx(documents, epochs, draws)
    samples = sample_idx(sizes, order, sequence_length, epochs * int(sizes[documents].sum(dtype=np.int64)))
    return IndexMaps(order, samples, shuffle_idx(len(samples) - 1, draws))


def doc_idx(documents: Integers, epochs: int, draws: np.random.RandomState) -> npt.NDArray[np.int32]:
    """Return the documents of all epochs, shuffled together: int32 (epochs * documents,)."""
    order = np.tile(documents.astype(np.int32), epochs)
    draws.shuffle(order)
    return order


def sample_idx(sizes: Integers, order: Integers, sequence_length: int, tokens: int) -> npt.NDArray[np.int32]:
    """Return where each sample begins: int32 (samples + 1, 2), index into `order` and token in the document there.

    Sample k begins at token k L of the stream, L = sequence_length; each sample has L + 1 tokens. `order` are the documents of
    the stream, `tokens` the count of its tokens, `sizes` the tokens of every document, by number.
    """
    count = max(tokens - 1, 0) // sequence_length + 1
    result = np.zeros((count, 2), dtype=np.int32)
    done = before = 0
    for start in range(0, len(order), BLOCK):
        lengths = sizes.take(order[start : start + BLOCK])
        ends = before + np.cumsum(lengths, dtype=np.int64)
        before = int(ends[-1])
        begun = np.minimum(-(-ends // sequence_length), count)
        place = np.repeat(np.arange(len(ends)), np.diff(begun, prepend=done))
        stop = int(begun[-1])
        result[done:stop, 0] = start + place
        result[done:stop, 1] = np.arange(done, stop) * sequence_length - (ends - lengths)[place]
        done = stop
    result[0] = 0  # even if the first documents are empty
    return result


def shuffle_idx(samples: int, draws: np.random.RandomState) -> Integers:
    """Return the samples in random order: uint32, or int64 if there are too many for it."""
    order: Integers = np.arange(samples, dtype=np.uint32 if samples < LARGEST_UINT32_COUNT else np.int64)
    draws.shuffle(order)
    return order


class GraphcoreGpt2Examples:
    """The samples of one split in the original's order: example i is the i-th of its run, sample ``shuffle_idx[i]``.

    The original reads the maps from first to last and does not shuffle them again. A run repeats that only if position p reads
    example p, not the example that `relm.examples.order` would put there: `is_ordered` says so.

    The documents are those of the manifest's training split; of these the original's share is for training, and ``held_out`` is
    the rest, used once. What the manifest itself holds out is in neither.
    """

    is_ordered = True
    """The order of these examples is part of what was published: position p of a run is example p of its epoch."""

    def __init__(self, manifest: Path, split: str, objective: Objective, check_content: bool = True) -> None:
        """Open the shards of causal examples, and draw the maps with `as_published.epochs` and `as_published.seed`."""
        chosen = _require_options(objective)
        shards = read_manifest(manifest).split("train", manifest)
        self.sequence_length = objective.sequence_length
        self.stream = TokenStream(manifest, shards, check_content)
        sizes = read_document_sizes(manifest, shards)
        documents = np.array(split_documents(len(sizes), split), dtype=np.int32)
        epochs = chosen.epochs if split == "train" else 1
        self.maps = draw_index_maps(sizes, documents, epochs, self.sequence_length, chosen.seed)
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        if not len(self):
            raise RelmError(
                f"{manifest}: {len(documents):,} of its {len(sizes):,} documents are {split}, with {sizes[documents].sum():,} "
                f"tokens; an example of sequence_length {self.sequence_length} needs {self.sequence_length + 1:,}; use more "
                "documents"
            )

    def __len__(self) -> int:
        return len(self.maps.shuffle_idx)

    def batch(self, indices: npt.NDArray[np.int64], epochs: npt.NDArray[np.int64]) -> Batch:
        """Return ``input_ids`` and ``labels``, (examples, L), of the samples at these positions; every epoch has the same."""
        require_indices(indices, len(self))
        samples = np.empty((len(indices), self.sequence_length + 1), dtype=np.int64)
        for row, number in zip(samples, self.maps.shuffle_idx[indices].tolist(), strict=True):
            row[:] = self._sample(number)
        return {"input_ids": samples[:, :-1], "labels": samples[:, 1:]}

    def _sample(self, number: int) -> npt.NDArray[np.int64]:
        """Return the L + 1 tokens of a sample: ends of documents, whole ones, and the beginning of one."""
        (first, skipped), (last, offset) = self.maps.sample_idx[number : number + 2].tolist()
        documents = self.maps.doc_idx[first : last + 1]
        starts, stops = self._starts[documents], self._starts[documents + 1]
        stops[-1] = starts[-1] + offset + 1
        starts[0] += skipped
        return np.concatenate([self.stream.tokens(*span) for span in zip(starts.tolist(), stops.tolist(), strict=True)])


def open_graphcore_gpt2(
    manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True
) -> GraphcoreGpt2Examples:
    """Open the samples of a split as `relm.examples.builders.open_examples` does; the original's own seed orders them."""
    return GraphcoreGpt2Examples(manifest, split, objective, check_content)


def read_document_sizes(manifest: Path, shards: Sequence[Shard]) -> npt.NDArray[np.int32]:
    """Return the token count of every document of several shards, from their .idx files."""
    sizes = [np.empty(0, dtype=np.int32)]
    for shard in shards:
        path = index_of(manifest.parent / shard.file)
        if not path.exists() or path.stat().st_size < HEADER + 4 * shard.documents:
            raise RelmError(
                f"{path}: absent or truncated; delete the .bin with its sidecar and run the step that makes it again"
            )
        sizes.append(np.fromfile(path, dtype="<i4", count=shard.documents, offset=HEADER))
    return np.concatenate(sizes)


def require_seed_of_numpy(chosen: AsPublished) -> None:
    """Raise unless numpy's generator, which the original seeds, takes the seed."""
    if chosen.seed > LARGEST_SEED:
        raise RelmError(f"as_published.seed: {chosen.seed:,}, but numpy's generator takes 0 to {LARGEST_SEED:,}; lower it")


def _require_options(objective: Objective) -> AsPublished:
    chosen = objective.as_published
    assert chosen is not None, "the builder is named there"
    require_seed_of_numpy(chosen)
    for key in ("stride", "document_attention"):
        if getattr(objective.causal, key):
            raise RelmError(f"causal.{key}: graphcore_gpt2 has no such option; leave it out")
    if objective.causal.end_of_text != "after":
        raise RelmError("causal.end_of_text: graphcore_gpt2 reads it after every document; set it to after")
    return chosen
