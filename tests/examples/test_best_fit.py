import itertools
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from relm.examples import best_fit
from relm.examples.best_fit import BestFitPacker, DocumentBuffer, PackingCounts

BOS = 0


def pack(documents: list[list[int]], packer: BestFitPacker) -> list[list[int]]:
    return pack_arrays((np.array(tokens, dtype=np.uint16) for tokens in documents), packer)


def pack_arrays(documents: Iterator[np.ndarray], packer: BestFitPacker) -> list[list[int]]:
    return [row.tolist() for rows in packer.rows(documents) for row in rows]


def sized(*sizes: int) -> list[list[int]]:
    """Return documents of so many tokens with the first token; document 1 has the tokens 11, 12, 13 and so on."""
    return [[10 * number + place for place in range(1, size)] for number, size in enumerate(sizes, 1)]


def test_a_buffer_gives_the_longest_document_that_fits_and_of_equals_the_first() -> None:
    buffer = DocumentBuffer()
    buffer.add(0, [5, 3, 7])
    buffer.add(3, [3, 5, 1])
    assert [buffer.take_longest(6) for _ in range(3)] == [(0, 5), (4, 5), (1, 3)]
    assert buffer.take_longest(0) is None
    assert (buffer.take_longest(7), len(buffer)) == ((2, 7), 2)


def test_a_buffer_gives_the_shortest_document_and_of_equals_the_first() -> None:
    buffer = DocumentBuffer()
    buffer.add(7, [2**31, 4, 9, 4])
    assert [buffer.take_shortest() for _ in range(4)] == [(8, 4), (10, 4), (9, 9), (7, 2**31)]


def test_the_longest_documents_that_fit_fill_a_row() -> None:
    packer = BestFitPacker(8, BOS)
    assert pack(sized(3, 5, 2, 6), packer) == [[0, 41, 42, 43, 44, 45, 0, 31], [0, 21, 22, 23, 24, 0, 11, 12]]
    assert (packer.documents, packer.counts) == (4, PackingCounts())


def test_where_none_fits_the_shortest_is_cropped_and_its_rest_is_lost() -> None:
    packer = BestFitPacker(4, BOS)
    assert pack(sized(6, 3, 5), packer) == [[0, 21, 22, 0], [0, 11, 12, 13]]
    assert packer.counts == PackingCounts(cropped_documents=2, cropped_tokens=6)


def test_documents_that_fill_no_row_at_the_end_are_left_out() -> None:
    packer = BestFitPacker(6, BOS)
    assert pack(sized(6, 2, 3), packer) == [[0, 11, 12, 13, 14, 15]]
    assert packer.counts == PackingCounts(left_out_documents=2, left_out_tokens=5)
    assert pack([], BestFitPacker(6, BOS)) == []


def test_a_document_without_tokens_is_its_first_token_alone() -> None:
    assert pack([[], [5], []], BestFitPacker(4, BOS)) == [[0, 5, 0, 0]]


def test_a_row_chooses_among_the_documents_of_the_buffer_alone() -> None:
    documents = sized(2, 2, 4)
    assert pack(documents, BestFitPacker(4, BOS, buffer=2, refill=1)) == [[0, 11, 0, 21], [0, 31, 32, 33]]
    assert pack(documents, BestFitPacker(4, BOS, buffer=3, refill=1)) == [[0, 31, 32, 33], [0, 11, 0, 21]]
    assert pack(documents, BestFitPacker(4, BOS, buffer=1, refill=3)) == [[0, 31, 32, 33], [0, 11, 0, 21]]


@pytest.mark.parametrize("block", [1, 64, 2**18])
def test_each_token_is_in_a_row_or_counted_as_lost(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_fit, "BLOCK", block)
    draws = np.random.RandomState(3)
    sizes = np.minimum(draws.lognormal(2.5, 1.5, 700), 400).astype(int).tolist()
    # Each token is unique, so that no two places can be confused.
    stops = list(itertools.accumulate(sizes, initial=1))
    documents = [np.arange(start, stop) for start, stop in itertools.pairwise(stops)]
    packer = BestFitPacker(33, BOS, buffer=20, refill=7)
    rows = np.concatenate([*packer.rows(iter(documents))])
    assert (rows[:, 0] == BOS).all()
    lost = packer.counts.cropped_tokens + packer.counts.left_out_tokens
    assert rows.size + lost == sum(sizes) + len(sizes)
    begun = np.flatnonzero(rows.ravel() == BOS)
    pieces = [piece[1:] for piece in np.split(rows.ravel(), begun[1:])]
    whole = 0
    for piece in filter(len, pieces):
        document = documents[np.searchsorted(stops, piece[0], "right") - 1]
        assert piece.tolist() == document[: len(piece)].tolist()
        whole += len(piece) == len(document)
    cropped_to_the_first_token = sum(not len(piece) for piece in pieces) - sizes.count(0)
    assert packer.counts.cropped_documents == len([*filter(len, pieces)]) - whole + cropped_to_the_first_token
    assert len(pieces) + packer.counts.left_out_documents == packer.documents == 700


def test_the_memory_of_a_waiting_document_is_that_of_a_row() -> None:
    tracemalloc.start()
    try:
        packer = BestFitPacker(8, BOS)
        rows = pack_arrays((np.ones(10**6, dtype=np.uint16) for _ in range(30)), packer)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
    assert rows == [[0, 1, 1, 1, 1, 1, 1, 1]] * 30
    assert packer.counts.cropped_tokens == 30 * (10**6 + 1 - 8)


def test_the_cropped_share_is_of_all_tokens() -> None:
    counts = PackingCounts(cropped_documents=3, cropped_tokens=30, left_out_documents=1, left_out_tokens=10)
    assert counts.cropped_share(60) == 0.3
    assert PackingCounts().cropped_share(0) == 0
