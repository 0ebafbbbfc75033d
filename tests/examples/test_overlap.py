import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from relm.errors import RelmError
from relm.examples import documents as documents_module
from relm.examples.cut_passages import WordSequences, find_sequences, list_sequences
from relm.examples.overlap import DocumentComparison, compare
from small_documents import write_texts

NUMBERS = [f"w{number}" for number in range(40)]


def text(first: int, last: int) -> str:
    return " ".join(NUMBERS[first:last])


def compared(
    path: Path, texts: Sequence[str], documents: Sequence[str], workers: int = 1
) -> tuple[dict[int, list[str]], list[int]]:
    """Return each document with the sequences of the texts that it has, and the digests."""
    sought = WordSequences.of(sequence for each in texts for sequence in list_sequences(each))
    results = list(compare([write_texts(path, documents)], DocumentComparison(sought, True), workers))
    found = {lines.first - 1 + position: each for lines, part in results for position, each in part.found.items()}
    digests = itertools.chain.from_iterable(part.digests.tolist() for _, part in results)
    return found, list(digests)


def random_case(seed: int) -> tuple[list[str], list[str]]:
    """Texts and documents of few words, so that they share long sequences; some texts are taken from documents."""
    generator = np.random.default_rng(seed)
    words = np.array(["a", "be", "Sea,", "dé-jà", "e\u0301", "Ș", "१२", "--", "x2", "snake_case"])

    def made(size: int) -> str:
        return " ".join(words[generator.integers(0, len(words), size)])

    documents = [made(size) for size in generator.integers(0, 120, 30)]
    texts = [made(size) for size in generator.integers(0, 30, 80)]
    for number, document in enumerate(documents):
        start, size = generator.integers(0, 60), generator.integers(6, 40)
        texts[2 * number] = " ".join(document.split()[start : start + size]).upper()
    return texts, documents


@pytest.mark.parametrize("seed", range(6))
def test_each_document_has_the_sequences_that_it_has_by_itself(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any count of workers and any size of chunks."""
    texts, documents = random_case(seed)
    sought = WordSequences.of(sequence for each in texts for sequence in list_sequences(each))
    shared = {number: found for number, each in enumerate(documents) if (found := find_sequences(each, sought))}
    whole = compared(tmp_path / "a.jsonl", texts, documents)
    assert whole[0] == shared
    assert len(shared) > 10
    monkeypatch.setattr(documents_module, "CHUNK", 512)
    assert compared(tmp_path / "a.jsonl", texts, documents, workers=1 + 2 * (seed == 0)) == whole


@pytest.mark.parametrize(
    ("sought", "document", "shares"),
    [
        (text(0, 13), text(0, 13), True),
        (text(0, 14), text(1, 14), True),
        (text(0, 13), text(0, 12), False),
        (text(0, 13), f"{text(0, 6)} also {text(6, 13)}", False),
        (text(0, 13), f"{text(0, 6).upper()}... {text(6, 13)}!", True),
        (text(0, 8), text(0, 20), True),  # short, so sought as a whole
        (text(0, 9), text(0, 8), False),
        (text(0, 7), text(0, 20), False),  # too short to be sought
    ],
)
def test_thirteen_words_are_compared_and_eight_at_least(sought: str, document: str, shares: bool, tmp_path: Path) -> None:
    """No sequence goes from one document to the next."""
    documents = ["another", document, *text(0, 13).split()]
    assert list(compared(tmp_path / "a.jsonl", [sought], documents)[0]) == [1] * shares


def test_a_line_that_is_no_document_is_named_and_no_documents_share_nothing(tmp_path: Path) -> None:
    assert compared(tmp_path / "a.jsonl", ["too short"], [], workers=2) == ({}, [])
    path = write_texts(tmp_path / "a.jsonl", ["one", "two"])
    path.write_text(path.read_text() + '{"text": "three"}\n')
    with pytest.raises(RelmError, match=r"a\.jsonl, line 3: expected the keys id, title and text"):
        list(compare([path], DocumentComparison(WordSequences.of([text(0, 13)])), 1))
