"""Duplicates and passages of tests are listed, and removed; `test_as_published_openwebtext.py` compares the pieces."""

import json
import random
from pathlib import Path

import pytest

from relm.artifact import read_sidecar, sidecar_of
from relm.cli import main
from relm.corpus.documents import read_documents
from relm.errors import RelmError
from relm.evaluation.removed_documents import ComparedTest, list_removed
from relm.examples import documents as documents_module
from relm.examples.kept_documents import remove_listed
from small_documents import write_texts

LONG = "He took the oars and began to row across the dark lake, toward the light of the village"


def lambada(folder: Path, *passages: str) -> ComparedTest:
    path = folder / "lambada.jsonl"
    path.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages))
    return ComparedTest("lambada", "lambada", path)


def entries_of(listed: Path) -> list[tuple[str, int, str, str]]:
    found = map(json.loads, listed.read_text().splitlines())
    return [(entry["file"], entry["line"], entry["reason"], entry["of"]) for entry in found]


def test_the_first_of_duplicates_stays_and_documents_with_a_tests_words_go(tmp_path: Path) -> None:
    test = lambada(tmp_path, "No document has this one passage of more than eight words", LONG)
    held_out = write_texts(tmp_path / "a.held_out.jsonl", ["One text.", "Another  text."])
    train = write_texts(
        tmp_path / "a.train.jsonl",
        ["Unique.", "another\nTEXT.", f"Before. {LONG}! After.", "Café", "Cafe\u0301", "Unique", "one text"],
    )
    output = tmp_path / "removed.jsonl"
    sentence = list_removed([held_out, train], output, True, [test])
    assert sentence == f"3 of 9 documents will be removed: duplicate 2, lambada 1; pieces of 0 others stay; {output}"
    assert entries_of(output) == [
        ("a.train.jsonl", 2, "duplicate", "a.held_out.jsonl, line 2"),
        ("a.train.jsonl", 3, "lambada", "line 2"),
        ("a.train.jsonl", 5, "duplicate", "a.train.jsonl, line 4"),
    ]
    assert read_sidecar(output)["removed"] == {"duplicate": 2, "lambada": 1}

    kept = tmp_path / "kept" / "a.train.jsonl"
    sentence = remove_listed(train, output, kept)
    assert sentence == f"kept 4 documents with 5 words; removed 3, duplicate 2, lambada 1; {kept}"
    assert [document.text for document in read_documents(kept)] == ["Unique.", "Café", "Unique", "one text"]
    facts = read_sidecar(kept)
    assert (facts["documents"], facts["words"], facts["bytes"]) == (4, 5, 26)
    assert facts["removed"] == {"duplicate": 2, "lambada": 1}
    unchanged = tmp_path / "kept" / "a.held_out.jsonl"
    remove_listed(held_out, output, unchanged)
    assert unchanged.read_bytes() == held_out.read_bytes()


def test_any_count_of_workers_and_any_size_of_chunks_gives_what_a_plain_program_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(20261126)
    words = [f"word{number}" for number in range(40)]
    texts = [" ".join(draw.choices(words, k=draw.randrange(30, 60))) for _ in range(120)]
    texts += [draw.choice((str.upper, str.title, str.lower))(text) + "  \n" for text in draw.sample(texts, 40)]
    draw.shuffle(texts)
    files = [write_texts(tmp_path / f"{n}.train.jsonl", texts[n::3]) for n in range(3)]
    expected, seen = [], set[str]()
    for file in files:
        for line, document in enumerate(read_documents(file), 1):
            plain = " ".join(document.text.lower().split())
            expected += [(file.name, line)] * (plain in seen)
            seen.add(plain)
    assert len(expected) == 40
    written = set()
    for workers, chunk in ((1, 2**20), (1, 500), (3, 700)):
        monkeypatch.setattr(documents_module, "CHUNK", chunk)
        output, kept = tmp_path / "removed.jsonl", tmp_path / "kept.jsonl"
        list_removed(files, output, True, [], workers)
        assert [entry[:2] for entry in entries_of(output)] == expected
        remove_listed(files[1], output, kept, workers)
        written.add(b"".join(path.read_bytes() for path in (output, sidecar_of(output), kept, sidecar_of(kept))))
    assert len(written) == 1
    removed = {line for name, line in expected if name == files[1].name}
    lines = [line for number, line in enumerate(files[1].read_bytes().splitlines(keepends=True), 1) if number not in removed]
    assert (tmp_path / "kept.jsonl").read_bytes() == b"".join(lines)


def test_what_cannot_be_listed_or_removed_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = write_texts(tmp_path / "a.train.jsonl", ["One text.", "one text."])
    (tmp_path / "b").mkdir()
    other = write_texts(tmp_path / "b" / "a.train.jsonl", ["Other."])
    output = tmp_path / "removed.jsonl"
    with pytest.raises(RelmError, match=r"nothing to do; pass --duplicates or --test"):
        list_removed([documents], output, False, [])
    with pytest.raises(RelmError, match=r"a\.train\.jsonl: duplicate name; rename one of the files"):
        list_removed([documents, other], output, True, [])
    with pytest.raises(RelmError, match=r"lambada\.jsonl: none of its 1 items has a text of 8 words"):
        list_removed([documents], output, True, [lambada(tmp_path, "Too short.")])
    with pytest.raises(RelmError, match=r"none of 2 documents would be left"):
        list_removed([write_texts(tmp_path / "c.jsonl", [LONG, LONG])], output, True, [lambada(tmp_path, LONG)])
    assert not output.exists()

    list_removed([documents], output, True, [])
    with pytest.raises(
        RelmError, match=r"b/a\.train\.jsonl: sha256 is [0-9a-f]{64}, .*removed\.jsonl was made from [0-9a-f]{64}"
    ):
        remove_listed(other, output, tmp_path / "kept.jsonl")
    output.write_text(output.read_text().replace('"line":2', '"line":1'))
    with pytest.raises(RelmError, match=r"removed\.jsonl: sha256 is .*changed since it was made"):
        remove_listed(documents, output, tmp_path / "kept.jsonl")
    assert not (tmp_path / "kept.jsonl").exists()

    given = ["list-removed", "--documents", str(documents), "--output", str(output), "--test"]
    for words in (["mine", "lambda", str(documents)], ["mine", "lambada"]):
        with pytest.raises(SystemExit):
            main([*given, *words])
        assert "--test: expected NAME FORMAT FILE [KEY], with a FORMAT of" in capsys.readouterr().err


def test_each_test_has_its_own_key(tmp_path: Path) -> None:
    documents = write_texts(tmp_path / "a.train.jsonl", [LONG, LONG.replace("oars", "ropes"), "Another text, which stays."])
    given = ["list-removed", "--documents", str(documents), "--output", str(tmp_path / "removed.jsonl")]
    for key, passage in {"text": LONG, "body": LONG.replace("oars", "ropes")}.items():
        file = tmp_path / f"{key}.jsonl"
        file.write_text(
            json.dumps({"text": "Words of no document, in the other key of both files of tests.", key: passage}) + "\n"
        )
        given += ["--test", key, "lambada", str(file), *(["body"] if key == "body" else [])]
    assert main(given) == 0
    assert [line for _, line, _, _ in entries_of(tmp_path / "removed.jsonl")] == [1, 2]
