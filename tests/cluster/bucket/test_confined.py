"""A writer of the bucket can change a run's data, but nothing else on the machine that pulls."""

import datetime
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from relm.artifact import sha256_of
from relm.cluster.bucket.index import Index, IndexName, next_time, read_index
from relm.cluster.bucket.pull import Puller, pull
from relm.cluster.bucket.push import push
from relm.cluster.bucket.store import Store
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from small_project import Commands

URL = "memory://confined"


@pytest.fixture
def memory() -> Iterator[Any]:
    """A bucket in memory, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture
def plan(project: Commands, monkeypatch: pytest.MonkeyPatch, memory: Any) -> Plan:
    """A run with a checkpoint, a log and published files; pushed, and then gone from here."""
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    plan = Project().plan("tiny")
    begin(plan)
    push(URL, [plan], None)
    shutil.rmtree("work")
    shutil.rmtree("results")
    return Project().plan("tiny")


def begin(plan: Plan) -> None:
    """Write some of a run's files."""
    checkpoint = plan.run_folder / "main" / "checkpoints" / "step-00000010"
    for path in (
        plan.download("sample.xml"),
        plan.results / "README.md",
        plan.run_folder / "main" / "train.jsonl",
        *(checkpoint / name for name in ("model.safetensors", "optimizer.safetensors", "state.json")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"file": "{path.name}"}}\n')


def add(memory: Any, *entries: dict[str, Any]) -> None:
    """Add entries to the pushed index, as any writer of the bucket can."""
    store = Store(URL)
    index_path = store.indexes()[-1]
    listing = json.loads(memory.cat_file(f"/confined/{index_path}"))
    listing["files"] += [{**listing["files"][0], **entry} for entry in entries]
    memory.pipe_file(f"/confined/{index_path}", json.dumps(listing).encode())


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    "results/tiny/modeling.py",
    "results/tiny/pytorch_model.bin",
    "results/tiny/.git/config",
    "results/tiny/eval/x.py",
    "results/reference/tiny/config.json",
    "results/.tiny.partial/README.md",
    "results/smoke/tiny/README.md",
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
]


def test_only_names_of_files_that_push_would_send_are_accepted(plan: Plan, memory: Any) -> None:
    index_path = f"/confined/{Store(URL).indexes()[-1]}"
    index = memory.cat_file(index_path)
    for pattern in NAMES:
        name = pattern.replace("RUN", f"work/runs/tiny/{plan.fingerprint}").replace("FINGERPRINT", plan.fingerprint)
        name = name.replace("DOWNLOADS", str(plan.download("sample.xml").parent))
        add(memory, {"path": name, "sha256": "0" * 64})
        with pytest.raises(RelmError) as caught:
            pull(URL, Project(), "tiny")
        assert "nothing was pulled: this is not what `relm push` wrote" in str(caught.value), name
        assert len(str(caught.value)) < 700
        assert not Path("work").exists(), name
        assert not Path("results").exists(), name
        memory.pipe_file(index_path, index)
    pull(URL, Project(), "tiny")
    assert (plan.results / "README.md").is_file(), "the index is good without them"


def test_one_file_named_twice_or_as_a_folder_too_is_refused(plan: Plan, memory: Any) -> None:
    index_path = f"/confined/{Store(URL).indexes()[-1]}"
    index = memory.cat_file(index_path)
    download = plan.download("sample.xml")
    for name in (str(download), str(download.parent), "results/tiny/README.md/x"):
        memory.pipe_file(index_path, index)
        add(memory, {"path": name, "sha256": "0" * 64})
        with pytest.raises(RelmError, match="twice; nothing was pulled"):
            pull(URL, Project(), "tiny")
        assert not Path("work").exists()


@pytest.mark.parametrize("size", [-1, True, 1.0, "5", None, [], 1 << 51, pytest.param(10**5000, id="huge")])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    document = Index("tiny", "0" * 12, []).document() | {"files": [{"path": "work/a", "sha256": "0" * 64, "size": size}]}
    with pytest.raises(RelmError, match="work/a: expected a sha256 and a size, found 0000"):
        read_index(document, "here", IndexName("tiny", "0" * 12, "x"))


@pytest.mark.parametrize(
    "entry", [{"path": 5}, {"path": None}, {"path": ["work", "a"]}, {"sha256": 5}, {"sha256": "0" * 64 + "\n"}]
)
def test_an_entry_of_other_types_is_refused(entry: dict[str, Any]) -> None:
    document = Index("tiny", "0" * 12, []).document() | {"files": [{"path": "work/a", "sha256": "0" * 64, "size": 1, **entry}]}
    with pytest.raises(RelmError, match=r"^here: "):
        read_index(document, "here", IndexName("tiny", "0" * 12, "x"))


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "\x1b[31m" * 999},
        {"name": "\x1b[31m" * 999},
        {"files": [{"path": "work/a", "sha256": "\x1b[31m", "size": 1}]},
    ],
)
def test_what_an_index_holds_gives_a_terminal_no_commands(changed: dict[str, Any]) -> None:
    with pytest.raises(RelmError) as caught:
        read_index(Index("tiny", "0" * 12, []).document() | changed, "here", IndexName("tiny", "0" * 12, "x"))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_after_an_index_of_the_last_moment_no_other_can_be_written() -> None:
    with pytest.raises(RelmError, match="no time is later; delete it"):
        next_time("99991231T235959.999999Z", datetime.datetime.now(datetime.UTC))


def test_an_index_that_json_cannot_be_read_from_is_refused(plan: Plan, memory: Any) -> None:
    for content in (b"[" * 100_000, b'{"format": ' + b"9" * 5000 + b"}", b"\xff"):
        memory.pipe_file(f"/confined/{Store(URL).indexes()[-1]}", content)
        with pytest.raises(RelmError, match="damaged: not valid JSON"):
            pull(URL, Project(), "tiny")


def test_an_object_that_is_larger_than_its_entry_is_given_up_at_once(plan: Plan, memory: Any) -> None:
    class Endless(Store):
        given = 0

        def pieces(self, sha256: str) -> Iterator[bytes]:
            while self.given < 1000:
                self.given += 1
                yield b"x" * 1000
            raise AssertionError("it was read on and on")

    store = Endless(URL)
    with pytest.raises(RelmError, match=r"damaged: it has more than \d+ bytes; .* was not written"):
        Puller(store, plan, store.index(store.indexes()[-1])).pull()
    assert store.given == 1
    assert files_in(Path("work")) == {}


LINKS = [
    "work/runs",
    "work/runs/tiny",
    "RUN/main",
    "RUN/main/checkpoints/step-00000010",
    "DOWNLOADS",
    "DOWNLOADS/sample.xml",
    "RUN/main/train.jsonl",
    "RUN/main/lock",
    "results/tiny",
    "results/tiny/README.md",
    "results/.tiny.partial",
    "work/pulled",
]


def test_nothing_is_written_through_a_link(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "file").write_text("mine")
    for name in LINKS:
        link = Path(name.replace("RUN", str(plan.run_folder)).replace("DOWNLOADS", str(plan.download("sample.xml").parent)))
        link.parent.mkdir(parents=True, exist_ok=True)
        is_file = link.suffix in (".xml", ".jsonl", ".md") or link.name == "lock"
        link.symlink_to(outside / "file" if is_file else outside)
        with pytest.raises(RelmError, match=rf"{link.name}: is a link, and "):
            pull(URL, Project(), "tiny")
        assert files_in(outside) == {"file": b"mine"}, name
        link.unlink()
        for folder in (Path("work"), Path("results")):
            shutil.rmtree(folder, ignore_errors=True)


def test_a_link_in_the_place_of_a_partial_file_goes_and_is_not_followed(
    plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "file").write_text("mine")
    target = plan.download("sample.xml")
    target.parent.mkdir(parents=True)
    (target.parent / f".{target.name}.partial").symlink_to(outside / "file")
    pull(URL, Project(), "tiny")
    assert files_in(outside) == {"file": b"mine"}
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_folder_that_becomes_a_link_meanwhile_takes_no_file_elsewhere(
    plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")

    class Changing(Store):
        def pieces(self, sha256: str) -> Iterator[bytes]:
            folder = plan.download("sample.xml").parent
            if folder.exists() and not folder.is_symlink():
                folder.rename(folder.with_name("moved"))
                folder.symlink_to(outside)
            yield from super().pieces(sha256)

    store = Changing(URL)
    Puller(store, plan, store.index(store.indexes()[-1])).pull()
    assert plan.download("sample.xml").parent.is_symlink()
    assert files_in(outside) == {}


def test_the_work_folder_itself_may_be_a_link(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    disk = tmp_path_factory.mktemp("disk")
    Path("work").symlink_to(disk)
    pull(URL, Project(), "tiny")
    assert (disk / plan.download("sample.xml").relative_to("work")).is_file()


OWN_TEXTS = "title: T\nlicence: L\nlanguage: en\nformat: text_files\nfolder: texts\n"


@pytest.fixture
def own(plan: Plan) -> Plan:
    """A pushed recipe over the user's own folder with two texts, which are then deleted."""
    Path("recipes/data/mine.yaml").write_text(OWN_TEXTS)
    Path("recipes/mine.yaml").write_text("extends: tiny\ndata: {dataset: mine}\n")
    for name in ("one.txt", "deeper/two.txt"):
        Path("texts", name).parent.mkdir(parents=True, exist_ok=True)
        Path("texts", name).write_text(name)
    push(URL, [Project().plan("mine")], None)
    shutil.rmtree("texts")
    return Project().plan("mine")


def add_to_mine(memory: Any, name: str, content: bytes) -> None:
    """List one more file in the index of `mine`."""
    index_path = next(index_path for index_path in Store(URL).indexes() if index_path.name == "mine")
    listing = json.loads(memory.cat_file(f"/confined/{index_path}"))
    sha256 = hashlib.sha256(content).hexdigest()
    memory.pipe_file(f"/confined/objects/{sha256}", content)
    listing["files"].append({"path": name, "sha256": sha256, "size": len(content)})
    memory.pipe_file(f"/confined/{index_path}", json.dumps(listing).encode())


def test_texts_of_ones_own_come_and_nothing_that_the_dataset_would_not_read(own: Plan, memory: Any) -> None:
    add_to_mine(memory, "texts/run.sh", b"evil")
    with pytest.raises(RelmError, match=r"names 'texts/run\.sh', which is no file of this run; nothing was pulled"):
        pull(URL, Project(), "mine")
    assert not Path("texts").exists()
    assert not Path("work/runs").exists()


def test_a_text_too_many_is_noticed_before_the_run_is_pulled(own: Plan, memory: Any) -> None:
    add_to_mine(memory, "texts/three.txt", b"one more")
    with pytest.raises(RelmError, match="data, model or training differ"):
        pull(URL, Project(), "mine")
    assert not Path("work/runs").exists()


def test_a_file_of_ones_own_is_not_written_over(own: Plan) -> None:
    Path("texts").mkdir()
    Path("texts/one.txt").write_text("older")
    (old,) = Path("texts").iterdir()
    with pytest.raises(RelmError, match=r"differ|has other content here"):
        pull(URL, Project(), "mine")
    assert old.read_text() == "older"
    shutil.rmtree("texts")
    Path("recipes/models/own.yaml").write_text("title: M\nlicence: L\nweights: true\nfolder: models/own\n")
    Path("recipes/begun.yaml").write_text("extends: tiny\ninit_from: own\n")
    Path("models/own").mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        Path("models/own", name).write_text(name)
    push(URL, [Project().plan("begun")], None)
    Path("models/own/config.json").unlink()
    Path("models/own/model.safetensors").write_text("retrained since")
    with pytest.raises(RelmError, match=r"models/own/model\.safetensors: has other content here .* is not written over"):
        pull(URL, Project(), "begun")
    assert files_in(Path("models/own")) == {"model.safetensors": b"retrained since"}


def test_a_folder_of_ones_own_that_is_a_link_is_not_pulled_through(own: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    Path("texts").symlink_to(outside)
    with pytest.raises(RelmError, match="texts: is a link"):
        pull(URL, Project(), "mine")
    assert files_in(outside) == {}


def test_a_folder_of_the_projects_code_is_no_folder_of_ones_own(own: Plan) -> None:
    from relm.cluster.bucket.run_files import list_own_folders

    for folder in ("src/texts", "recipes", ".git", "profiles/default", "work/x"):
        Path("recipes/data/mine.yaml").write_text(OWN_TEXTS.replace("folder: texts", f"folder: {folder}"))
        assert list_own_folders(Project().plan("mine")) == [], folder


def test_what_push_sends_of_every_kind_pull_accepts(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    from relm.cluster.bucket.run_files import find_paths, list_files
    from relm.plan.products import list_shared_files

    run = plan.run_folder
    begun = [
        *list_shared_files(plan),
        *(run / "main" / name for name in ("order.json", "device.json", "checkpoints.jsonl")),
        run / "main" / "model" / "model.safetensors.json",
        run / "main" / "model" / "model.safetensors.record.json",
        run / "main" / "tensorboard" / "events.out.tfevents.1.host.1.0",
        run / "main" / "wandb" / "offline-run-1-ab" / "files" / "config.yaml",
        run / "eval" / "lm_eval_x.json.record.json",
        run / "main" / "logs" / "train.jsonl",
        run / "verify.json.record.json",
        run / "report" / "report.html.record.json",
        plan.verdict().with_name("verify.json.record.json"),
        plan.report_folder / "report.html.record.json",
        *plan.evaluations().values(),
        plan.results / "eval" / "before" / "x.json",
        plan.reference_results / "README.md",
    ]
    for path in begun:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert find_paths(plan, list_files(plan)) == list_files(plan)
    assert set(list_files(plan).values()) == set(begun)
    (run / "main" / "notes.txt").write_text("mine")
    with caplog.at_level(logging.WARNING):
        push(URL, [plan], None)
    assert "tiny: not pushed, since no step of relm writes files of this name: " in caplog.text
    assert "main/notes.txt" in caplog.text


def test_a_pulled_file_is_what_was_pushed(plan: Plan) -> None:
    assert "6 files, 5 of them fetched" in pull(URL, Project(), "tiny")
    assert "0 of them fetched" in pull(URL, Project(), "tiny")
    sizes = {path: os.stat(path).st_mtime for path in Path("work").rglob("*.safetensors")}
    assert set(sizes.values()) == {1577836800}
    assert sha256_of(plan.results / "README.md") == hashlib.sha256(b'{"file": "README.md"}\n').hexdigest()
