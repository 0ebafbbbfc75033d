"""Examples that other programs wrote, read as one shard of this project with its sidecar."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from relm.artifact import sha256_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.instances import table_columns
from relm.examples.formats.bert_records import LABEL, Columns, from_plain, from_remasked
from relm.examples.formats.json_lines import columns_of, ids_of, read_lines, shape_of
from relm.examples.formats.megatron import open_indexed
from relm.examples.formats.tfrecord import Features, decoded, read_records
from relm.examples.manifest import length_histogram, summed
from relm.examples.storage import dtype_of, index_of, shard_writer
from relm.examples.table import table_writer
from relm.examples.tokenizers import LoadedTokenizer, load_tokenizer
from relm.recipes.objectives import TABLE, TOKEN_STREAM, Masked, Objective

Integers = npt.NDArray[np.int64]
Documents = tuple[Integers, Integers, Callable[[int], str]]
"""Tokens of some documents one after the other, how many each has, and where the n-th was read, for messages."""

EXAMPLES_AT_ONCE = 1024


class ImportCounts:
    """Sums over imported examples."""

    def __init__(self, loaded: LoadedTokenizer) -> None:
        self.tokens = self.documents = self.words = self.bytes = 0
        self.histogram: list[list[int]] = []
        self._tokenizer = loaded.tokenizer

    def add(self, sequences: Sequence[list[int]]) -> None:
        """Count some sequences of token ids."""
        sizes = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        texts = self._tokenizer.decode_batch(list(sequences), skip_special_tokens=True)
        self.tokens += int(sizes.sum())
        self.documents += len(sizes)
        self.words += sum(len(text.split()) for text in texts)
        self.bytes += sum(len(text.encode()) for text in texts)
        self.histogram = summed([self.histogram, length_histogram(sizes)])

    @property
    def facts(self) -> dict[str, Any]:
        """For the sidecar."""
        names = ("tokens", "documents", "words", "bytes")
        return {**{name: getattr(self, name) for name in names}, "length_histogram": self.histogram}


def import_megatron(files: Sequence[Path], tokenizer: Path, output: Path) -> str:
    """Megatron-LM's indexed files, one after the other; `NAME.bin` and `NAME.idx` are one."""
    names = dict.fromkeys(path.with_suffix("") if path.suffix in (".bin", ".idx") else path for path in files)
    opened = [open_indexed(Path(f"{name}.bin")) for name in names]
    documents = (
        (tokens, sizes, functools.partial(_document_place, file.path, first))
        for file in opened
        for first, tokens, sizes in _numbered(file.blocks())
    )
    sources = chain.from_iterable((file.path, index_of(file.path)) for file in opened)
    return _import_stream(documents, list(sources), "megatron", load_tokenizer(tokenizer), output)


def import_tfrecord(files: Sequence[Path], tokenizer: Path, output: Path) -> str:
    """Records of Graphcore's BERT, plain or remasked, or of its GPT-2: the first record tells."""
    loaded = load_tokenizer(tokenizer)
    first = next(_records(files), None)
    if first is None:
        raise RelmError(f"{files[0]}: holds no records")
    place, features = first
    if set(features) == {"input_ids"}:
        return _import_stream(_windows(files), files, "tfrecord", loaded, output)
    if not {"input_ids", "masked_lm_positions", "masked_lm_ids"} <= set(features):
        found = ", ".join(sorted(features)) or "none"
        raise RelmError(f"{place}: its features are {found}; expected input_ids alone, or BERT's with masked_lm_positions")
    read = from_remasked if "input_position" in features else from_plain
    blocks = (
        (read([features for _, features in block], places), places)
        for block in _batches(_records(files))
        for places in [[place for place, _ in block]]
    )
    pairs = len(features.get(LABEL, ())) > 0
    return _import_table(blocks, _settings(features, pairs), files, "tfrecord", loaded, output)


def import_tpu_pretrain(files: Sequence[Path], tokenizer: Path, output: Path) -> str:
    """JSON lines of tpu_pretrain, one file after the other."""
    loaded, shape = load_tokenizer(tokenizer), shape_of(files)
    if not shape.examples:
        raise RelmError(f"{files[0]}: holds no examples")
    ids, padding = ids_of(loaded), loaded.special.pad or 0
    lines = chain.from_iterable(read_lines(path) for path in files)
    blocks = ((columns_of(block, shape, ids, padding), [place for place, _ in block]) for block in _batches(lines))
    settings = _objective(shape.longest, shape.predictions, shape.pairs)
    return _import_table(blocks, settings, files, "tpu_pretrain", loaded, output)


def _import_stream(
    documents: Iterator[Documents], sources: Sequence[Path], format: str, loaded: LoadedTokenizer, output: Path
) -> str:
    _require_suffix(output, ".bin", "a stream of tokens")
    counts, end, without_end = ImportCounts(loaded), loaded.special.end_of_text, 0
    with shard_writer(output, loaded.vocabulary_size) as writer, tqdm(unit=" tokens", unit_scale=True, disable=None) as bar:
        for tokens, sizes, place in documents:
            _require_stream_ids(tokens, sizes, loaded, place)
            writer.append(tokens, sizes)
            without_end += len(sizes) - int((tokens[np.cumsum(sizes)[sizes > 0] - 1] == end).sum())
            counts.add([piece.tolist() for piece in np.split(tokens, np.cumsum(sizes)[:-1])])
            bar.update(len(tokens))
    facts = {**_facts(loaded, "causal", TOKEN_STREAM, {}, sources, format), **counts.facts}
    write_sidecar(output, **facts, idx_sha256=sha256_of(index_of(output)))
    said = f"read {counts.tokens:,} tokens of {counts.documents:,} documents: {output}"
    return said + (f"; {without_end:,} of them do not end with the end-of-text token" if without_end else "")


def _import_table(
    blocks: Iterator[tuple[Columns, list[str]]],
    objective: Objective,
    sources: Sequence[Path],
    format: str,
    loaded: LoadedTokenizer,
    output: Path,
) -> str:
    _require_suffix(output, ".arrow", "masked examples")
    length, predictions = objective.sequence_length, objective.masked.max_predictions or 1
    facts = _facts(loaded, "masked", TABLE, objective.what_is_stored(), sources, format)
    counts = ImportCounts(loaded)
    with (
        table_writer(output, table_columns(length, predictions, loaded.vocabulary_size), facts) as writer,
        tqdm(unit=" examples", unit_scale=True, disable=None) as bar,
    ):
        for columns, places in blocks:
            for name, width in (("input_ids", length), ("masked_labels", predictions)):
                if (found := columns[name].shape[1]) != width:
                    raise RelmError(f"{places[0]}: {found} {name}, but the first example has {width}; import them apart")
                _require_ids(columns[name], loaded, places)
            _require_positions(columns, places)
            writer.append(columns)
            counts.add(_unmasked(columns))
            bar.update(len(places))
    write_sidecar(output, **facts, **counts.facts, examples=writer.rows)
    return f"read {writer.rows:,} examples of {length} places, {counts.tokens:,} tokens: {output}"


def _facts(
    loaded: LoadedTokenizer, objective: str, layout: str, settings: Mapping[str, Any], sources: Sequence[Path], format: str
) -> dict[str, Any]:
    digests = [sha256_of(path) for path in sources]
    return {
        "objective": objective,
        "layout": layout,
        "dtype": dtype_of(loaded.vocabulary_size),
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "settings": dict(settings),
        "source": digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest(),
        "imported_from": format,
    }


def _objective(length: int, predictions: int, pairs: bool) -> Objective:
    packing: Any = "sentence_pairs" if pairs else "full_sentences"
    masked = Masked(packing=packing, masks="static", max_predictions=max(predictions, 1))
    return Objective(objective="masked", sequence_length=length, masked=masked)


Item = TypeVar("Item")


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(islice(items, EXAMPLES_AT_ONCE)):
        yield batch


def _settings(features: Features, pairs: bool) -> Objective:
    return _objective(len(features["input_ids"]), len(features["masked_lm_ids"]), pairs)


def _records(files: Sequence[Path]) -> Iterator[tuple[str, Features]]:
    """Place and features of every record."""
    for path in files:
        for number, record in enumerate(read_records(path)):
            place = f"{path}, record {number:,}"
            yield place, decoded(record, place)


def _windows(files: Sequence[Path]) -> Iterator[Documents]:
    for block in _batches(_records(files)):
        for place, features in block:
            if not isinstance(tokens := features.get("input_ids"), np.ndarray) or tokens.dtype != np.int64:
                raise RelmError(f"{place}: lacks the feature input_ids as whole numbers; import it apart from the others")
        windows = [features["input_ids"] for _, features in block]
        places = [place for place, _ in block]
        yield np.concatenate(windows), np.array([len(window) for window in windows]), places.__getitem__


def _document_place(path: Path, first: int, number: int) -> str:
    return f"{path}, document {first + number:,}"


def _numbered(blocks: Iterator[tuple[Integers, Integers]]) -> Iterator[tuple[int, Integers, Integers]]:
    first = 0
    for tokens, sizes in blocks:
        yield first, tokens, sizes
        first += len(sizes)


def _unmasked(columns: Columns) -> list[list[int]]:
    """Return the tokens of each row as they were before some were hidden, without padding."""
    ids = columns["input_ids"].copy()
    rows, places = np.nonzero(np.arange(columns["masked_positions"].shape[1]) < columns["masked_count"][:, None])
    ids[rows, columns["masked_positions"][rows, places]] = columns["masked_labels"][rows, places]
    return [row[:length].tolist() for row, length in zip(ids, columns["length"].tolist(), strict=True)]


def _require_ids(tokens: Integers, loaded: LoadedTokenizer, places: Sequence[str]) -> None:
    """Refuse token ids (places, any number) that the tokenizer has not."""
    wrong = (tokens < 0) | (tokens >= loaded.vocabulary_size)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise RelmError(
            f"{places[row]}: token id {tokens[row, column]}, but {loaded.path} has 0 to {loaded.vocabulary_size - 1}; "
            "give the tokenizer that it was made with"
        )


def _require_stream_ids(tokens: Integers, sizes: Integers, loaded: LoadedTokenizer, place: Callable[[int], str]) -> None:
    if len(wrong := np.flatnonzero((tokens < 0) | (tokens >= loaded.vocabulary_size))):
        document = int(np.searchsorted(np.cumsum(sizes), wrong[0], side="right"))
        _require_ids(tokens[None, wrong[:1]], loaded, [place(document)])


def _require_positions(columns: Columns, places: Sequence[str]) -> None:
    used = np.arange(columns["masked_positions"].shape[1]) < columns["masked_count"][:, None]
    wrong = used & ~((columns["masked_positions"] >= 0) & (columns["masked_positions"] < columns["length"][:, None]))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise RelmError(
            f"{places[row]}: position {columns['masked_positions'][row, column]} is hidden, but there are "
            f"{columns['length'][row]} tokens: damaged, or another format"
        )


def _require_suffix(output: Path, suffix: str, what: str) -> None:
    if output.suffix != suffix:
        raise RelmError(f"{output}: {what} is kept in a {suffix} file; rename it")
