"""Records describe a step without its user and host, and lead from a result back to its sources."""

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

import relm
from relm.artifact import seal, sidecar_of, write_json, write_sidecar
from relm.errors import RelmError
from relm.provenance import surroundings
from relm.provenance.step_record import collect, record, record_of, require_as_made
from relm.recipes.checkout import read_commit


def made(path: Path, content: str = "content") -> Path:
    """Return a file with its sidecar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    write_sidecar(path)
    return path


def recorded(step: str, inputs: list[Path], outputs: list[Path]) -> None:
    """Record a step that has already made its outputs."""
    with record(step, inputs, outputs, ["relm", step]):
        pass


def test_a_record_says_what_was_read_and_made(in_project: Path) -> None:
    source, output = made(Path("recipes/a.yaml"), "abc"), made(Path("work/b.bin"), "12345")
    with record("encode", [source, Path("recipes")], [output], ["relm", "encode", "a b"]) as facts:
        facts["summary"] = "encoded 5 bytes"
    found = json.loads(Path("work/b.bin.record.json").read_text())
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found["inputs"] == [
        {"path": "recipes/a.yaml", "sha256": abc, "size": 3},
        {"path": "recipes", "sha256": None, "size": None},
    ]
    assert found["outputs"] == [{"path": "work/b.bin", "sha256": hashlib.sha256(b"12345").hexdigest(), "size": 5}]
    assert (found["step"], found["summary"], found["argv"]) == ("encode", "encoded 5 bytes", ["relm", "encode", "a b"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["started"])
    assert found["ended"] >= found["started"]
    assert found["cpu_seconds"] > 0
    assert 2**20 < found["peak_memory_bytes"] < found["host"]["memory_bytes"]
    assert found["host"]["cores_usable"] >= 1
    assert found["software"]["relm"] == "0.1.0"


def test_a_sidecar_spares_hashing_unless_its_size_differs(in_project: Path) -> None:
    output = made(Path("work/big.bin"), "12345")
    sidecar = json.loads(sidecar_of(output).read_text())
    write_json(sidecar_of(output), seal({**sidecar, "sha256": "f" * 64}))
    recorded("x", [], [output])
    assert json.loads(record_of(output).read_text())["outputs"][0]["sha256"] == "f" * 64
    write_json(sidecar_of(output), seal({**sidecar, "sha256": "f" * 64, "size": 4}))
    recorded("x", [], [output])
    assert json.loads(record_of(output).read_text())["outputs"][0]["sha256"] == sidecar["sha256"]


def test_a_json_file_that_is_no_sidecar_is_not_taken_for_one(in_project: Path) -> None:
    output = made(Path("work/tokenizer"), "12345")
    sidecar_of(output).write_text('{"sha256": "f", "size": 5, "file": "other"}')
    recorded("x", [], [output])
    assert json.loads(record_of(output).read_text())["outputs"][0]["sha256"] == hashlib.sha256(b"12345").hexdigest()


def test_a_failed_step_leaves_no_record(in_project: Path) -> None:
    output = made(Path("work/a"))
    with pytest.raises(ValueError, match="broken"), record("x", [], [output], []):
        raise ValueError("broken")
    assert not record_of(output).exists()


def test_a_step_that_made_nothing_is_an_error(in_project: Path) -> None:
    with pytest.raises(RelmError, match=r"step x: .* did not make work/absent"):
        recorded("x", [], [Path("work/absent")])


def test_tokens_are_masked_wherever_they_occur(in_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "squeamish")
    monkeypatch.setenv("WANDB_API_KEY", "ossifrage")
    monkeypatch.setenv("MY_PASSWORD", "a-long-secret")
    output = made(Path("work/a"))
    argv = ["relm", "--header=Bearer squeamish", "ossifrage", "https://me:word@host/x", "hf_abcdefghijklmnopqrst"]
    with record("x", [], [output], argv) as facts:
        facts["summary"] = "asked with squeamish"
        facts["nested"] = [{"a": ("a-long-secret",)}]
    text = record_of(output).read_text()
    for secret in ("squeamish", "ossifrage", "a-long-secret", "me:word", "hf_abc"):
        assert secret not in text
    assert json.loads(text)["argv"][1] == "--header=Bearer ***"


def test_neither_home_nor_user_nor_host_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "homes" / "alice"
    (home / "checkout").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "alice")
    monkeypatch.setenv("RELM_WORK", str(tmp_path / "scratch" / "alice" / "fast"))
    monkeypatch.chdir(home / "checkout")
    output = made(tmp_path / "scratch/alice/fast/a.bin")
    inputs = [made(home / "texts/one.txt"), made(home / "checkout/recipes/x.yaml"), made(tmp_path / "data/alice/two.txt")]
    with record("x", inputs, [output], [str(home / "checkout/relm"), "--output", str(output), f"--from={inputs[0]}"]):
        pass
    text = record_of(output).read_text()
    assert "alice" not in text
    found = json.loads(text)
    assert [entry["path"] for entry in found["inputs"][:2]] == ["~/texts/one.txt", "recipes/x.yaml"]
    assert found["inputs"][2]["path"].endswith("/data/USER/two.txt")
    assert found["outputs"][0]["path"] == "work/a.bin"
    assert found["argv"] == ["./relm", "--output", "work/a.bin", "--from=~/texts/one.txt"]
    assert set(found["host"]) == {"platform", "processor", "cores_usable", "memory_bytes"}


def test_only_imported_packages_are_recorded_with_their_versions() -> None:
    import numpy as np

    versions = surroundings.software()
    assert versions["numpy"] == np.__version__
    assert "poptorch" not in versions


# --- the code's checkout -----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout in which this package appears to be."""
    package = tmp_path / "src" / "relm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(relm, "__file__", str(package / "__init__.py"))
    return tmp_path


def test_the_commit_is_recorded_and_whether_the_code_differs_from_it(checkout: Path) -> None:
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    (checkout / "notes.txt").write_text("beside the code")
    assert read_commit() == {"commit": head.stdout.strip(), "changed": False}
    (checkout / "src/relm/new.py").write_text("x = 1")
    assert read_commit() == {"commit": head.stdout.strip(), "changed": True}


def test_a_package_installed_inside_another_checkout_has_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = checkout / ".venv/lib/site-packages/relm"
    installed.mkdir(parents=True)
    monkeypatch.setattr(relm, "__file__", str(installed / "__init__.py"))
    commit = read_commit()
    assert commit["commit"] is None
    assert "installed as a package" in commit["reason"]


def test_without_git_or_checkout_the_reason_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src/relm").mkdir(parents=True)
    monkeypatch.setattr(relm, "__file__", str(tmp_path / "src/relm/__init__.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    commit = read_commit()
    assert commit["commit"] is None
    assert "not a git repository" in commit["reason"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit()["reason"] == "git is not installed"


# --- the way back -----------------------------------------------------------------------------------------------------------


def chain() -> dict[str, Path]:
    """download -> extract (two files) -> encode, which takes the sidecar -> two evaluations."""
    files = {name: made(Path("work") / name / "file") for name in ("download", "train", "encode", "first", "second")}
    files["held_out"] = made(Path("work/train/other"))
    recorded("download", [made(Path("recipes/x.yaml"))], [files["download"]])
    recorded("extract", [files["download"]], [files["train"], files["held_out"]])
    recorded("encode", [sidecar_of(files["held_out"])], [files["encode"]])
    recorded("first", [files["encode"]], [files["first"]])
    recorded("second", [files["encode"], files["train"]], [files["second"]])
    return files


def test_records_come_in_the_order_of_the_datas_way_each_once(in_project: Path) -> None:
    files = chain()
    steps = [record["step"] for record in collect([files["second"], sidecar_of(files["first"])])]
    assert steps == ["download", "extract", "encode", "second", "first"]


def test_a_missing_record_is_named_and_what_lies_before_it_too(in_project: Path) -> None:
    files = chain()
    record_of(files["train"]).unlink()
    records = collect([files["first"]])
    assert [each["step"] for each in records] == [None, "encode", "first"]
    assert records[0]["outputs"][0]["path"] == "work/train/other"
    assert records[0]["missing"] == "no record"


def test_a_record_of_other_content_is_an_error(in_project: Path) -> None:
    files = chain()
    made(files["encode"], "made again by hand")
    with pytest.raises(RelmError, match=rf"{files['encode'].name}: .* has [0-9a-f]{{64}}. Delete them"):
        collect([files["first"]])


def test_an_input_without_a_sidecar_must_be_the_one_that_its_record_lists(in_project: Path) -> None:
    first, beside = Path("work/model/first"), Path("work/log")
    for path in (first, beside):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")
    recorded("x", [], [first, beside])
    require_as_made(beside, first_output=first)
    beside.write_text("CONTENT")
    require_as_made(beside)  # no record is beside it
    with pytest.raises(RelmError, match=r"work/log: sha256 is .* first\.record\.json has"):
        require_as_made(beside, first_output=first)


def test_records_are_found_when_the_work_folder_is_elsewhere(
    in_project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("RELM_WORK", str(elsewhere))
    first, second = made(elsewhere / "a/one"), made(elsewhere / "b/two")
    recorded("first", [], [first])
    recorded("second", [first], [second])
    assert [record["step"] for record in collect([second])] == ["first", "second"]
    assert collect([second])[0]["outputs"][0]["path"] == "work/a/one"
