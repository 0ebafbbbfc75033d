import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from plain_ngrams import find_overlap_plainly, split_words
from relm.corpus import ngrams
from relm.errors import RelmError
from relm.examples import documents as documents_module
from relm.examples import overlap
from relm.examples.overlap import Overlap, count_overlap, seek_items
from small_documents import write_texts

NUMBERS = [f"w{number}" for number in range(40)]


def text(first: int, last: int) -> str:
    return " ".join(NUMBERS[first:last])


def contaminated(items: Sequence[Sequence[str]], found: Overlap) -> list[bool]:
    sought = seek_items(items)
    return [bool((found.documents[sought.numbers[sought.items == item]] > 0).any()) for item in range(len(items))]


def random_case(seed: int) -> tuple[list[list[str]], list[str]]:
    """Items and documents of few words, so that they share long sequences; some items are taken from documents."""
    generator = np.random.default_rng(seed)
    words = np.array(["a", "be", "Sea,", "dé-jà", "e\u0301", "Ș", "१२", "--", "x2"])

    def made(size: int) -> str:
        return " ".join(words[generator.integers(0, len(words), size)])

    documents = [made(size) for size in generator.integers(0, 120, 30)]
    items = [[made(size) for size in generator.integers(0, 30, generator.integers(1, 4))] for _ in range(40)]
    for item, document in zip(items[::2], documents, strict=False):
        start, size = generator.integers(0, 60), generator.integers(6, 40)
        item[0] = " ".join(document.split()[start : start + size]).upper()
    return items, documents


@pytest.mark.parametrize("seed", range(6))
def test_items_and_counts_are_those_of_plain_python(seed: int, tmp_path: Path) -> None:
    items, documents = random_case(seed)
    sought = seek_items(items)
    found = count_overlap(sought.sought, [write_texts(tmp_path / "a.jsonl", documents)], workers=1)
    is_found, is_sought, _ = find_overlap_plainly(items, documents)
    assert contaminated(items, found) == is_found
    assert np.isin(np.arange(len(items)), sought.items).tolist() == is_sought
    assert {True, False} == set(is_found)
    assert found.words == sum(len(split_words(document)) for document in documents)
    sharing = [any(find_overlap_plainly(items, [document])[0]) for document in documents]
    assert (found.sharing, found.total) == (sum(sharing), len(documents))


def test_a_document_counts_once_and_the_first_in_order_is_kept(tmp_path: Path) -> None:
    first = write_texts(tmp_path / "a.jsonl", ["other words", f"{text(0, 13)}. {text(0, 13)}", text(0, 13)])
    second = write_texts(tmp_path / "b.jsonl", [text(0, 13), text(20, 33)])
    sought = seek_items([[text(0, 13)], [text(20, 33)], [text(1, 14)]])
    found = count_overlap(sought.sought, [first, second], workers=1)
    counts = [found.documents[sought.numbers[sought.items == item]].tolist() for item in range(3)]
    assert counts == [[3], [1], [0]]
    places = [found.find_first(int(sought.numbers[item])) for item in (0, 1)]
    assert [(place.path, place.line) for place in places] == [(first, 2), (second, 2)]
    for place, expected in zip(places, (text(0, 13), text(20, 33)), strict=True):
        with open(place.path, "rb") as file:
            file.seek(place.offset)
            assert expected in json.loads(file.readline())["text"]


@pytest.mark.parametrize(
    ("item", "document", "shares"),
    [
        (text(0, 13), text(0, 13), True),
        (text(0, 14), text(1, 14), True),
        (text(0, 13), text(0, 12), False),
        (text(0, 13), f"{text(0, 6)} also {text(6, 13)}", False),
        (text(0, 8), text(0, 20), True),  # short, so sought as a whole
        (text(0, 9), text(0, 8), False),
        (text(0, 7), text(0, 20), False),  # too short to be sought
    ],
)
def test_thirteen_words_are_compared_and_eight_at_least(item: str, document: str, shares: bool, tmp_path: Path) -> None:
    sought = seek_items([[item]])
    found = count_overlap(sought.sought, [write_texts(tmp_path / "a.jsonl", [document, "another"])], workers=1)
    assert contaminated([[item]], found) == [shares]
    assert sought.whole.tolist() == [8 <= len(item.split()) < 13]


def test_no_sequence_goes_from_one_document_to_the_next(tmp_path: Path) -> None:
    found = count_overlap(
        seek_items([[text(0, 13)]]).sought, [write_texts(tmp_path / "a.jsonl", [text(0, 7), text(7, 13)])], workers=1
    )
    assert found.sharing == 0


def test_any_count_of_workers_and_size_of_chunks_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items, documents = random_case(11)
    files = [write_texts(tmp_path / f"{n}.jsonl", documents[n::2] * 40) for n in range(2)]
    sought = seek_items(items).sought
    whole = count_overlap(sought, files, workers=1)
    monkeypatch.setattr(documents_module, "CHUNK", 4096)
    monkeypatch.setattr(overlap, "BYTES_PER_WORKER", 1000)
    for workers in (1, 3):
        again = count_overlap(sought, files, workers=workers)
        assert again.documents.tolist() == whole.documents.tolist()
        assert again.first.tolist() == whole.first.tolist()
        assert (again.sharing, again.total, again.words) == (whole.sharing, whole.total, whole.words)


def test_a_very_long_document_is_hashed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [" ".join([*("filler" for _ in range(300)), text(0, 13), *("filler" for _ in range(300))])]
    monkeypatch.setattr(ngrams, "AT_ONCE", 64)
    sought = seek_items([[text(0, 13)]])
    assert count_overlap(sought.sought, [write_texts(tmp_path / "a.jsonl", documents)], workers=1).sharing == 1


def test_a_line_that_is_no_document_is_named(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.jsonl", ["one", "two"])
    path.write_text(path.read_text() + '{"text": "three"}\n')
    with pytest.raises(RelmError, match=r"a\.jsonl, line 3: expected the keys id, title and text"):
        count_overlap(seek_items([[text(0, 13)]]).sought, [path], workers=1)


def test_no_documents_and_no_items_share_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "a.jsonl"
    empty.touch()
    assert count_overlap(seek_items([["too short"]]).sought, [empty], workers=os.cpu_count()).total == 0
