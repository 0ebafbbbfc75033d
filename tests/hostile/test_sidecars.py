"""Sidecars, records and other JSON files that are damaged: a command that reads one ends in a plain error or shows the rest."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finished_runs import run_made_once
from relm.artifact import checked_sidecar, read_json, write_json, write_sidecar
from relm.cli import main
from relm.cluster.supervision import _read_owner
from relm.errors import RelmError
from relm.examples.manifest import read_manifest, write_manifest
from relm.graph.reruns import _read
from relm.recipes.project import Project

__all__ = ["run_made_once"]
SURFACE = "sidecars and records"
DAMAGES = {
    "{}": b"{}",
    "[]": b"[]",
    "null": b"null",
    "1": b"1",
    "text": b'"x"',
    "empty": b"",
    "list of null": b"[null]",
    "invalid UTF-8": b'\xff\xfe{"a": 1}',
    "nested lists": b"[" * 100_000,
    "nested objects": b'{"a":' * 500 + b"1" + b"}" * 500,
    "beyond floats": b"1e999",
    "NaN": b'{"size": NaN}',
}
# Files that a list of many runs, or a command that keeps what it cannot judge, goes on without.
READERS = {
    "results/tiny/recipe.json": ("runs", "status", "gc"),
    "results/tiny/verify.json": ("runs", "status", "gc"),
    "results/tiny/provenance.json": ("gc",),
    "results/tiny/ro-crate-metadata.json": ("status",),
    "results/tiny/SHA256SUMS": ("status",),
    "{run}/resolved.json": ("runs", "status", "gc"),
    "{verdict}": ("runs", "status"),
    "{held_out}": ("runs",),
    "{run}/main/model/model.safetensors.json": ("runs",),
    "{run}/main/train.jsonl": ("runs", "status"),
    "{run}/main/checkpoints.jsonl": ("status",),
}
# One damage of each kind for every command, since all of them read by the same function, to which `DAMAGES` are given as well.
KINDS = ("{}", "list of null", "nested lists")
SHOWN = {
    f"{command} {file}: {name}": (command, file, name) for file, read in READERS.items() for command in read for name in KINDS
}
SURVIVED = [*SHOWN, *DAMAGES]  # also what Snakemake's graph reads


@pytest.fixture(scope="module")
def published_run(run_made_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A finished run with its report and its published result, as the current folder; the names of its files."""
    folder = tmp_path_factory.mktemp("hostile") / "project"
    shutil.copytree(run_made_once, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("RELM_WORK", raising=False)
        plan = Project().plan("tiny")
        write_json(plan.run_folder / "resolved.json", {"fingerprint": plan.fingerprint, "recipe": {}})
        names = {task: str(path) for task, path in plan.evaluations().items()}
        names |= {"run": str(plan.run_folder), "verdict": str(plan.verdict())}
        figures = ["--evaluations", names["held_out"], names["samples"], "--output", str(plan.report_folder / "report.html")]
        assert main(["report", "tiny", "--verify", names["verdict"], *figures]) == 0
        assert main(["publish", "tiny"]) == 0
        yield names


@pytest.mark.parametrize("case", SHOWN.values(), ids=SHOWN)
def test_a_list_shows_the_rest_without_the_damaged_file(
    case: tuple[str, str, str], published_run: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Run a command with one file damaged, which is put back; a traceback would end the test."""
    command, file, name = case
    path = Path(file.format(**published_run))
    before = path.read_bytes()
    try:
        path.write_bytes(DAMAGES[name] + (b"\n" if path.suffix == ".jsonl" else b""))
        status = main([command, "tiny"] if command == "status" else [command])
    finally:
        path.write_bytes(before)
    output = capsys.readouterr()
    assert status in (0, 1)
    assert "tiny" in output.out + output.err or command == "gc"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_sidecar_is_named_in_the_error(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"12345")
    write_sidecar(path)
    path.with_name("a.bin.json").write_bytes(damage)
    with pytest.raises(RelmError, match=r"a\.bin\.json: not (valid JSON|a sidecar of relm)"):
        checked_sidecar(path)


def test_a_json_file_larger_than_any_of_relms_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(100 << 30)  # without blocks on the disk
    with pytest.raises(RelmError, match=r"a\.json: has 107,374,182,400 bytes"):
        read_json(tmp_path / "a.json")


SHARD: dict[str, Any] = {
    "objective": "causal",
    "layout": "tokens",
    "dtype": "uint16",
    "tokenizer_sha256": "0" * 64,
    "special": {"end_of_text": None},
    "settings": {},
    "vocabulary_size": 300,
    "tokens": 4,
    "documents": 2,
    "words": 3,
    "bytes": 20,
    "length_histogram": [[2, 2]],
}
COUNTS = {
    "more tokens": ({"tokens": 5}, "expected 5 tokens of 2 bytes, found a file of 8 bytes"),
    "fewer tokens": ({"tokens": 3}, "expected 3 tokens of 2 bytes, found a file of 8 bytes"),
    "wider tokens": ({"dtype": "int32"}, "expected 4 tokens of 4 bytes, found a file of 8 bytes"),
    "unknown type": ({"dtype": "object"}, "dtype: expected uint16 or int32, found 'object'"),
    "more documents than tokens": ({"documents": 9}, "at most 4 documents, one per token, found 9"),
    "tokens are true": ({"tokens": True}, "tokens: Input should be a valid integer, found True"),
    "tokens are text": ({"tokens": "4"}, "tokens: Input should be a valid integer, found '4'"),
    "negative documents": ({"documents": -2}, "documents: Input should be greater than or equal to 0, found -2"),
    "histogram of one number": ({"length_histogram": [[2]]}, r"length_histogram\.0: List should have at least 2 items"),
    "settings are a list": ({"settings": []}, r"settings: Input should be an object, found \[\]"),
}


@pytest.mark.parametrize(("changed", "message"), COUNTS.values(), ids=COUNTS)
def test_a_sidecar_of_another_shape_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.train.bin"
    path.write_bytes(b"12345678")
    write_sidecar(path, **{**SHARD, **changed})
    with pytest.raises(RelmError, match=message):
        write_manifest({"train": [path]}, tmp_path / "manifest.json")


MANIFESTS = {
    "tokens of a split": (("splits", "train", "tokens"), 400, "splits.train.tokens: expected 4 as in its shards, found 400"),
    "documents of a split": (
        ("splits", "train", "documents"),
        1,
        "splits.train.documents: expected 2 as in its shards, found 1",
    ),
    "tokens of a shard": (
        ("splits", "train", "shards", 0, "tokens"),
        400,
        "expected 400 tokens of 2 bytes, found a file of 8 bytes",
    ),
    "no splits": (("splits",), {}, "splits: Dictionary should have at least 1 item"),
    "negative size": (
        ("splits", "train", "shards", 0, "size"),
        -8,
        "size: Input should be greater than or equal to 0, found -8",
    ),
    "size is true": (("splits", "train", "shards", 0, "size"), True, "size: Input should be a valid integer, found True"),
}


@pytest.mark.parametrize(("keys", "value", "message"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_of_another_shape_is_refused(keys: tuple[Any, ...], value: Any, message: str, tmp_path: Path) -> None:
    path, manifest = tmp_path / "a.train.bin", tmp_path / "manifest.json"
    path.write_bytes(b"12345678")
    write_sidecar(path, **SHARD)
    write_manifest({"train": [path]}, manifest)
    read_manifest(manifest)
    content = place = json.loads(manifest.read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    manifest.write_text(json.dumps(content))
    with pytest.raises(RelmError, match=rf"manifest\.json: .*{message}"):
        read_manifest(manifest)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_snakemake_and_its_terminal_read_of_a_damaged_file_is_nothing(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(damage)
    assert _read(path) == {}
    assert _read_owner(path)["machine"] == {}


REFUSED = [*DAMAGES, *COUNTS, *MANIFESTS]
