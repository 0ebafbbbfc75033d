"""Datasets that the `datasets` library reads: output of `save_to_disk`, folders of files, and a hub."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
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
    with pytest.raises(RelmError, match=r"saved: has the split train, expected test; set `split: train`"):
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
        (
            {"a.xml": b"<a/>"},
            r"need the reader datasets\.packaged_modules\.xml\.xml; only the readers arrow, csv, json, parquet, text are",
        ),
        ({"a.pkl": b"cos\nsystem\n(S'false'\ntR."}, r"No \(supported\) data files found"),
        (
            {"README.md": b"---\nconfigs:\n- config_name: a\n  data_files: '*.txt'\n---\n", "b.txt": b"x"},
            "no document|held out",
        ),
        ({"a.parquet": b"PAR1 and no more"}, "after row 0: cannot be read"),
        ({"a.jsonl": b'{"body": "x"}\n'}, "split train: no key 'text', it has 'body'; set `text_key`"),
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


# --- files outside the folder ----------------------------------------------------------------------------------------------


def outside(folder: Path) -> Path:
    """Return a folder beside the one that is read, with files of every kind that could become documents."""
    path = folder.parent / "outside"
    path.mkdir()
    rows = "".join(f"secret {n}\n" for n in range(20))
    written(path, rows, "secret.txt")
    with zipfile.ZipFile(path / "secret.zip", "w") as archive:
        archive.writestr("secret.txt", rows)
    datasets.Dataset.from_dict(texts("secret")).save_to_disk(path / "saved")
    return path


def card(folder: Path, *configs: Mapping[str, Any], name: str = "README.md") -> None:
    """Write the configurations of a dataset into its card or the file that replaces one."""
    words = json.dumps({"configs": [{"config_name": "default", **config} for config in configs]})
    (folder / name).write_text(words if name.endswith(".yaml") else f"---\n{words}\n---\n")


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def saved_elsewhere(folder: Path, target: Path, arrow: str) -> None:
    """Write a saved dataset whose `state.json` names an Arrow file of another folder."""
    datasets.Dataset.from_dict(texts("train")).save_to_disk(folder)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"] = [{"filename": arrow or str(next(target.glob("saved/*.arrow")))}]
    (folder / "state.json").write_text(json.dumps(state))


TRICKS: dict[str, Callable[[Path, Path], Any]] = {
    "an absolute path": lambda folder, out: card(folder, {"data_files": f"{out}/secret.txt"}),
    "a path upwards": lambda folder, out: card(folder, {"data_files": "../outside/secret.txt"}),
    "a path down and upwards": lambda folder, out: card(folder, {"data_files": "data/../../outside/secret.txt"}),
    "a pattern": lambda folder, out: card(folder, {"data_files": f"{out.parent}/out*/*.txt"}),
    "one split of two": lambda folder, out: card(
        folder, {"data_files": [{"split": "train", "path": "a.txt"}, {"split": "test", "path": f"{out}/secret.txt"}]}
    ),
    "one file of two": lambda folder, out: card(folder, {"data_files": ["a.txt", "../outside/secret.txt"]}),
    "another folder": lambda folder, out: card(folder, {"data_dir": "../outside"}),
    "another absolute folder": lambda folder, out: card(folder, {"data_dir": str(out), "data_files": f"{out}/**/*.txt"}),
    "the second configuration": lambda folder, out: card(
        folder,
        {"config_name": "decoy", "data_files": "a.txt"},
        {"data_files": "../outside/secret.txt", "default": True},
    ),
    "a card in YAML": lambda folder, out: card(folder, {"data_files": "../outside/secret.txt"}, name=".huggingface.yaml"),
    "an address of a file": lambda folder, out: card(folder, {"data_files": f"file://{out}/secret.txt"}),
    "a member of an archive": lambda folder, out: card(folder, {"data_files": f"zip://secret.txt::file://{out}/secret.zip"}),
    "a linked file": lambda folder, out: link(folder / "b.txt", out / "secret.txt"),
    "a file linked by a path upwards": lambda folder, out: link(folder / "b.txt", Path("../outside/secret.txt")),
    "a linked folder": lambda folder, out: (link(folder / "b", out), card(folder, {"data_files": "b/secret.txt"})),
    "a saved dataset with an absolute path": lambda folder, out: saved_elsewhere(folder, out, ""),
    "a saved dataset with a path upwards": lambda folder, out: saved_elsewhere(
        folder, out, "../outside/saved/data-00000-of-00001.arrow"
    ),
    "a saved dataset of splits": lambda folder, out: (folder / "dataset_dict.json").write_text(
        json.dumps({"splits": ["../outside/saved"]})
    ),
    "a saved dataset of linked splits": lambda folder, out: (
        link(folder / "train", out / "saved"),
        (folder / "dataset_dict.json").write_text('{"splits": ["train"]}'),
    ),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_no_file_outside_the_folder_becomes_documents(trick: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    written(folder, "".join(f"inside {n}\n" for n in range(20)), "a.txt")
    TRICKS[trick](folder, outside(folder))
    split = "../outside/saved" if trick == "a saved dataset of splits" else "train"
    with pytest.raises(RelmError, match=r"/out(side|\*)") as raised:
        extracted(folder, tmp_path / "out", **SETTINGS, split=split)
    assert "lies outside the folder" in str(raised.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("address", ["zip://a.txt::ftp://host/a.zip", "hf://datasets/a/b/a.txt", "memory://a.txt", "data:,a"])
@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
def test_an_address_in_a_card_is_refused_before_anything_asks_it(tmp_path: Path, monkeypatch, address: str, name: str) -> None:
    requested: list[Any] = []
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *arguments, **options: requested.append(arguments))
    written(tmp_path, "inside\n", "a.txt")
    card(tmp_path, {"data_files": {"train": ["a.txt"], "test": [address]}}, name=name)
    with pytest.raises(RelmError, match=rf"{re.escape(repr(address))}, which {name} names, lies outside the folder"):
        extracted(tmp_path, tmp_path / "out", **SETTINGS)
    assert not requested


def test_files_and_links_inside_the_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "data").mkdir(parents=True)
    written(folder, "".join(f"train {n}\n" for n in range(20)), "data/a.txt")
    link(folder / "b.txt", Path("data/a.txt"))
    card(folder, {"data_files": "b.txt"})
    (tmp_path / "link").symlink_to(folder)
    assert extracted(tmp_path / "link", tmp_path / "out", **SETTINGS).documents == expected("train")


def test_features_in_a_card_read_no_file_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    secret = outside(folder) / "secret.txt"
    written(folder, "".join(json.dumps({"text": str(secret)}) + "\n" for _ in range(20)), "a.jsonl")
    words = {"dataset_info": {"features": [{"name": "text", "dtype": "image"}]}}
    (folder / "README.md").write_text(f"---\n{json.dumps(words)}\n---\n")
    with pytest.raises(RelmError, match=r"expected a text|cannot be read"):
        extracted(folder, tmp_path / "out", **SETTINGS)


# --- a hub -----------------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from pathlib import Path
from relm.recipes.datasets import Dataset
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
    """Return the sentence or error of a separate process: the library reads HF_ENDPOINT once."""
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
        output = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT}, split="test")
        assert output.startswith(f"extracted 20 documents with 40 words from {NAME}, ")
        assert f"/datasets/{NAME}/resolve/{COMMIT}/test-0.parquet" in hub.requests
        assert not any("/main" in path for path in hub.requests)
        found = [document for name in ("train", "held_out") for document in read_documents(tmp_path / "out" / f"{name}.jsonl")]
        assert sorted(found, key=lambda document: int(document.id[5:])) == expected("test", first="letters")
        output = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": "0" * 40})
        assert output.startswith(f"RelmError: {NAME} at 0000000, split train, after row 0: cannot be read (")


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (f"hf://datasets/{NAME}@main/train-0.parquet", "train-0.parquet lies outside the dataset's pinned commit"),
        pytest.param("PATH/letters.parquet", "Data files don't belong to", marks=pytest.mark.full),
    ],
)
def test_a_card_on_the_hub_names_files_of_its_own_commit_alone(
    location: str, reason: str, hub_files: dict[str, bytes], tmp_path: Path
) -> None:
    files = [{"split": "train", "path": location.replace("PATH", str(tmp_path))}]
    words = json.dumps({"configs": [{"config_name": "default", "data_files": files}]})
    with running_hub({**hub_files, "README.md": f"---\n{words}\n---\n".encode()}) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        output = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT})
    assert output.startswith(f"RelmError: {NAME} at c0ffeec")
    assert reason in output


def test_a_script_on_the_hub_is_refused(hub_files: dict[str, bytes], tmp_path: Path) -> None:
    with running_hub({**hub_files, "letters.py": b"raise SystemExit('it ran')"}) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        output = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT})
    assert "Dataset scripts are no longer supported, but found letters.py" in output


def test_a_folder_asks_no_hub(tmp_path: Path) -> None:
    with running_hub({}) as hub:
        output = extracted_apart(f"http://127.0.0.1:{hub.server_port}", tmp_path, folder=str(folder_of(tmp_path, "parquet")))
        assert output.startswith("extracted 20 documents")
        assert hub.requests == []
