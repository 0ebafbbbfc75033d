"""Join the documents of the ranges of a file, which were extracted by jobs of their own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relm.artifact import checked_sidecar, read_sidecar, write_sidecar
from relm.corpus.documents import DocumentCounts, count_words, parse_document, split_files
from relm.corpus.file_range import FileRange
from relm.corpus.wikipedia import SeenPages
from relm.errors import RelmError
from relm.progress import ProgressBar

WITHOUT_TEXT = "without_text"
"""The fact of a range's sidecar that lists ids of entries without text; a later entry with such an id is a copy."""
RANGE = "range"
"""The fact of a range's sidecar that says which range of which file it is; see `describe_range`."""

_DECODER = json.JSONDecoder()


def describe_range(part: FileRange, split: str, source: Path) -> dict[str, Any]:
    """Return which documents a file of one range has: split, position of the range, and name and bytes of the source."""
    return {"is": str(part), "split": split, "source": source.name, "source_bytes": source.stat().st_size}


def join_ranges(
    ranges: Mapping[str, Sequence[Path]], outputs: Mapping[str, Path], ids_are_unique: bool, reasons: Sequence[str]
) -> str:
    """Write the documents of all ranges of a file, which are then those of the whole file, and return a sentence about them.

    Args:
        ranges: split -> the files of documents of each range, in the order of the ranges.
        outputs: split -> the file of documents to write.
        ids_are_unique: of two entries with the same id the second is a copy, and left out.
        reasons: why entries of the source's format become no documents; each is counted.

    Raises:
        RelmError: a file is damaged or has no sidecar, the files are not those of all ranges of one source in order, or a split
            has no document.
    """
    _require_all_ranges(ranges)
    counts = {split: DocumentCounts() for split in outputs}
    skipped = dict.fromkeys(reasons, 0)
    seen = SeenPages() if ids_are_unique else None
    size = sum(file.stat().st_size for files in ranges.values() for file in files)
    bar = ProgressBar(total=size, desc="joining", unit="B", unit_scale=True, disable=None)
    with split_files(outputs) as written, bar:
        for files in zip(*(ranges[split] for split in outputs), strict=True):
            sidecars = [checked_sidecar(file) for file in files]
            for reason, count in sidecars[0]["skipped"].items():
                skipped[reason] = skipped.get(reason, 0) + count
            for split, file, sidecar in zip(outputs, files, sidecars, strict=True):
                _add(counts[split], sidecar["documents"], sidecar["words"], sidecar["bytes"])
                for number, line in enumerate(_read_lines(file, bar), 1):
                    if seen is None or seen.add(_read_id(line)):
                        written[split].write(line)
                        continue
                    text = parse_document(line, f"{file}, line {number}").text
                    _add(counts[split], -1, -count_words(text), -len(text.encode()))
                    skipped["doubled"] = skipped.get("doubled", 0) + 1
            for id_ in sidecars[0].get(WITHOUT_TEXT, ()):
                if seen is not None and not seen.add(id_):
                    skipped["empty"] -= 1
                    skipped["doubled"] = skipped.get("doubled", 0) + 1
        if lacking := [split for split, count in counts.items() if not count.documents]:
            raise RelmError(f"{outputs[lacking[0]]}: the ranges have no document of this split; read more documents")
    for split, path in outputs.items():
        write_sidecar(path, **asdict(counts[split]), skipped=skipped)
    documents, words = (sum(column) for column in zip(*((each.documents, each.words) for each in counts.values()), strict=True))
    return f"joined {documents:,} documents with {words:,} words from {len(ranges[next(iter(outputs))]):,} ranges"


def _require_all_ranges(ranges: Mapping[str, Sequence[Path]]) -> None:
    """Raise RelmError unless each split has the files of all ranges of one source, in their order."""
    source: tuple[Any, Any] | None = None
    for split, files in ranges.items():
        for index, file in enumerate(files):
            found = read_sidecar(file).get(RANGE)
            if not isinstance(found, dict):
                raise RelmError(f"{file}: not the documents of a range; give files that `relm extract --range` wrote")
            expected = str(FileRange(index, len(files)))
            if (found.get("is"), found.get("split")) != (expected, split):
                raise RelmError(
                    f"{file}: has {found.get('split')} documents of {found.get('is')}, expected {split} documents of "
                    f"{expected}; give the files of all ranges, in order"
                )
            source = source or (found.get("source"), found.get("source_bytes"))
            if source != (found.get("source"), found.get("source_bytes")):
                raise RelmError(
                    f"{file}: is a range of {found.get('source')} with {found.get('source_bytes')} bytes, those before it are "
                    f"ranges of {source[0]} with {source[1]} bytes; extract it again from that file"
                )


def _add(counts: DocumentCounts, documents: int, words: int, size: int) -> None:
    counts.documents += documents
    counts.words += words
    counts.bytes += size


def _read_lines(file: Path, bar: ProgressBar) -> Iterator[bytes]:
    with open(file, "rb") as lines:
        for line in lines:
            yield line
            bar.update(len(line))


def _read_id(line: bytes) -> str:
    """Return the id of a document, which is the first value of its line."""
    value, _ = _DECODER.raw_decode(line[: line.index(b',"title":')].decode(), len('{"id":'))
    return str(value)
