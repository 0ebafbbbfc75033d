"""Datasets that the `datasets` library reads: what `save_to_disk` wrote, folders of files, and a hub."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_dumps import dataset, written
from small_hub import COMMIT, NAME, running_hub
from small_sources import content, extracted

from relm.corpus.documents import read_documents
from relm.errors import RelmError

SETTINGS = {"format": "hugging_face", "held_out_one_in": 3}


def texts(split: str, count: int = 20) -> dict[str, list[Any]]:
    return {"other": list(range(count)), "text": [f"{split} {n}" for n in range(count)]}


def expected(split: str, count: int = 20, first: str = "") -> list[tuple[str, str, str]]:
    return [(f"{split}:{n + 1}", f"{split}:{n + 1}", f"{first or split} {n}") for n in range(count)]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


# --- folders ---------------------------------------------------------------------------------------------------------------


def test_a_saved_dataset_is_read_row_by_row(tmp_path: Path) -> None:
    datasets.Dataset.from_dict(texts("train")).save_to_disk(tmp_path / "saved")
    found = extracted(tmp_path / "saved", tmp_path / "out", **SETTINGS)
    assert found.documents == expected("train")
    assert found.sentence.startswith("extracted 20 documents with 40 words from saved, ")
    with pytest.raises(RelmError, match=r"saved: holds split train; set `split: train` in the dataset's file, found test"):
        extracted(tmp_path / "saved", tmp_path / "out", split="test", **SETTINGS)


def test_a_saved_dataset_of_several_splits_gives_the_wanted_one(tmp_path: Path) -> None:
    splits = {name: datasets.Dataset.from_dict(texts(name)) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    assert extracted(tmp_path / "saved", tmp_path / "out", split="test", **SETTINGS).documents == expected("test")
    with pytest.raises(RelmError, match=r"saved: has no split dev; it has train, test"):
        extracted(tmp_path / "saved", tmp_path / "out", split="dev", **SETTINGS)


def folder_of(tmp_path: Path, kind: str) -> Path:
    folder = tmp_path / kind
    folder.mkdir()
    rows = [dict(zip(("other", "text"), row, strict=True)) for row in zip(*texts("train").values(), strict=True)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows[:7]), folder / "train-0.parquet")
        pq.write_table(pa.Table.from_pylist(rows[7:]), folder / "train-1.parquet")
    else:
        content = {
            "json": "".join(json.dumps(row) + "\n" for row in rows),
            "csv": "other,text\n" + "".join(f"{row['other']},{row['text']}\n" for row in rows),
            "text": "".join(f"{row['text']}\n" for row in rows),
        }
        written(folder, content[kind], "train." + {"json": "jsonl", "csv": "csv", "text": "txt"}[kind])
    return folder


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "text"])
def test_a_folder_of_files_is_read_by_their_kind(kind: str, tmp_path: Path) -> None:
    assert extracted(folder_of(tmp_path, kind), tmp_path / "out", **SETTINGS).documents == expected("train")


def test_the_same_bytes_for_any_number_of_workers_and_wherever_the_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, "parquet")
    extracted(folder, tmp_path / "one", **SETTINGS)
    monkeypatch.setattr("relm.corpus.extract.BYTES_PER_WORKER", 1)
    monkeypatch.setattr("relm.corpus.hugging_face.ROWS", 3)
    extracted(folder.rename(tmp_path / "moved"), tmp_path / "two", workers=2, **SETTINGS)
    assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"folder.py": b"raise SystemExit('it ran')", "a.txt": b"x"}, "Dataset scripts are no longer supported"),
        ({"a.xml": b"<a/>"}, r"read by datasets\.packaged_modules\.xml\.xml; only arrow, csv, json, parquet, text are"),
        ({"a.pkl": b"cos\nsystem\n(S'false'\ntR."}, r"No \(supported\) data files found"),
        (
            {"README.md": b"---\nconfigs:\n- config_name: a\n  data_files: '*.txt'\n---\n", "b.txt": b"x"},
            "no document|held out",
        ),
        ({"a.parquet": b"PAR1 and no more"}, "after row 0: cannot be read"),
        ({"a.jsonl": b'{"body": "x"}\n'}, "split train: no key 'text', it has 'body'; say which key has the text"),
        ({"a.jsonl": b'{"text": 3}\n'}, "row 1: text: expected a text, found 3"),
        ({"a.jsonl": b'{"text": "x"}\n{"text": \n'}, "cannot be read"),
    ],
    ids=["script", "xml", "pickle", "card", "cut", "key", "number", "json"],
)
def test_what_must_not_or_cannot_be_read_is_an_error_and_nothing_is_written(
    files: Mapping[str, bytes], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, bad in files.items():
        written(folder, bad, name)
    with pytest.raises(RelmError, match=message) as raised:
        extracted(folder, tmp_path / "out", **SETTINGS)
    assert str(folder) in str(raised.value)
    assert list((tmp_path / "out").iterdir()) == []


# --- a hub -----------------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from pathlib import Path
from relm.catalogue import Dataset
from relm.corpus.extract import extract
from relm.errors import RelmError

settings, out = json.loads(sys.argv[1]), Path(sys.argv[2])
try:
    source = Path(settings["folder"]) if "folder" in settings else None
    print(extract(Dataset.model_validate(settings), source, {s: out / f"{s}.jsonl" for s in ("train", "held_out")}, None, 1))
except RelmError as error:
    print("RelmError:", error)
"""


def extracted_apart(endpoint: str, tmp_path: Path, **settings: Any) -> str:
    """The sentence or error of a process of its own: the library reads HF_ENDPOINT once."""
    chosen = dataset(**{**SETTINGS, **settings}).model_dump(mode="json", exclude_defaults=True)
    home = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(chosen), str(tmp_path / "out")]
    done = subprocess.run(command, env={**os.environ, **home}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def hub_files(tmp_path: Path) -> dict[str, bytes]:
    pq.write_table(pa.table(texts("letters")), tmp_path / "letters.parquet")
    parquet = (tmp_path / "letters.parquet").read_bytes()
    return {"train-0.parquet": parquet, "test-0.parquet": parquet}


def test_a_dataset_of_a_hub_is_streamed_at_its_commit(hub_files: dict[str, bytes], tmp_path: Path) -> None:
    with running_hub(hub_files) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        said = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT}, split="test")
        assert said.startswith(f"extracted 20 documents with 40 words from {NAME}, ")
        assert f"/datasets/{NAME}/resolve/{COMMIT}/test-0.parquet" in hub.asked
        assert not any("/main" in path for path in hub.asked)
        found = [document for name in ("train", "held_out") for document in read_documents(tmp_path / "out" / f"{name}.jsonl")]
        assert sorted(found, key=lambda document: int(document.id[5:])) == expected("test", first="letters")
        said = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": "0" * 40})
        assert said.startswith(f"RelmError: {NAME} at 0000000, split train, after row 0: cannot be read (")


def test_a_script_on_the_hub_is_refused(hub_files: dict[str, bytes], tmp_path: Path) -> None:
    with running_hub({**hub_files, "letters.py": b"raise SystemExit('it ran')"}) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        said = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT})
    assert "Dataset scripts are no longer supported, but found letters.py" in said


def test_a_folder_asks_no_hub(tmp_path: Path) -> None:
    with running_hub({}) as hub:
        said = extracted_apart(f"http://127.0.0.1:{hub.server_port}", tmp_path, folder=str(folder_of(tmp_path, "parquet")))
        assert said.startswith("extracted 20 documents")
        assert hub.asked == []
