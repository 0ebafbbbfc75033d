"""docs/troubleshooting.md: each message that it quotes is the one that the code gives, provoked on small data."""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relm.artifact import write_sidecar
from relm.cli import main
from relm.cluster.supervision import clear_dead_locks
from relm.corpus.download import transfer
from relm.devices.detection import find_missing_cuda
from relm.errors import RelmError
from relm.graph.environments import TrainingPlace, find_fault
from relm.limits import find_folder_fault
from relm.recipes.curves import load_curve
from relm.recipes.evaluation.expectations import Expectation
from relm.recipes.project import Project
from relm.reporting.replaced_results import describe_replaced, find_replaced
from relm.reporting.verify import judge_row
from relm.training.interruption import run_lock
from small_curves import write_curve
from small_project import CHECKOUT, Commands, make_project
from small_servers import QuietHandler, running
from tiny_runs import TinyRun, write_examples

PAGE = (CHECKOUT / "docs" / "troubleshooting.md").read_text()
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))
BODY = b"text" * 5_000
GPU = "title: A GPU\ndevice: cuda\nmemory_gib: 16\n"
FAULTY = {
    "large": "model: {layers: 96, heads: 96, hidden_size: 12288}",
    "vocabulary": "model: {vocabulary_size: 300}",
    "gpu": "run: {device: cuda, threads: null}",
    "long": "data: {dataset: long}",
    "typo": "model: {layrs: 1}",
    "digits": "data: {dataset: digits}",
}
DATASET = """
title: A file
licence: CC0-1.0
language: en
format: text_files
files:
  a.txt: {{sha256: {sha256}, size: {size}, sources: [{{url: "{url}"}}]}}
"""
SHA256 = "'" + "0" * 64 + "'"


class Surroundings(NamedTuple):
    """A small project, which is the current folder, and the means to provoke an error in it."""

    project: Commands
    say: Callable[..., str]
    """Run a `relm` command that must fail, and return what it prints to standard error."""
    monkeypatch: pytest.MonkeyPatch
    request: pytest.FixtureRequest

    @property
    def folder(self) -> Path:
        return self.project.folder

    def write_dataset(
        self, name: str, url: str = "http://127.0.0.1:9/a.txt", sha256: str = SHA256, size: int = len(BODY)
    ) -> None:
        """Write the file of a dataset."""
        text = DATASET.format(sha256=sha256, size=size, url=url)
        (self.folder / "recipes" / "data" / f"{name}.yaml").write_text(text)

    def download(self, answer: Callable[[QuietHandler], None], sha256: str = SHA256, **keys: Any) -> str:
        """Download a file from a server that answers so, which must fail, and return the message."""
        handler = type("Handler", (QuietHandler,), {"do_GET": lambda request: answer(request)})
        with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
            self.write_dataset("file", f"http://127.0.0.1:{server.server_port}/a.txt", sha256, **keys)
            return self.say("download", "--dataset", "recipes/data/file.yaml", "--file", "a.txt", "--output", "work/a.txt")


@pytest.fixture
def surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Surroundings:
    project = make_project(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_MIRROR", raising=False)
    monkeypatch.delenv("RELM_WORK", raising=False)
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.01)

    def say(*words: str) -> str:
        assert main(list(words)) == 1
        return capsys.readouterr().err

    return Surroundings(project, say, monkeypatch, request)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of one dry-run of recipes with faults."""
    project = make_project(tmp_path_factory.mktemp("planned"))
    (project.folder / "recipes" / "machines").mkdir()
    (project.folder / "recipes" / "machines" / "gpu.yaml").write_text(GPU)
    for name, text in FAULTY.items():
        (project.folder / "recipes" / f"{name}.yaml").write_text(f"extends: tiny\n{text}\n")
    long = DATASET.format(sha256=SHA256, size=10**15, url="http://127.0.0.1:9/a.txt")
    (project.folder / "recipes" / "data" / "long.yaml").write_text(long)
    done = project.snakemake("results/large", "results/vocabulary", "results/gpu", "results/long", "-n")
    assert done.returncode == 0, done.stdout
    return done.stdout


def plan_faults(around: Surroundings) -> str:
    found: str = around.request.getfixturevalue("planned")
    return found


def plan_for_a_gpu(around: Surroundings) -> str:
    if find_missing_cuda() is None:
        pytest.skip("this environment has CUDA")
    return plan_faults(around)


def look_for_a_gpu(around: Surroundings) -> str:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a GPU")
    (around.folder / "recipes" / "gpu.yaml").write_text(f"extends: tiny\n{FAULTY['gpu']}\n")
    return str(find_fault(Project().plan("gpu"), TrainingPlace(uses_environment=False)))


def evaluate_on_a_gpu(around: Surroundings) -> str:
    import torch

    from relm.devices.torch import require_gpus

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RelmError) as caught:
        require_gpus(1)
    return str(caught.value)


def misspell_a_key(around: Surroundings) -> str:
    (around.folder / "recipes" / "typo.yaml").write_text(f"extends: tiny\n{FAULTY['typo']}\n")
    return around.say("status", "typo")


def misspell_a_name(around: Surroundings) -> str:
    return around.say("status", "tini")


def leave_out_quotes(around: Surroundings) -> str:
    around.write_dataset("digits", sha256="1" * 64)
    (around.folder / "recipes" / "digits.yaml").write_text(f"extends: tiny\n{FAULTY['digits']}\n")
    return around.say("status", "digits")


def move_the_texts(around: Surroundings) -> str:
    (around.folder / "recipes" / "data" / "mine.yaml").write_text(
        "title: Mine\nlicence: CC0-1.0\nlanguage: en\nformat: text_files\nfolder: texts\n"
    )
    (around.folder / "recipes" / "mine.yaml").write_text("extends: tiny\ndata: {dataset: mine}\n")
    return around.say("status", "mine")


def name_texts_outside_the_project(around: Surroundings) -> str:
    move_the_texts(around)
    path = around.folder / "recipes" / "data" / "mine.yaml"
    path.write_text(path.read_text().replace("folder: texts", f"folder: {around.folder.parent}"))
    return around.say("status", "mine")


def choose_a_work_folder_that_is_a_file(around: Surroundings) -> str:
    (around.folder / "disk").touch()
    return str(find_folder_fault(around.folder / "disk", "RELM_WORK"))


def call_relm_without_the_environment(around: Surroundings) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", "relm list"], env={"PATH": "/nonexistent"}, capture_output=True, text=True, check=False
    )
    return done.stderr


def download_other_bytes(around: Surroundings) -> str:
    return around.download(lambda request: request.respond(200, b"else" * 5_000))


def cut_the_download(around: Surroundings) -> str:
    def cut(request: QuietHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(BODY)))
        request.end_headers()
        request.wfile.write(BODY[:100])
        request.close_connection = True

    return around.download(cut)


def reach_no_source(around: Surroundings) -> str:
    with ThreadingHTTPServer(("127.0.0.1", 0), QuietHandler) as server:
        url = f"http://127.0.0.1:{server.server_port}/a.txt"
    around.write_dataset("file", url)
    return around.say("download", "--dataset", "recipes/data/file.yaml", "--file", "a.txt", "--output", "work/a.txt")


def change_the_first_download(around: Surroundings) -> str:
    words = ["download", "--dataset", "recipes/data/file.yaml", "--file", "a.txt", "--output", "work/a.txt"]
    with running(
        ThreadingHTTPServer(("127.0.0.1", 0), type("First", (QuietHandler,), {"do_GET": lambda r: r.respond(200, BODY)}))
    ) as server:
        around.write_dataset("file", f"http://127.0.0.1:{server.server_port}/a.txt", "first_download")
        assert main(words) == 0
    for name in ("a.txt", "a.txt.json"):
        (around.folder / "work" / name).unlink()
    return around.download(lambda request: request.respond(200, BODY[::-1]), "first_download")


def read_another_file(around: Surroundings) -> str:
    around.write_dataset("file")
    source = around.folder / "work" / "a.txt"
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(BODY)
    write_sidecar(source)
    words = ["--dataset", "recipes/data/file.yaml", "--source", "work/a.txt", "--train", "t.jsonl", "--held-out", "h.jsonl"]
    return around.say("extract", *words)


def fill_the_disk(around: Surroundings) -> str:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        return around.download(lambda request: request.respond(200, BODY))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def tiny_run(around: Surroundings, **main_phase: Any) -> TinyRun:
    examples = write_examples(around.folder / "examples", seed=0)
    changes = {"pretrain": {"main": {"steps": 6, **main_phase}}, "run": {"log_interval": 1}}
    return TinyRun(around.folder / "run", examples, changes)


def diverge(around: Surroundings) -> str:
    run = tiny_run(around, optimizer={"learning_rate": 1e37}, schedule={"warmup_steps": 0})
    with pytest.raises(RelmError) as caught:
        run.train()
    return str(caught.value)


def train_twice_at_once(around: Surroundings) -> str:
    run = tiny_run(around)
    with run_lock(run.folder / "main" / "lock"), pytest.raises(RelmError) as caught:
        run.train()
    return str(caught.value)


def leave_the_curve(around: Surroundings) -> str:
    from relm.training.loop import pretrain

    columns = {"step": range(1, 7), "loss": [9.0] * 6}
    curve = load_curve(write_curve(around.folder / "made.tsv", columns))
    band = {"basis": "a test", "runs": 1, "parts": [{"from_step": 1, "standard_deviation": 0.02}]}
    run = tiny_run(around)
    run.changes["expect_curve"] = {"curve": "made", "band": band, "window": 1}
    files = run.examples / "manifest.json", run.examples / "tokenizer.json"
    pretrain(run.recipe, "main", *files, None, run.model_folder, run.fingerprint, curve=curve)
    return str(run.lines()[0]["curve"]["verdict"])


def damage_the_examples(around: Surroundings) -> str:
    run = tiny_run(around)
    shard = run.examples / "shard.train.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(RelmError) as caught:
        run.train()
    return str(caught.value)


def finished(around: Surroundings) -> Commands:
    """Return a project whose recipe has run to the end, in the current folder."""
    project: Commands = around.request.getfixturevalue("finished_copy")
    around.monkeypatch.chdir(project.folder)
    return project


def damage_the_result(around: Surroundings) -> str:
    report = finished(around).folder / "results" / "tiny" / "report.html"
    report.write_text(report.read_text() + " ")
    return around.say("check", "results/tiny")


def change_the_recipe(around: Surroundings) -> str:
    recipe = finished(around).folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 60"))
    plan = Project().plan("tiny")
    replaced = find_replaced(plan)
    assert replaced is not None
    return describe_replaced(plan, replaced)


def judge(noise: dict[str, Any] | None) -> str:
    content = {"metric": "held_out.perplexity", "value": 31.0, "tolerance": 1.0, "basis": "b", "place": "table 1"}
    expectation = Expectation.model_validate({**content, "noise": noise})
    sentence: str = judge_row(expectation, {1: {"held_out": {"figures": {"perplexity": 31.4}}}})["sentence"]
    return sentence


def decide_nothing(around: Surroundings) -> str:
    return judge({"standard_deviation": 0.2, "runs": 5, "source": "five seeds"})


def know_no_noise(around: Surroundings) -> str:
    return judge(None)


def kill_snakemake(around: Surroundings) -> str:
    """Have a process that may own the lock die, and the next one find it."""
    code = "from relm.cluster.supervision import clear_dead_locks; clear_dead_locks()"
    subprocess.run([sys.executable, "-c", code], check=True)
    (around.folder / ".snakemake" / "locks").mkdir()
    (around.folder / ".snakemake" / "locks" / "0.output.lock").write_text("results/tiny\n")
    clear_dead_locks()
    return str(around.request.getfixturevalue("capsys").readouterr().err)


def lock_from_another_host(around: Surroundings) -> str:
    state = around.folder / ".snakemake"
    for name, text in {
        "relm-owners/elsewhere-1.json": json.dumps({"machine": {"host": "elsewhere"}, "pid": 1, "started": "1"}),
        "locks/0.output.lock": "results/tiny\n",
    }.items():
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(text)
    done = around.project.snakemake("results/tiny")
    assert done.returncode == 1
    return done.stdout


def kill_a_step(around: Surroundings) -> str:
    done = around.project.snakemake("results/tiny", RELM_KILL_AT="gradient:8")
    assert done.returncode == 1
    return done.stdout


# Heading of a section -> what provokes its message.
PROVOKED: dict[str, Callable[[Surroundings], str]] = {
    "relm is not found": call_relm_without_the_environment,
    "There is no recipe of this name": misspell_a_name,
    "A key is misspelt": misspell_a_key,
    "Text that YAML reads as a number": leave_out_quotes,
    "The folder of texts is not there": move_the_texts,
    "The folder of texts needs your consent": name_texts_outside_the_project,
    "The environment has no CUDA": plan_for_a_gpu,
    "This machine has no GPU": look_for_a_gpu,
    "A command wants a GPU and finds none": evaluate_on_a_gpu,
    "The model does not fit into memory": plan_faults,
    "The vocabulary is smaller than the tokenizer's": plan_faults,
    "The disk is too small": plan_faults,
    "The work folder is a file": choose_a_work_folder_that_is_a_file,
    "A wrong checksum": download_other_bytes,
    "A download is cut off": cut_the_download,
    "No source can be reached": reach_no_source,
    "A file differs from its first download": change_the_first_download,
    "A downloaded file has changed on the disk": read_another_file,
    "The disk is full": fill_the_disk,
    "Another process trains here": train_twice_at_once,
    "The loss is not a number": diverge,
    "The loss leaves the published curve": leave_the_curve,
    "The examples have changed": damage_the_examples,
    "A step ends without a word": kill_a_step,
    "The last command was killed": kill_snakemake,
    "The directory cannot be locked": lock_from_another_host,
    "A result is damaged": damage_the_result,
    "A result has another fingerprint": change_the_recipe,
    "The verdict is undecided": decide_nothing,
    "There is no verdict": know_no_noise,
}
HEAVY = {"A step ends without a word", "The directory cannot be locked"}


def join_lines(text: str) -> str:
    """Return a text in one line, so that it does not matter where it is wrapped."""
    return " ".join(text.split())


def quoted(section: str) -> str:
    """Return the message in a section of the page, in one line."""
    (message,) = re.findall(r"^```text\n(.*?)^```$", SECTIONS[section], re.M | re.S)
    return join_lines(message)


def test_every_section_of_the_page_has_a_message_that_is_provoked() -> None:
    assert list(SECTIONS) == list(PROVOKED)
    assert PAGE.count("```text\n") == len(PROVOKED)
    for section in SECTIONS:
        assert len(quoted(section).replace("…", "")) > 10, section


@pytest.mark.parametrize(
    "section", [pytest.param(section, marks=pytest.mark.full if section in HEAVY else ()) for section in PROVOKED]
)
def test_the_message_of_the_page_is_the_one_that_the_code_gives(section: str, surroundings: Surroundings) -> None:
    message = join_lines(PROVOKED[section](surroundings))
    pattern = ".*?".join(re.escape(part) for part in quoted(section).split("…"))
    assert re.search(pattern, message), f"the page quotes\n{quoted(section)}\nthe code says\n{message}"
