import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import checked_sidecar
from relm.corpus.documents import choose_split, hash_title, read_documents
from relm.corpus.extract import extract
from relm.errors import RelmError
from relm.examples.inspection import inspect
from relm.recipes.datasets import Dataset
from small_dumps import SAMPLE, articles, dataset, dump, page, written


def outputs(folder: Path) -> dict[str, Path]:
    return {split: folder / f"dump.{split}.jsonl" for split in ("train", "held_out")}


def run(
    source: Path, out: Path, documents: int | None = None, workers: int | None = 1, **settings: Any
) -> tuple[str, dict[str, list[str]], Mapping[str, Mapping[str, Any]]]:
    """Return the sentence, the titles of each split and the sidecars."""
    chosen = dataset(**{"held_out_one_in": 3, **settings})
    sentence = extract(chosen, source, outputs(out), documents, workers)
    titles = {split: [document.title for document in read_documents(path)] for split, path in outputs(out).items()}
    return sentence, titles, {split: checked_sidecar(path) for split, path in outputs(out).items()}


def test_a_dump_becomes_documents_of_two_splits_in_its_order(tmp_path: Path) -> None:
    _, titles, _ = run(written(tmp_path, articles(40)), tmp_path)
    every = [f"Title {i}" for i in range(40)]
    assert titles["held_out"] == [title for title in every if choose_split(hash_title(title), 3) == "held_out"]
    assert titles["train"] == [title for title in every if title not in titles["held_out"]]
    (first, *_) = read_documents(outputs(tmp_path)["train"])
    assert first.text.startswith(f"{first.title} is the number ")


def test_templates_that_leave_a_hole_in_a_sentence_are_named(tmp_path: Path) -> None:
    text = "{{Infobox|a}}\nIt had {{pop of|x}} people.{{sfn|A}} It is {{Pop of|y}} and {{far|z}} off.\n* {{cite|b}}\n{{Navbox}}"
    content = dump(*(page(f"Title {number}", text, number) for number in range(20)))
    sentence, _, sidecars = run(written(tmp_path, content), tmp_path)
    assert "; 60 templates in sentences show nothing, most often {{pop of}} 40, {{far}} 20; " in sentence
    assert sidecars["train"]["unknown_templates"] == {"pop of": 40, "far": 20}
    shown = inspect(outputs(tmp_path)["train"], None, 1)
    assert "extracted documents" in shown
    assert "40 {{pop of}}" in shown.replace("\xa0", " ")
    assert "It had people." in shown


def test_sidecars_count_documents_words_bytes_and_what_was_skipped(tmp_path: Path) -> None:
    pages = [
        page("T", "#redirect [[A]]"),
        page("Talk:A", "x", ns=1),
        page("E", "{{stub}}"),
        page("F", ""),
        page("B", "é [[x|two]]"),
    ]
    content = dump(*pages, *(page(f"A{i}", "one") for i in range(9))).removesuffix("</page>\n</mediawiki>\n")
    sentence, titles, sidecars = run(written(tmp_path, content), tmp_path, ends_mid_page=True)
    assert sum(len(found) for found in titles.values()) == 9
    for split, sidecar in sidecars.items():
        assert sidecar["skipped"] == {"redirects": 1, "other_namespaces": 1, "empty": 2, "cut": 1}
        texts = [document.text for document in read_documents(outputs(tmp_path)[split])]
        assert sidecar["documents"] == len(texts)
        assert sidecar["words"] == sum(len(text.split()) for text in texts)
        assert sidecar["bytes"] == sum(len(text.encode()) for text in texts)
    assert sum(sidecar["words"] for sidecar in sidecars.values()) == 10
    assert sum(sidecar["bytes"] for sidecar in sidecars.values()) == 8 * 3 + len("é two".encode())
    assert "extracted 9 documents with 10 words from dump.xml" in sentence
    assert "skipped: redirects 1, other namespaces 1, empty 2, cut 1; " in sentence
    assert sentence.endswith(" pages/s")


def test_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    source = written(tmp_path, articles(1500, words=20))
    contents = []
    for workers in (1, 2, 5):
        run(source, tmp_path / str(workers), workers=workers)
        contents.append([(p.name, p.read_bytes()) for p in sorted((tmp_path / str(workers)).iterdir())])
    assert contents[0] == contents[1] == contents[2]
    assert [name for name, _ in contents[0]] == [
        "dump.held_out.jsonl", "dump.held_out.jsonl.json", "dump.train.jsonl", "dump.train.jsonl.json",
    ]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_reading_stops_after_the_wanted_documents(tmp_path: Path, workers: int) -> None:
    content = articles(3000, words=20)
    content = content.replace("<page><title>Title 1<", page("R", "#redirect [[x]]") + "<page><title>Title 1<")
    damaged = content.replace("</page>", "</pag>").replace("</pag>", "</page>", 2900)
    _, titles, sidecars = run(written(tmp_path, damaged), tmp_path, documents=20, workers=workers)
    assert sorted(titles["train"] + titles["held_out"]) == sorted(f"Title {i}" for i in range(20))
    assert sidecars["train"]["skipped"] == {"redirects": 1, "other_namespaces": 0, "empty": 0, "cut": 0}


def test_damage_just_after_the_wanted_documents_does_not_matter(tmp_path: Path) -> None:
    source = written(tmp_path, articles(40).replace("Title 20<", "Title 20 &<", 1))
    _, titles, _ = run(source, tmp_path, documents=20)
    assert len(titles["train"] + titles["held_out"]) == 20
    with pytest.raises(RelmError, match="not well-formed"):
        run(source, tmp_path, documents=21)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_damaged_dump_leaves_nothing(tmp_path: Path, workers: int) -> None:
    source = written(tmp_path, articles(3000, words=20).encode()[:-100])
    with pytest.raises(RelmError, match="ends too early"):
        run(source, tmp_path / "out", workers=workers)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_attempt_leaves_an_earlier_success_as_it_was(tmp_path: Path) -> None:
    run(written(tmp_path, articles(40)), tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(RelmError, match="ends too early"):
        run(written(tmp_path, articles(40)[:-50]), tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def kill_first_worker(killed: list[int]) -> None:
    deadline = time.monotonic() + 60
    while not killed and time.monotonic() < deadline:
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGKILL)
            killed.append(process.pid or 0)
            return
        time.sleep(0.01)


def test_a_killed_worker_is_an_error_that_names_it_and_leaves_nothing(tmp_path: Path) -> None:
    source = written(tmp_path, articles(20_000, words=20))
    killed: list[int] = []
    killer = threading.Thread(target=kill_first_worker, args=(killed,))
    killer.start()
    with pytest.raises(RelmError) as raised:
        run(source, tmp_path / "out", workers=2)
    killer.join()
    assert f"extracting {source}: worker process {killed[0]} was killed by SIGKILL" in str(raised.value)
    assert list((tmp_path / "out").iterdir()) == []
    assert not multiprocessing.active_children()


def test_links_to_the_wikis_own_namespaces_show_nothing(tmp_path: Path) -> None:
    text = "Софӣя [[Файл:x|ляво|{}]] е [[Категория:Y]]град"
    content = dump(*(page(f"A{i}", text.format(i)) for i in range(9)), namespaces='<namespace key="6">Файл</namespace>')
    run(written(tmp_path, content), tmp_path)
    assert {document.text for path in outputs(tmp_path).values() for document in read_documents(path)} == {
        "Софӣя е Категория:Yград"
    }


def test_the_real_sample_reads_well(tmp_path: Path) -> None:
    _, titles, sidecars = run(SAMPLE, tmp_path, workers=2)
    assert len(titles["train"]) + len(titles["held_out"]) == 26
    assert sidecars["train"]["skipped"] == {"redirects": 5, "other_namespaces": 1, "empty": 0, "cut": 0}
    documents = [document for path in outputs(tmp_path).values() for document in read_documents(path)]
    lines = [line for document in documents for line in document.text.split("\n")]
    text = "\n".join(line for line in lines if "\\" not in line)  # formulas keep their TeX
    assert 10_000 < len(text.split()) < 30_000
    for residue in ("{{", "[[", "]]", "{|", "''", "<ref", "&nbsp;", "&amp;", "==", "( ", " )", "()", "  ", "\n\n", "thumb|"):
        assert residue not in text, residue


# --- tiny corpora ----------------------------------------------------------------------------------------------------------


def test_an_empty_split_is_an_error_that_says_what_would_work(tmp_path: Path) -> None:
    source = written(tmp_path, articles(5))
    with pytest.raises(
        RelmError, match=r"with held_out_one_in: 1000, none of 5 documents is held out of training; set"
    ) as raised:
        run(source, tmp_path / "out", held_out_one_in=1000)
    advice = int(str(raised.value).split("set held_out_one_in: ")[1].split()[0])
    _, titles, _ = run(source, tmp_path / "out", held_out_one_in=advice)
    assert titles["train"]
    assert titles["held_out"]


def test_one_document_cannot_be_two_splits(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="give at least two documents"):
        run(written(tmp_path, articles(1)), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_dump_without_articles_is_an_error_that_counts_what_there_is(tmp_path: Path) -> None:
    source = written(tmp_path, dump(page("A", "#redirect [[B]]"), page("B", "{{x}}")))
    with pytest.raises(RelmError, match=r"dump\.xml: contains no documents; skipped: redirects 1, empty 1; nothing"):
        run(source, tmp_path / "out")


# --- text files ------------------------------------------------------------------------------------------------------------


def folder_of(tmp_path: Path, texts: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder, {"format": "text_files", "folder": str(folder)}


def test_a_folder_of_texts_becomes_documents(tmp_path: Path) -> None:
    folder, settings = folder_of(tmp_path, {f"{i}.txt": f"text {i}" for i in range(9)} | {"e.txt": "\ufeff", "f.txt": " \n"})
    sentence, titles, sidecars = run(folder, tmp_path / "out", **settings)
    assert sorted(titles["train"] + titles["held_out"]) == [f"{i}.txt" for i in range(9)]
    assert sidecars["held_out"]["skipped"] == {"empty": 2}
    assert "warning: skipped files: empty 2; " in sentence
    assert sentence.endswith(" files/s")


def test_a_bad_file_of_a_folder_leaves_nothing(tmp_path: Path) -> None:
    folder, settings = folder_of(tmp_path, {f"{i}.txt": f"text {i}" for i in range(9)})
    (folder / "z.txt").write_bytes(b"ab\xff")
    with pytest.raises(RelmError, match=r"z\.txt: byte 2: not valid UTF-8 \(found b'\\xff'\)"):
        run(folder, tmp_path / "out", **settings)
    assert list((tmp_path / "out").iterdir()) == []


def several_files(names: list[str], one_in: int) -> Dataset:
    return dataset(*names, format="text_files", held_out_one_in=one_in)


def test_of_several_downloaded_texts_each_is_a_shard_of_one_split(tmp_path: Path) -> None:
    names = [f"{i}.txt" for i in range(9)]
    for name in names:
        extract(
            several_files(names, 3), written(tmp_path, name, name), outputs(tmp_path / name.removesuffix(".txt")), None, None
        )
    counts = [
        json.loads((tmp_path / str(i) / f"dump.{split}.jsonl.json").read_text())["documents"]
        for i in range(9)
        for split in ("train", "held_out")
    ]
    assert sorted(counts) == [0] * 9 + [1] * 9
    with pytest.raises(RelmError, match=r"none of 9 documents is held out of training"):
        extract(several_files(names, 10**6), written(tmp_path, "x", "0.txt"), outputs(tmp_path / "none"), None, None)
