"""A store: objects by their hash, indexes that are checked before they are trusted, and clear errors.

A writer of the bucket can change a run's data, but nothing else on the machine that pulls.
"""

import errno
import importlib.util
import json
import logging
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from relm.artifact import companions, sha256_of, stamp_of, write_sidecar
from relm.cluster.bucket.pull import Puller, pull
from relm.cluster.bucket.push import push, push_run
from relm.cluster.bucket.run_files import find_paths, list_files, read_recorded_sha256
from relm.cluster.bucket.store import Changed, Index, Store, explain_error
from relm.errors import RelmError
from relm.plan.products import list_shared_files
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from small_project import Commands

URL = "memory://bucket"


@pytest.fixture
def memory() -> Iterator[Any]:
    """A bucket in memory, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture
def plan(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of the small project, which has a downloaded file, two checkpoints and a log."""
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    plan = Project().plan("tiny")
    shutil.copytree(project.folder / "mirror", plan.documents_job.download("sample.xml").parent)
    for step in (10, 20):
        folder = plan.run_folder / "main" / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.safetensors"):
            (folder / name).write_text(f"{name} {step}")
        (folder / "state.json").write_text(
            json.dumps({"sha256": {path.name: sha256_of(path) for path in sorted(folder.glob("*.safetensors"))}})
        )
    (plan.run_folder / "main" / "train.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    of_one_machine = ("lock", "compiled/program", "checkpoints/.step-00000030.partial/model.safetensors")
    for path in (*(plan.run_folder / "main" / name for name in of_one_machine), plan.results / "README.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    return plan


@pytest.fixture
def pushed(plan: Plan, memory: Any) -> Plan:
    """The same run, pushed, and then gone from here."""
    push(URL, [plan])
    shutil.rmtree("work")
    shutil.rmtree("results")
    return Project().plan("tiny")


def newest_index() -> Index:
    store = Store(URL)
    return store.index(store.indexes()[-1])


def listed(plan: Plan) -> dict[str, int]:
    """Return name in the run's folder, or else in the project -> size, from the newest index."""
    return {file.path.removeprefix(f"work/runs/tiny/{plan.fingerprint}/main/"): file.size for file in newest_index().files}


def change(memory: Any, add: dict[str, Any]) -> None:
    """List one more file in the pushed index, as any writer of the bucket can."""
    path = f"/bucket/{Store(URL).indexes()[-1]}"
    index = json.loads(memory.cat_file(path))
    index["files"].append({**index["files"][0], **add})
    memory.pipe_file(path, json.dumps(index).encode())


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CHECKPOINTS = {
    f"checkpoints/step-{step:08d}/{name}"
    for step in (10, 20)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json")
}


def test_what_a_run_needs_is_listed_and_what_belongs_to_a_machine_is_not(plan: Plan, memory: Any) -> None:
    message = push(URL, [plan])
    assert set(listed(plan)) == CHECKPOINTS | {"train.jsonl", plan.documents_job.download("sample.xml").as_posix()}
    assert message.startswith("tiny: 8 files, 8 of them sent (5.")
    assert listed(plan)["train.jsonl"] == len('{"step": 1}\n{"step": 2}\n'), "as far as its lines are whole"


def test_a_checkpoint_that_is_deleted_while_it_is_pushed_is_left_out_whole(plan: Plan, memory: Any) -> None:
    class Deletes(Store):
        def put(self, sha256: str, path: Path, stamp: list[int]) -> None:
            super().put(sha256, path, stamp)
            if path.parent.name == "step-00000010":
                shutil.rmtree(path.parent)

    message = push_run(Deletes(URL), plan)
    assert {name for name in listed(plan) if "step-" in name} == {name for name in CHECKPOINTS if "step-00000020" in name}
    assert "3 changed or disappeared meanwhile; the next push sends them" in message


def test_a_file_that_is_written_while_it_is_pushed_is_not_stored_under_its_old_hash(tmp_path: Path, memory: Any) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    stamp, sha256 = stamp_of(path), sha256_of(path)
    path.write_text("after!!")
    store = Store(URL)
    with pytest.raises(Changed):
        store.put(sha256, path, stamp)
    assert store.objects() == {}


def test_pushed_again_only_a_change_makes_an_index(plan: Plan, memory: Any) -> None:
    push(URL, [plan])
    push(URL, [plan])
    store = Store(URL)
    assert len(store.indexes()) == 1
    (plan.run_folder / "main" / "train.jsonl").write_text('{"step": 3}\n')
    push(URL, [plan])
    assert len(store.indexes()) == 2
    assert listed(plan)["train.jsonl"] == len('{"step": 3}\n')


def test_an_index_that_pull_would_not_take_for_the_newest_is_not_written(plan: Plan, memory: Any) -> None:
    Store(URL).write_index(Index(name="tiny", fingerprint=plan.fingerprint, files=[]), "99991231T235959.999999Z")
    with pytest.raises(RelmError, match=r"99991231T235959.999999Z.json: later than this machine's clock"):
        push(URL, [plan])


def test_a_pulled_run_is_what_was_pushed_with_one_old_time(pushed: Plan) -> None:
    sizes = {file.path: file.size for file in newest_index().files}
    assert "8 files, 8 of them fetched" in pull(URL, Project(), "tiny")
    files = [path for path in Path("work").rglob("*") if path.is_file() and path.name != "lock"]
    assert {str(path): path.stat().st_size for path in files} == sizes
    assert not Path("results").exists()
    assert {int(path.stat().st_mtime) for path in files} == {1577836800}
    assert "0 of them fetched" in pull(URL, Project(), "tiny")


NAMES = [
    "RUN/main/lock",
    "RUN/main/compiled/program",
    "RUN/main/shards.json",
    "RUN/lock",
    "RUN/.hidden",
    "RUN/main/.train.jsonl.partial",
    "RUN/main/LOCK",
    "RUN/main/sitecustomize.py",
    "RUN/other/train.jsonl",
    "RUN/main/model/pytorch_model.bin",
    "RUN/main/model/adapter_config.json",
    "RUN/main/model/modeling.py",
    "RUN/main/model/deeper/config.json",
    "RUN/main/checkpoints/step-10/state.json",
    "RUN/main/checkpoints/step-00000010/evil.py",
    "RUN/main/checkpoints/.step-00000010.partial/state.json",
    "RUN/main/checkpoints/../../x",
    "RUN/main/wandb/settings",
    "RUN/main/wandb/run-1/.git/config",
    "RUN/eval/x.py",
    "RUN/eval/.x.json",
    "work/runs/tiny/0123456789ab/main/train.jsonl",
    "work/runs/other/FINGERPRINT/main/model/model.safetensors",
    "work/runs/smoke/tiny/FINGERPRINT/main/train.jsonl",
    "work/compiled/0123456789ab",
    "work/folders/sample.json",
    "work/pulled/x",
    "work/logs/x.log",
    "DOWNLOADS/other.xml",
    "work/downloads/data/other/sample.xml",
    "DOWNLOADS/.sample.xml.partial",
    "work/downloads/models/gpt2/config.json",
    "work/documents/sample-0123456789ab/sample.xml.train.jsonl",
    "work/tokenizers/trained-0123456789ab/tokenizer.json",
    "work/.snakemake/x",
    "Snakefile",
    "src/relm/cli.py",
    ".git/hooks/pre-commit",
    "~/x",
    "C:/x",
    "DOWNLOADS/a\nb",
    "DOWNLOADS/a\x1b[31m",
    "DOWNLOADS/a\x7f",
    "DOWNLOADS/\ud800",
    "DOWNLOADS/" + "x" * 300,
    "work/" + "x/" * 3000 + "x",
    "DOWNLOADS/",
    "/DOWNLOADS/sample.xml",
    "../evil",
    "work/../../evil",
    "/tmp/relm-test-evil/x",
    "work//evil",
    "work/./evil",
    "work\\..\\evil/x",
    "evil",
    "work/a\0b",
    "recipes/models/evil.yaml",
    "texts/one.txt",
]


def test_only_names_of_files_that_push_would_send_are_accepted(pushed: Plan, memory: Any) -> None:
    path = f"/bucket/{Store(URL).indexes()[-1]}"
    index = memory.cat_file(path)
    for pattern in NAMES:
        name = pattern.replace("RUN", f"work/runs/tiny/{pushed.fingerprint}").replace("FINGERPRINT", pushed.fingerprint)
        change(
            memory,
            add={
                "path": name.replace("DOWNLOADS", str(pushed.documents_job.download("sample.xml").parent)),
                "sha256": "0" * 64,
            },
        )
        with pytest.raises(RelmError, match=r"so `relm push` did not write it|damaged: ") as caught:
            pull(URL, Project(), "tiny")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 700
        assert not Path("work").exists(), name
        assert not Path("results").exists(), name
        memory.pipe_file(path, index)


def test_one_file_named_twice_or_as_a_folder_too_is_refused(pushed: Plan, memory: Any) -> None:
    download = pushed.documents_job.download("sample.xml")
    for name in (str(download), str(download.parent)):
        change(memory, add={"path": name, "sha256": "0" * 64})
        with pytest.raises(RelmError, match="so `relm push` did not write it"):
            pull(URL, Project(), "tiny")
        assert not Path("work").exists()


ENTRY = {"path": "work/a", "sha256": "0" * 64, "size": 1}


CHANGES: list[dict[str, Any]] = [
    *({"files": [ENTRY | {"size": size}]} for size in (-1, True, 1.0, "5", None, [], 1 << 51, 10**4000)),
    *({"files": [ENTRY | {"path": path}]} for path in (5, None, ["work", "a"])),
    *({"files": [ENTRY | {"sha256": sha256}]} for sha256 in (5, "../x", "0" * 64 + "\n", "\x1b[31m")),
    {"files": [{"path": "work/a"}]},
    {"format": 2},
    {"format": "\x1b[31m" * 999},
    {"name": "\x1b[31m" * 999},
    {"name": "other"},
]


def test_an_index_of_another_shape_is_refused_and_gives_a_terminal_no_commands(pushed: Plan, memory: Any) -> None:
    path = f"/bucket/{Store(URL).indexes()[-1]}"
    changed = [json.dumps(json.loads(memory.cat_file(path)) | keys).encode() for keys in CHANGES]
    for content in (*changed, b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b"\xff", b"[]"):
        memory.pipe_file(path, content)
        with pytest.raises(RelmError, match=r"^memory://bucket/runs/tiny/.*\.json: (damaged|lists another)") as caught:
            pull(URL, Project(), "tiny")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 400
        assert not Path("work").exists()


def test_an_object_that_is_larger_than_its_entry_is_given_up_at_once(pushed: Plan) -> None:
    class Endless(Store):
        given = 0

        def pieces(self, sha256: str) -> Iterator[bytes]:
            while self.given < 10**7:
                self.given += 10**6
                yield b"x" * 10**6
            raise AssertionError("it was read on and on")

    store = Endless(URL)
    with pytest.raises(RelmError, match=r"damaged: has more, expected [\d,]+ bytes; .* was not written"):
        Puller(store, pushed, newest_index()).pull()
    assert files_in(Path("work")) == {}


def test_credentials_that_expire_in_the_middle_lose_nothing(plan: Plan, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written, before, real_move = list[str](), files_in(plan.run_folder), type(memory).mv

    def move(files: Any, source: str, target: str) -> None:
        if len(written) == 3:
            raise PermissionError("The provided token has expired.")
        written.append(target)
        real_move(files, source, target)

    with monkeypatch.context() as expired:
        expired.setattr(type(memory), "mv", move)
        with pytest.raises(RelmError, match=r"cannot be written: the credentials have expired .* renew them"):
            push(URL, [plan])
    assert Store(URL).indexes() == []
    assert files_in(plan.run_folder) == before
    assert "8 files, 5 of them sent" in push(URL, [plan])


@pytest.mark.parametrize("fault", ["lost", "truncated"])
def test_an_object_that_is_lost_or_truncated_is_named_and_sent_again(
    plan: Plan, memory: Any, fault: str, tmp_path: Path
) -> None:
    push(URL, [plan])
    name = next(f"/bucket/objects/{file.sha256}" for file in newest_index().files if file.path.endswith("20/model.safetensors"))
    content = memory.cat_file(name)
    memory.rm_file(name)
    if fault == "truncated":
        memory.pipe_file(name, content[:-1])
    shutil.copytree("work", tmp_path / "whole")
    shutil.rmtree("work")
    with pytest.raises(RelmError, match="no such bucket, folder or object" if fault == "lost" else "damaged"):
        Puller(Store(URL), Project().plan("tiny"), newest_index()).pull()
    shutil.rmtree("work", ignore_errors=True)
    shutil.copytree(tmp_path / "whole", "work")
    if fault == "truncated":
        with pytest.raises(RelmError, match=r"changed in the store; delete that object and push again"):
            push(URL, [Project().plan("tiny")])
        memory.rm_file(name)
    assert "1 of them sent" in push(URL, [Project().plan("tiny")])
    assert memory.cat_file(name) == content


def test_two_machines_may_push_one_run_at_the_same_time(plan: Plan, memory: Any) -> None:
    with ThreadPoolExecutor(2) as machines:
        list(machines.map(lambda _: push_run(Store(URL), plan), range(2)))
    assert {len(Store(URL).index(name).files) for name in Store(URL).indexes()} == {8}
    shutil.rmtree("work")
    Puller(Store(URL), Project().plan("tiny"), newest_index()).pull()
    assert (plan.run_folder / "main/checkpoints/step-00000020/model.safetensors").read_text() == "model.safetensors 20"


LINKS = [
    "work/runs",
    "work/runs/tiny",
    "RUN/main",
    "RUN/main/checkpoints/step-00000010",
    "DOWNLOADS",
    "DOWNLOADS/sample.xml",
    "RUN/main/train.jsonl",
    "RUN/main/lock",
]


def test_nothing_is_written_through_a_link(pushed: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "file").write_text("mine")
    downloads = str(pushed.documents_job.download("sample.xml").parent)
    for pattern in LINKS:
        link = Path(pattern.replace("RUN", str(pushed.run_folder)).replace("DOWNLOADS", downloads))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside / "file" if link.suffix in (".xml", ".jsonl") or link.name == "lock" else outside)
        with pytest.raises(RelmError, match=rf"{link.name}: pull does not write through a link"):
            pull(URL, Project(), "tiny")
        assert files_in(outside) == {"file": b"mine"}, pattern
        link.unlink()


def test_the_work_folder_itself_may_be_a_link(pushed: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    disk = tmp_path_factory.mktemp("disk")
    Path("work").symlink_to(disk)
    pull(URL, Project(), "tiny")
    assert (disk / pushed.documents_job.download("sample.xml").relative_to("work")).is_file()


def test_a_disk_that_is_full_is_refused_before_anything_is_written(pushed: Plan) -> None:
    index = newest_index()
    huge = [file.model_copy(update={"size": 10**18}) if file.path.endswith("sample.xml") else file for file in index.files]
    with pytest.raises(RelmError, match=r"pull tiny: needs 1,000,000 TB on the disk of work, which has"):
        Puller(Store(URL), pushed, index.model_copy(update={"files": huge})).pull()
    assert not Path("work").exists()


def test_what_push_sends_of_every_kind_pull_accepts(pushed: Plan) -> None:
    run = pushed.run_folder
    begun = [
        *list_shared_files(pushed),
        *(run / "main" / name for name in ("order.json", "device.json", "checkpoints.jsonl")),
        run / "main" / "model" / "model.safetensors.json",
        run / "main" / "model" / "model.safetensors.record.json",
        run / "main" / "tensorboard" / "events.out.tfevents.1.host.1.0",
        run / "main" / "wandb" / "offline-run-1-ab" / "files" / "config.yaml",
        run / "eval" / "lm_eval_x.json.record.json",
        run / "main" / "logs" / "train.jsonl",
        run / "verify.json.record.json",
        run / "report" / "report.html.record.json",
        pushed.verdict().with_name("verify.json.record.json"),
        pushed.report_folder / "report.html.record.json",
        *pushed.evaluations().values(),
    ]
    for path in begun:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_paths(pushed, list_files(pushed)) == list_files(pushed)
    assert set(list_files(pushed).values()) == set(begun)
    (run / "main" / "notes.txt").write_text("mine")
    assert set(list_files(pushed).values()) == set(begun)


def test_a_users_folder_is_named_and_not_pushed(plan: Plan, memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    text = "title: T\nlicence: L\nlanguage: en\nformat: text_files\nfolder: texts\n"
    Path("recipes/data/mine.yaml").write_text(text)
    Path("recipes/mine.yaml").write_text("extends: tiny\ndata: {dataset: mine}\n")
    Path("texts").mkdir()
    Path("texts/one.txt").write_text("one")
    with caplog.at_level(logging.WARNING):
        assert push(URL, [Project().plan("mine")]).startswith("mine: 0 files")
    assert "mine reads your folder texts, which is not pushed; copy it to the other machine yourself" in caplog.text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError("my-bucket"), "no such bucket, folder or object"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "permission denied .*roles/storage.objectUser"),
        (OSError("Forbidden: https://storage.googleapis.com/b?token=SECRET"), "permission denied .*roles/storage.objectUser"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; run the same command again"),
        (ImportError("Please install gcsfs to access Google Storage"), "gcsfs is not installed .*`make DEVICE=tpu"),
        (RuntimeError("connection reset"), "RuntimeError: connection reset; run the same command again"),
        (PermissionError("The provided token has expired."), "credentials have expired .*; renew them, then run the same"),
        (PermissionError("The security token included in the request is expired"), "credentials have expired"),
        (
            PermissionError("The difference between the request time and the current time is too large."),
            "this machine's clock differs from the store's .*; set it, then run the same command again",
        ),
    ],
)
def test_a_fault_of_a_store_says_what_to_do_and_no_secret(error: Exception, message: str) -> None:
    assert re.search(message, explain_error(error)), explain_error(error)
    assert "SECRET" not in explain_error(error)


def test_without_google_credentials_the_error_says_who_gives_them() -> None:
    exceptions = pytest.importorskip("google.auth.exceptions", reason="google-auth is in the TPU's environment alone")
    assert "no credentials here (DefaultCredentialsError)" in explain_error(exceptions.DefaultCredentialsError("none"))


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed here")
def test_without_gcsfs_a_bucket_says_which_environment_has_it() -> None:
    with pytest.raises(RelmError, match=r"gs://b/x: cannot be opened: gcsfs is not installed here"):
        Store("gs://b/x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://b", "Protocol not known: nowhere; give an address such as gs://bucket/folder"),
        ("sftp://me:secret@host/x", "an address must not contain @ or"),
        ("gs://b/x?key=secret", "an address must not contain @ or"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_what_may_be_a_secret(url: str, message: str) -> None:
    with pytest.raises(RelmError, match=message) as found:
        Store(url)
    assert "secret@" not in str(found.value)
    assert "key=" not in str(found.value)


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
