"""OpenWebText's archives and passages of a test become what the originals' programs make of them; see write_openwebtext.py."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from relm.artifact import read_sidecar, sidecar_of
from relm.corpus.documents import read_documents
from relm.corpus.extract import extract
from relm.evaluation.removed_documents import ComparedTest, list_removed
from relm.examples.cut_passages import EACH_SIDE, WordSequences, cut_passages, list_sequences
from relm.examples.kept_documents import remove_listed
from relm.recipes.datasets import Dataset
from small_documents import write_texts

sys.path.append(str(Path(__file__).resolve().parents[2] / "corpus"))
from openwebtext_input import make_archive, make_passages, make_texts
from write_openwebtext import OUTPUT, hash_lines

ORIGINAL = json.loads(OUTPUT.read_text())
PASSAGE = "He took the oars and began to row across the dark lake toward the light"


def lambada(folder: Path, passages: Sequence[str]) -> ComparedTest:
    path = folder / "lambada.jsonl"
    path.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages))
    return ComparedTest("lambada", "lambada", path)


def texts_of(path: Path) -> list[str]:
    return [document.text for document in read_documents(path)]


def test_an_archive_becomes_the_pages_that_graphcores_program_writes(tmp_path: Path) -> None:
    (tmp_path / "owt.tar").write_bytes(make_archive())
    dataset = Dataset.model_validate(
        {"title": "t", "licence": "l", "language": "en", "format": "text_archives", "folder": str(tmp_path)}
    )
    outputs = {split: tmp_path / f"{split}.jsonl" for split in ("train", "held_out")}
    extract(dataset, tmp_path / "owt.tar", outputs, None, 1)
    pages = sorted([page.title, page.text] for path in outputs.values() for page in read_documents(path))
    assert {"documents": len(pages), "sha256": hash_lines(pages)} == ORIGINAL["extract_and_merge"]


def test_what_stays_is_what_megatrons_program_leaves(tmp_path: Path) -> None:
    original = ORIGINAL["filter_ngrams"]
    texts = write_texts(tmp_path / "texts.jsonl", make_texts(), title="page")
    removed, kept = tmp_path / "removed.jsonl", tmp_path / "kept.jsonl"
    list_removed([texts], removed, False, [lambada(tmp_path, make_passages())])
    remove_listed(texts, removed, kept)
    assert {"pieces": len(texts_of(kept)), "sha256": hash_lines(texts_of(kept))} == {
        name: original[name] for name in ("pieces", "sha256")
    }
    facts = read_sidecar(removed)
    assert facts["documents"] == original["documents"]
    assert facts["removed"] == {"lambada": original["without_a_piece"] + original["of_too_many_pieces"]}
    in_several = original["in_several_pieces"] - original["of_too_many_pieces"]
    assert facts["cut"] == {"lambada": original["in_one_piece"] + in_several}
    assert read_sidecar(kept)["cut"] == facts["cut"]


def test_pieces_are_named_by_their_place_and_the_list_says_where_a_passage_is_from(tmp_path: Path) -> None:
    first, last = "One two three. " * 30, " Four five six." * 30
    text = f"{first}It said: {PASSAGE.upper()}{last}"
    texts = write_texts(tmp_path / "texts.jsonl", ["Before.", text, PASSAGE, "before."], title="page")
    removed, kept = tmp_path / "removed.jsonl", tmp_path / "kept.jsonl"
    sentence = list_removed([texts], removed, True, [lambada(tmp_path, ["Another passage", PASSAGE])])
    assert sentence == f"2 of 4 documents will be removed: duplicate 1, lambada 1; pieces of 1 others stay; {removed}"
    entries = [json.loads(line) for line in removed.read_text().splitlines()]
    (start, middle), (second, end) = entries[0]["kept"]
    assert (start, end) == (0, len(text))
    assert first[:middle] == "One two three. " * (middle // 15) + "One two three."[: middle % 15]
    assert middle <= len(first) + len("It said: ") - EACH_SIDE + 1
    assert text[middle - 1] == text[second - 1] == "."
    assert [(entry["line"], entry["reason"], entry["of"], entry.get("kept")) for entry in entries[1:]] == [
        (3, "lambada", "line 2", []),
        (4, "duplicate", "texts.jsonl, line 1", None),
    ]
    sentence = remove_listed(texts, removed, kept)
    assert "kept 3 documents" in sentence
    assert "removed 2, duplicate 1, lambada 1, cut 1;" in sentence
    assert [tuple(document) for document in read_documents(kept)] == [
        ("0", "page0", "Before."),
        ("1:0", "page1", text[:middle]),
        (f"1:{second}", "page1", text[second:]),
    ]


def test_a_phrase_in_ten_documents_is_no_passage_and_duplicates_do_not_count(tmp_path: Path) -> None:
    phrase = " ".join(PASSAGE.split()[:13])
    texts = [f"{phrase} {number}." for number in range(9)]
    for further, removed_documents in (([texts[0].upper()], 9), ([f"{phrase}, he said."], 0)):
        documents = write_texts(tmp_path / "texts.jsonl", ["Other.", *texts, *further])
        list_removed([documents], tmp_path / "removed.jsonl", True, [lambada(tmp_path, [phrase])])
        assert read_sidecar(tmp_path / "removed.jsonl")["removed"]["lambada"] == removed_documents
        sidecar_of(documents).unlink()


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (PASSAGE, []),
        (f"{'a ' * 300}{PASSAGE}", []),  # no full stop before it
        (f"a.{'a ' * 300}{PASSAGE}", []),  # the piece before it is too short
        (f"{'a ' * 100}b.{' a' * 100} {PASSAGE}", [(0, 202)]),
        (f"{'a ' * 99}b.{' a' * 100} {PASSAGE}", []),  # 200 characters
        (f"{PASSAGE}{' b' * 150}.{' c' * 101}", [(len(PASSAGE) + 301, len(PASSAGE) + 503)]),
        ("No passage.", None),
        (" ".join(PASSAGE.split()[:12]), None),
    ],
)
def test_a_passage_is_cut_with_its_surroundings(text: str, stays: list[tuple[int, int]] | None) -> None:
    found = cut_passages(text, WordSequences.of(list_sequences(PASSAGE)))
    assert (found.pieces if found else None) == stays
