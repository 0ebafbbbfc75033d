"""A store: objects by their hash, indexes that are checked before they are trusted, and clear errors."""

import datetime
import errno
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from relm.artifact import companions, sha256_of, stamp_of, write_sidecar
from relm.cluster.bucket.index import Index, IndexName, next_time, read_index
from relm.cluster.bucket.pull import Puller, pull
from relm.cluster.bucket.push import Pusher, push
from relm.cluster.bucket.run_files import list_files, list_own_folders, read_recorded_sha256, sort_states_last
from relm.cluster.bucket.store import Changed, Store, explain_error
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from small_project import Commands

FINGERPRINT = "0123456789ab"
PLACE = IndexName("tiny", FINGERPRINT, "20261120T223000.000000Z")


@pytest.fixture
def memory() -> Any:
    """`memory://bucket`, empty, and what lies in it by path."""
    fsspec.filesystem("memory").store.clear()
    yield fsspec.filesystem("memory").store
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def plan(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of the small project, which has a downloaded file, two checkpoints and a log."""
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    plan = Project().plan("tiny")
    shutil.copytree(project.folder / "mirror", plan.download("sample.xml").parent)
    for step in (10, 20):
        folder = plan.run_folder / "main" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.safetensors"):
            (folder / name).write_text(f"{name} {step}")
        (folder / "state.json").write_text(
            json.dumps({"sha256": {path.name: sha256_of(path) for path in sorted(folder.glob("*.safetensors"))}})
        )
    (plan.run_folder / "main" / "train.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    (plan.run_folder / "main" / "lock").write_text("1")
    (plan.run_folder / "main" / "compiled").mkdir()
    (plan.run_folder / "main" / "compiled" / "program").write_text("of one machine")
    (plan.run_folder / "main" / "checkpoints" / ".step-00000030.partial").mkdir()
    (plan.run_folder / "main" / "checkpoints" / ".step-00000030.partial" / "model.safetensors").write_text("half")
    return plan


def listed(plan: Plan) -> dict[str, int]:
    """Return name in the run's folder, or else in the project -> size, from the newest index."""
    store = Store("memory://bucket")
    index = store.index(store.indexes()[-1])
    return {file.name.removeprefix(f"work/runs/tiny/{plan.fingerprint}/main/"): file.size for file in index.files}


RUN = {
    "checkpoints/step-00000010/model.safetensors",
    "checkpoints/step-00000010/optimizer.safetensors",
    "checkpoints/step-00000010/state.json",
    "checkpoints/step-00000020/model.safetensors",
    "checkpoints/step-00000020/optimizer.safetensors",
    "checkpoints/step-00000020/state.json",
    "train.jsonl",
}


def test_what_a_run_needs_is_listed_and_what_belongs_to_a_machine_is_not(plan: Plan, memory: Any) -> None:
    message = push("memory://bucket", [plan], None)
    assert set(listed(plan)) == RUN | {plan.download("sample.xml").as_posix()}
    assert message.startswith("tiny: 8 files, 8 of them sent (5.")
    assert listed(plan)["train.jsonl"] == len('{"step": 1}\n{"step": 2}\n'), "as far as its lines are whole"


def test_a_checkpoint_that_is_deleted_while_it_is_pushed_is_left_out_whole(plan: Plan, memory: Any) -> None:
    class Deletes(Store):
        def put(self, sha256: str, path: Path, stamp: list[int], bar: Any) -> None:
            super().put(sha256, path, stamp, bar)
            if path.parent.name == "step-00000010":
                shutil.rmtree(path.parent)

    pushed = Pusher(Deletes("memory://bucket")).push(plan)
    data = plan.download("sample.xml").as_posix()
    assert set(listed(plan)) == {name for name in RUN if "step-00000010" not in name} | {data}
    assert pushed.left == 3
    assert "3 changed or disappeared meanwhile, and are left to the next push" in pushed.format_summary("tiny")


def test_a_file_that_is_written_while_it_is_pushed_is_not_stored_under_its_old_hash(tmp_path: Path, memory: Any) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    stamp, sha256 = stamp_of(path), sha256_of(path)
    path.write_text("after!!")
    store = Store("memory://bucket")
    with pytest.raises(Changed):
        store.put(sha256, path, stamp, _bar())
    assert store.objects() == {}


def _bar() -> Any:
    from tqdm import tqdm

    return tqdm(disable=True)


def test_pushed_again_only_a_change_makes_an_index_and_later_than_the_newest(plan: Plan, memory: Any) -> None:
    push("memory://bucket", [plan], None)
    push("memory://bucket", [plan], None)
    store = Store("memory://bucket")
    assert len(store.indexes()) == 1
    with open(plan.run_folder / "main" / "train.jsonl", "w") as log:
        log.write('{"step": 3}\n')
    push("memory://bucket", [plan], None)
    assert len(store.indexes()) == 2
    assert listed(plan)["train.jsonl"] == len('{"step": 3}\n')
    now = datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC)
    assert next_time(None, now) == "20261120T000000.000000Z"
    assert next_time("20301120T000000.000000Z", now) == "20301120T000000.000001Z", "whatever this clock says"


def test_a_pulled_log_may_be_of_any_time_and_a_state_is_written_after_all_else(plan: Plan, memory: Any) -> None:
    push("memory://bucket", [plan], None)
    shutil.rmtree("work")
    assert "8 of them fetched" in pull("memory://bucket", Project(), "tiny")
    assert {int(path.stat().st_mtime) for path in Path("work").rglob("*") if path.is_file()} == {1577836800}
    names = [
        "work/runs/a/checkpoints/step-00000010/state.json",
        "work/runs/a/checkpoints/step-00000010/z",
        "work/runs/a/train.jsonl",
    ]
    assert sort_states_last(names) == [names[1], names[2], names[0]]


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "work/../../evil",
        "/tmp/relm-test-evil/x",
        "work//evil",
        "work/./evil",
        "work\\..\\evil/x",
        "evil",
        "work/a\0b",
        "rules/train.smk",
        "recipes/models/evil.yaml",
        "results/other/README.md",
        ".snakemake/x",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_written(name: str, plan: Plan, memory: Any) -> None:
    push("memory://bucket", [plan], None)
    store = Store("memory://bucket")
    index_path = store.indexes()[-1]
    listing = json.loads(memory[f"/bucket/{index_path}"].getvalue())
    listing["files"].append({**listing["files"][0], "path": name})
    fsspec.filesystem("memory").pipe_file(f"/bucket/{index_path}", json.dumps(listing).encode())
    shutil.rmtree("work")
    with pytest.raises(RelmError, match=r"nothing was pulled: this is not what `relm push` wrote"):
        pull("memory://bucket", Project(), "tiny")
    assert not Path("work").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"no index of format 1 \(found 2\); pull with the version of relm that pushed it"),
        ({"name": "other"}, "is of run other 0123456789ab; it was stored under another run's name"),
        ({"files": [{"path": "work/a"}]}, "damaged: KeyError 'sha256'; push the run again"),
        (
            {"files": [{"path": "work/a", "sha256": "../x", "size": 1}]},
            "work/a: expected a sha256 and a size, found ../x and 1",
        ),
    ],
)
def test_an_index_that_is_none_is_refused(change: dict[str, Any], message: str) -> None:
    document = {**Index("tiny", FINGERPRINT, []).document(), **change}
    with pytest.raises(RelmError, match=message):
        read_index(document, "memory://bucket/i", PLACE)


def test_a_disk_that_is_full_is_refused_before_anything_is_written(
    plan: Plan, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    push("memory://bucket", [plan], None)
    shutil.rmtree("work")
    store = Store("memory://bucket")
    index = store.index(store.indexes()[-1])
    huge = [file._replace(size=10**18) if file.name.endswith("/sample.xml") else file for file in index.files]
    with pytest.raises(RelmError, match=r"pull tiny: needs 1,000,000 TB on the disk of work, which has"):
        Puller(store, Project().plan("tiny"), Index(index.name, index.fingerprint, huge)).pull()
    assert not Path("work").exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError("my-bucket"), "there is no such bucket, folder or object"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "no right to .*roles/storage.objectUser"),
        (OSError("Forbidden: https://storage.googleapis.com/b?token=SECRET"), "no right to .*roles/storage.objectUser"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full; make room and give the same command again"),
        (
            ImportError("Please install gcsfs to access Google Storage"),
            "gcsfs is not installed .*`make DEVICE=tpu environment`",
        ),
        (RuntimeError("connection reset"), "RuntimeError: connection reset; give the same command again"),
    ],
)
def test_a_fault_of_a_store_says_what_to_do_and_no_secret(error: Exception, message: str) -> None:
    import re

    assert re.search(message, explain_error(error)), explain_error(error)
    assert "SECRET" not in explain_error(error)


def test_without_google_credentials_the_error_says_who_gives_them() -> None:
    exceptions = pytest.importorskip("google.auth.exceptions", reason="google-auth is in the TPU's environment alone")
    assert "there are no credentials for it here (DefaultCredentialsError)" in explain_error(
        exceptions.DefaultCredentialsError("none")
    )


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed here")
def test_without_gcsfs_a_bucket_says_which_environment_has_it() -> None:
    with pytest.raises(RelmError, match=r"gs://b/x: cannot be opened: gcsfs is not installed in this environment"):
        Store("gs://b/x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://b", "Protocol not known: nowhere; give an address such as gs://bucket/folder"),
        ("sftp://me:secret@host/x", "an address has no @ and no"),
        ("gs://b/x?key=secret", "an address has no @ and no"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_what_may_be_a_secret(url: str, message: str) -> None:
    with pytest.raises(RelmError, match=message) as found:
        Store(url)
    assert "secret@" not in str(found.value)
    assert "key=" not in str(found.value)


def test_a_folder_that_leads_out_of_the_project_does_not_go_with_a_run(plan: Plan) -> None:
    for folder, goes in {
        "texts": True,
        "~/texts": False,
        "/texts": False,
        "../texts": False,
        "a/../../b": False,
        ".": False,
    }.items():
        text = f"title: T\nlicence: L\nlanguage: en\nformat: text_files\nfolder: {folder}\n"
        Path("recipes/data/mine.yaml").write_text(text)
        Path("recipes/mine.yaml").write_text("extends: tiny\ndata: {dataset: mine}\n")
        assert list_own_folders(Project().plan("mine")) == ([Path("texts")] if goes else []), folder


def test_weights_that_are_converted_go_with_what_they_were_made_of(plan: Plan) -> None:
    remote = "{sha256: '%s', size: 1, sources: [{url: 'http://127.0.0.1:9/x'}]}" % ("0" * 64)
    model = (
        f"title: T\nlicence: L\nweights: true\nfiles: {{pytorch_model.bin: {remote}}}\nconfiguration: {{model_type: gpt2}}\n"
    )
    Path("recipes/models/released.yaml").write_text(model)
    Path("recipes/begun.yaml").write_text("extends: tiny\ninit_from: released\n")
    begun = Project().plan("begun")
    assert begun.init_model is not None
    made = [begun.model_download("released", begun.init_model, "pytorch_model.bin"), *begun.starting_weights("main")]
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert set(made) <= set(list_files(begun).values())


def test_a_sidecar_and_a_checkpoints_state_give_the_hash_of_their_files_alone(plan: Plan) -> None:
    folder = plan.run_folder / "main" / "checkpoints" / "step-00000010"
    assert read_recorded_sha256(folder / "model.safetensors") == sha256_of(folder / "model.safetensors")
    assert read_recorded_sha256(folder / "state.json") is None
    file = Path("file")
    for sidecar, found in {
        '{"file": "file", "sha256": "a"}': "a",
        '{"file": "other", "sha256": "a"}': None,
        "no JSON": None,
    }.items():
        Path("file.json").write_text(sidecar)
        assert read_recorded_sha256(file) == found


def test_the_sidecar_of_a_model_has_the_hashes_of_all_its_files(plan: Plan) -> None:
    folder = plan.model_folder("main")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.safetensors", "config.json", "notes.md"):
        (folder / name).write_text(name)
    write_sidecar(folder / "model.safetensors", files=companions([folder / "config.json"]))
    for name in ("model.safetensors", "config.json"):
        assert read_recorded_sha256(folder / name) == sha256_of(folder / name)
    assert read_recorded_sha256(folder / "notes.md") is None
    assert read_recorded_sha256(folder / "model.safetensors.json") is None
