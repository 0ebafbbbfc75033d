"""Datasets of a hub, which the `datasets` library reads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_hub import COMMIT, NAME, running_hub

from relm.corpus.documents import read_documents
from small_dumps import dataset

SETTINGS = {"format": "hugging_face", "held_out_one_in": 3}


def texts(split: str, count: int = 20) -> dict[str, list[Any]]:
    return {"other": list(range(count)), "text": [f"{split} {n}" for n in range(count)]}


def expected(split: str, count: int = 20, first: str = "") -> list[tuple[str, str, str]]:
    return [(f"{split}:{n + 1}", f"{split}:{n + 1}", f"{first or split} {n}") for n in range(count)]


PROGRAM = """
import json, sys
from pathlib import Path
from relm.recipes.datasets import Dataset
from relm.corpus.extract import extract
from relm.errors import RelmError

settings, out = json.loads(sys.argv[1]), Path(sys.argv[2])
try:
    print(extract(Dataset.model_validate(settings), None, {s: out / f"{s}.jsonl" for s in ("train", "held_out")}, None, 1))
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
def test_a_card_on_the_hub_names_only_files_of_its_own_commit(
    location: str, reason: str, hub_files: dict[str, bytes], tmp_path: Path
) -> None:
    files = [{"split": "train", "path": location.replace("PATH", str(tmp_path))}]
    words = json.dumps({"configs": [{"config_name": "default", "data_files": files}]})
    with running_hub({**hub_files, "README.md": f"---\n{words}\n---\n".encode()}) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        output = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT})
    assert output.startswith(f"RelmError: {NAME} at c0ffeec")
    assert reason in output


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"letters.py": b"raise SystemExit('it ran')"}, "Dataset scripts are no longer supported, but found letters.py"),
        ({"a.xml": b"<a/>"}, "need the reader datasets.packaged_modules.xml.xml, expected one of arrow, csv, json, parquet"),
        ({"a.pkl": b"cos\nsystem\n(S'false'\ntR."}, "No (supported) data files found"),
        ({"train.jsonl": b'{"body": "x"}\n'}, "split train: lacks the key 'text'; it has 'body'. Correct `text_key`"),
        ({"train.jsonl": b'{"text": 3}\n'}, "row 1: text: expected a text, found 3"),
        ({"train.parquet": b"PAR1 and no more"}, "after row 0: cannot be read"),
    ],
    ids=["script", "xml", "pickle", "key", "number", "cut"],
)
def test_what_must_not_or_cannot_be_read_is_an_error(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with running_hub(files) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        output = extracted_apart(endpoint, tmp_path, hub={"name": NAME, "revision": COMMIT})
    assert output.startswith(f"RelmError: {NAME} at c0ffeec")
    assert message in output
    assert list((tmp_path / "out").iterdir()) == []
