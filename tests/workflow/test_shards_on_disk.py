"""`--config shards_on_disk=N`: sources are deleted after use, and everything made from them stays the same."""

import contextlib
import json
import logging
import random
import shlex
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.scheduling import greedy, milp
from snakemake.scheduling.job_scheduler import JobScheduler

from relm.artifact import read_json, read_sealed, record_of, seal, sha256_of, sidecar_of, write_json
from relm.cli import main
from relm.graph.shards import Sources
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from run_products import hash_products
from small_project import FRAMES, Commands, kill_session, make_project
from small_servers import QuietHandler, running
from small_tokenizers import save_byte_level

SHARDS = 2
DATASET = """
title: Sentences
licence: CC0-1.0
language: en
format: json_lines
held_out_one_in: 4
files:
"""
FILE = """
  {name}:
    sha256: '{sha256}'
    size: {size}
    sources: [{{url: "{address}/{name}"}}]
"""
MODEL = "title: Bytes\nlicence: CC0-1.0\ntokenizer: tokenizers_json\nfolder: bytes\n"
RECIPE = """
extends: tiny
data: {dataset: texts}
tokenizer: {train: null, vocabulary_size: null, from_model: bytes}
pretrain: {main: {steps: 4, schedule: {warmup_steps: 1}}}
evaluate: [held_out]
"""
OTHER = "extends: sharded\ntokenizer: {train: byte_level_bpe, vocabulary_size: 300, from_model: null}\n"
STEP = "python -m relm "
LIMITED = ("--config", "shards_on_disk=1")


class FileServer(ThreadingHTTPServer):
    """A server of the dataset's files, which counts how often each was fetched, and the shards on the disk at that time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.fetched: Counter[str] = Counter()


class _Handler(QuietHandler):
    server: FileServer

    def do_GET(self) -> None:
        name = self.path.removeprefix("/")
        self.server.fetched[name] += 1
        self.respond(200, (self.server.folder / name).read_bytes())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FileServer]:
    (tmp_path / "served").mkdir()
    for number in range(SHARDS):
        texts = [{"text": f"This is text {index} of shard {number}. " * 40} for index in range(150)]
        (tmp_path / "served" / f"{number}.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    with running(FileServer(tmp_path / "served")) as started:
        yield started


def make_sharded_project(folder: Path, server: FileServer) -> Commands:
    """Return a project with a dataset of several files, which are only on the server."""
    folder.mkdir()
    project = make_project(folder)
    recipes = folder / "recipes"
    files = {path.name: path for path in sorted(server.folder.iterdir())}
    entries = [
        FILE.format(
            name=name, sha256=sha256_of(path), size=path.stat().st_size, address=f"http://127.0.0.1:{server.server_port}"
        )
        for name, path in files.items()
    ]
    (recipes / "data" / "texts.yaml").write_text(DATASET + "".join(entries))
    (recipes / "models" / "bytes.yaml").write_text(MODEL)
    (recipes / "sharded.yaml").write_text(RECIPE)
    save_byte_level(folder / "bytes" / "tokenizer.json", ("<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>"))
    return project


def plan_of(project: Commands, name: str = "sharded") -> Plan:
    with contextlib.chdir(project.folder):
        plan = Project().plan(name)
        assert plan.fingerprint  # read from the project's folder now, and kept
        return plan


def list_sources(folder: Path) -> list[Path]:
    """Return the downloads and documents that are on the disk, finished or not."""
    found = [*folder.glob("work/downloads/data/*/*/*"), *folder.glob("work/documents/*/*")]
    return [path for path in found if not path.name.endswith(".json")]


class Watch:
    """The most shards, and bytes, of sources that were on the disk at once while a block ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: set[str] = set()
        self.bytes = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._look, args=[stop])
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _look(self, stop: threading.Event) -> None:
        while not stop.wait(0.005):
            with contextlib.suppress(FileNotFoundError):
                sources = list_sources(self.folder)
                shards = {path.name.lstrip(".").partition(".")[0] for path in sources}
                self.shards = max(self.shards, shards, key=len)
                self.bytes = max(self.bytes, sum(path.stat().st_size for path in sources))


def hash_examples(project: Commands) -> dict[str, str]:
    """Return path -> sha256 of the pregenerated examples, and of the sidecars of everything before."""
    folder = project.folder
    paths = [*folder.glob("work/examples/*/*"), *folder.glob("work/downloads/data/*/*/*.json")]
    paths += folder.glob("work/documents/*/*.jsonl.json")
    return {str(path.relative_to(folder)): sha256_of(path) for path in paths if not path.name.endswith(".record.json")}


def make(project: Commands, *targets: str) -> str:
    done = project.snakemake(*targets)
    assert done.returncode == 0, done.stdout
    return done.stdout


def make_in_this_process(project: Commands, *targets: str) -> None:
    """Run the commands that Snakemake plans without the key, which is quicker than starting a process for each."""
    planned = project.snakemake(*targets, "-n", "--printshellcmds", FRAMES).stdout.splitlines()
    words = [shlex.split(line.partition(STEP)[2]) for line in planned if STEP in line]
    with contextlib.chdir(project.folder):
        for arguments in words:
            assert main(arguments) == 0, arguments


def wait_for(path: Path) -> None:
    """Wait for a file, for a minute at most."""
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} was not made")


@dataclass(frozen=True)
class ReadyJob:
    """A job as Snakemake's schedulers see it: a step on a shard or, without one, of the tokenizer's import."""

    shard: int | None
    step: int
    priority: int
    threads: int
    slots: int = 1
    input: tuple[str, ...] = ()

    @property
    def scheduler_resources(self) -> dict[str, int]:
        return {"_cores": self.threads, "shards": self.slots}


def limit_to(shards: int, cores: int) -> tuple[Sources, dict[str, int]]:
    """Return the sources of a command, and Snakemake's resources."""
    resources = {"_cores": cores}
    storage = SimpleNamespace(notemp=False)
    workflow = SimpleNamespace(storage_settings=storage, cores=cores, register_resource=resources.__setitem__, scheduler=None)
    return Sources(workflow, {"shards_on_disk": shards}), resources


def take(free: dict[str, int], jobs: set[ReadyJob], sign: int) -> None:
    """Take the resources of jobs, or give them back."""
    for job in jobs:
        for name, value in job.scheduler_resources.items():
            free[name] += sign * value


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("scheduler", [greedy, milp])
@pytest.mark.parametrize(("shards", "cores"), [(1, 1), (1, 4), (2, 1), (2, 2), (2, 5), (3, 8)])
def test_snakemakes_schedulers_keep_to_the_number_of_shards(scheduler: Any, shards: int, cores: int) -> None:
    sources, free = limit_to(shards, cores)
    generator = random.Random(cores)
    select = scheduler.Scheduler(None, scheduler.SchedulerSettings(), logging.getLogger()).select_jobs
    left = {ReadyJob(shard, 0, 0, sources.threads) for shard in range(6)}
    left |= {ReadyJob(shard, step, sources.priority, sources.threads) for shard in range(6) for step in (1, 2)}
    left |= {ReadyJob(None, step, sources.first_priority, 1, sources.all_slots) for step in (0, 1)}
    done, running = set[tuple[int | None, int]](), set[ReadyJob]()
    while left or running:
        ready = [job for job in left if job.step == 0 or {(job.shard, job.step - 1), (None, job.step - 1)} <= done]
        started = set(select(ready, list(left), free, {}) or ()) if ready and min(free.values()) else set()
        left, running = left - started, running | started
        take(free, started, -1)
        begun = {shard for shard, _ in done} | {job.shard for job in running}
        assert len(begun - {job for job in begun if (job, 2) in done} - {None}) <= shards
        ended = generator.choice(sorted(running, key=repr))
        running.remove(ended)
        done.add((ended.shard, ended.step))
        take(free, {ended}, 1)
    assert free == {"_cores": cores, "shards": shards}


def test_each_job_on_a_shard_takes_a_slot_and_what_uses_up_a_shard_comes_first(tmp_path: Path, server: FileServer) -> None:
    project = make_sharded_project(tmp_path / "planned", server)
    planned = project.snakemake("results/sharded", "-n", FRAMES, *LIMITED).stdout
    jobs = {block.partition(":")[0]: block for block in planned.split("\nrule ")[1:]}
    for rule in ("download_data", "extract", "pregenerate"):
        assert "shards=1" in jobs[rule]
        assert ("priority: 1" in jobs[rule]) == (rule != "download_data")


def test_the_scheduler_stays_snakemakes_own() -> None:
    limit_to(1, cores=1)
    assert JobScheduler.open_jobs.fget.__module__ == JobScheduler.__module__


def test_downloads_are_refused_once_so_many_shards_failed() -> None:
    sources, _ = limit_to(2, cores=1)
    failed = [SimpleNamespace(rule=SimpleNamespace(name=name), wildcards=of("a")) for name in ("download_data", "extract")]
    sources.workflow.scheduler = SimpleNamespace(failed=failed)
    assert sources.stop_downloads(of("c"), None) == ""
    failed.append(SimpleNamespace(rule=SimpleNamespace(name="pregenerate"), wildcards=of("b")))
    assert "not started, because the job on a, b failed" in sources.stop_downloads(of("c"), None)


def of(shard: str) -> SimpleNamespace:
    """Return the wildcards of a job."""
    return SimpleNamespace(dataset="texts", key="0", shard=shard)


@pytest.mark.full
def test_shards_whose_jobs_fail_stop_further_downloads(tmp_path: Path, server: FileServer) -> None:
    for path in server.folder.iterdir():
        path.write_text("no JSON\n" * 10)
    project = make_sharded_project(tmp_path / "failing", server)
    done = project.snakemake("results/sharded", *LIMITED)
    assert done.returncode != 0
    assert sum(server.fetched.values()) == 1
    assert ".jsonl failed; correct that and run it again" in done.stdout
    assert len(list_sources(project.folder)) == 1


def test_one_shard_is_on_the_disk_at_a_time_also_after_sigkill_and_the_examples_are_the_same(
    tmp_path: Path, server: FileServer
) -> None:
    limited, whole = (make_sharded_project(tmp_path / name, server) for name in ("limited", "whole"))
    plan = plan_of(limited)
    targets = [str(sidecar_of(plan.examples("main", shard, "train"))) for shard in plan.shards]
    make_in_this_process(whole, *targets)
    assert len(list_sources(whole.folder)) == 3 * SHARDS
    of_a_shard = sum(path.stat().st_size for path in list_sources(whole.folder)) / SHARDS
    for name in ("models", "tokenizers"):
        shutil.copytree(whole.folder / "work" / name, limited.folder / "work" / name)
    server.fetched.clear()
    watch = Watch(limited.folder)
    with watch.watching():
        process = limited.start(*targets, *LIMITED)
        try:
            wait_for(limited.folder / targets[0])
        finally:
            kill_session(process)
        make(limited, *targets, *LIMITED)
    assert set(server.fetched.values()) == {1}, "a shard that was used up is not downloaded again"
    assert list_sources(limited.folder) == []
    assert limited.jobs(*targets) == {}
    assert len(watch.shards) == 1
    assert 0 < watch.bytes <= 1.1 * of_a_shard
    assert hash_examples(limited) == hash_examples(whole)


@pytest.mark.full
def test_a_recipe_that_needs_deleted_sources_has_them_made_again_and_no_other_recipe_is(
    tmp_path: Path, server: FileServer
) -> None:
    project = make_sharded_project(tmp_path / "again", server)
    make(project, "results/sharded", *LIMITED)
    before, plan = hash_products(project.folder, "sharded"), plan_of(project)
    steps = read_json(project.folder / "results" / "sharded" / "provenance.json")["steps"]
    assert Counter(step["step"] for step in steps)["extract"] == SHARDS
    documents = plan.document_files[0]
    sha256 = read_json(project.folder / sidecar_of(documents))["sha256"]
    for folder in ("results/sharded", str(plan.run_folder)):
        checked = project.relm("check", folder)
        assert checked.returncode == 0
        assert f"{3 * SHARDS} sources were deleted after use" in checked.stdout
        assert f"{documents}: sha256 {sha256}" in checked.stdout
    assert f"extract      done, {2 * SHARDS} deleted after use" in project.relm("status", "sharded").stdout
    assert (project.folder / "results/sharded/report.html").read_text().count("deleted after use") >= 3 * SHARDS
    assert project.jobs("results/sharded", "--notemp") == project.jobs("results/sharded", *LIMITED) == {}
    make(project, "results/sharded", "--delete-temp-output", *LIMITED)

    shutil.rmtree(project.folder / ".snakemake")
    (project.folder / "recipes" / "other.yaml").write_text(OTHER)
    jobs = project.jobs("results/sharded", "results/other")
    assert (jobs["download_data"], jobs["extract"], jobs["pregenerate"]) == (SHARDS, SHARDS, SHARDS)
    assert jobs["pretrain"] == 1, "the finished recipe is not trained again"
    record = project.folder / record_of(documents)
    recorded = read_sealed(record, "")
    write_json(record, seal(with_sha256(recorded, str(documents), "0" * 64)))
    failed = project.snakemake("results/other", *LIMITED)
    assert failed.returncode != 0
    assert f"{documents}: made again with sha256 {sha256}; {record_of(documents)} has {'0' * 64}" in failed.stdout
    jobs = project.jobs("results/sharded", "results/other")
    assert jobs["pretrain"] == 2, "the finished recipe was made from other documents than the record has"

    write_json(record, seal(recorded))
    make(project, "results/sharded", "results/other", *LIMITED)
    assert list_sources(project.folder) == []
    after = hash_products(project.folder, "sharded")
    assert {name: after[name] for name in before} == before


def with_sha256(record: dict[str, Any], path: str, sha256: str) -> dict[str, Any]:
    """Return the record of a step that made one of its outputs with another sha256."""
    outputs = [entry | ({"sha256": sha256} if entry["path"] == path else {}) for entry in record["outputs"]]
    return {**record, "outputs": outputs}


def test_a_number_of_shards_is_a_whole_number(tmp_path: Path, server: FileServer) -> None:
    project = make_sharded_project(tmp_path / "wrong", server)
    done = project.snakemake("results/sharded", "-n", "--config", "shards_on_disk=few")
    assert done.returncode != 0
    assert "--config shards_on_disk=few: expected a whole number from 1 on, such as shards_on_disk=2" in done.stdout
