"""Mistakes that users make, typed as in a terminal: tests/data/mistakes.yaml keeps relm's answers, word for word.

After an answer was reworded, `RELM_WRITE_ANSWERS=after .venv/bin/python -m pytest -q -p no:xdist tests/test_mistakes.py` writes
what relm answers now. `before` is what it answered on 29 November 2026, before all of them were read as by a newcomer.
"""

import contextlib
import hashlib
import os
import re
import resource
import shlex
import shutil
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from relm.cli import main
from relm.corpus.download import transfer
from relm.recipes.section import merge
from relm.training.interruption import run_lock
from small_project import CHECKOUT, make_project
from small_servers import QuietHandler, running
from tiny_runs import RECIPE, byte_tokenizer, write_examples

TABLE = CHECKOUT / "tests" / "data" / "mistakes.yaml"
MISTAKES: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text())
WRITTEN = os.environ.get("RELM_WRITE_ANSWERS")
FILES = "--manifest {0}/manifest.json --tokenizer {0}/tokenizer.json --output run/main/model/model.safetensors"
TRAIN = f"pretrain small --phase main {FILES}"
GPU = "title: A GPU\ndevice: cuda\nmemory_gib: 24\n"
DATASET = """
title: A file
licence: CC0-1.0
language: en
format: text_files
files:
  a.txt: {{sha256: "{sha256}", size: 20000, sources: [{{url: "http://127.0.0.1:{port}/a.txt"}}]}}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project with a recipe, its examples and a finished run, and examples of other documents."""
    folder = tmp_path_factory.mktemp("trained")
    make_project(folder)
    shutil.rmtree(folder / "mirror")
    (folder / "recipes" / "machines").mkdir()
    (folder / "recipes" / "machines" / "rtx4090.yaml").write_text(GPU)
    recipe = merge(RECIPE, {"data": {"dataset": "sample"}, "pretrain": {"main": {"steps": 6}}})
    (folder / "recipes" / "small.yaml").write_text(yaml.safe_dump(recipe))
    write_examples(folder / "examples", seed=0)
    write_examples(folder / "others", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shlex.split(TRAIN.format("examples"))) == 0
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, which is the current folder."""
    folder = tmp_path / "project"
    shutil.copytree(trained, folder, symlinks=True)
    monkeypatch.chdir(folder)
    for name in ("RELM_MIRROR", "RELM_WORK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.01)
    return folder


def cut(request: QuietHandler) -> None:
    """Send the beginning of a file."""
    request.send_response(200)
    request.send_header("Content-Length", "20000")
    request.end_headers()
    request.wfile.write(b"text" * 25)
    request.close_connection = True


# How a server answers; "none" is not running.
SERVERS: dict[str, Callable[[QuietHandler], None]] = {
    "other": lambda request: request.respond(200, b"else" * 5_000),
    "full_disk": lambda request: request.respond(200, b"text" * 5_000),
    "absent": lambda request: request.respond(404),
    "cut": cut,
}


@contextlib.contextmanager
def serving(kind: str) -> Iterator[str]:
    """Serve a file in one of the ways that go wrong, describe it as a dataset, and yield the server's port."""
    handler = type("Handler", (QuietHandler,), {"do_GET": lambda request: SERVERS[kind](request)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    sha256 = hashlib.sha256(b"text" * 5_000).hexdigest()
    Path("recipes/data/file.yaml").write_text(DATASET.format(sha256=sha256, port=server.server_port))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if kind == "full_disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
        with running(server) if kind != "none" else server:
            if kind == "none":
                server.server_close()
            yield str(server.server_port)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def arrange(name: str, project: Path, patch: pytest.MonkeyPatch) -> None:
    """Do to the run what makes the command a mistake; without its model, training resumes from the checkpoint."""
    shutil.rmtree("run/main/model")
    shard = Path("examples/shard.train.bin")
    if name == "from_the_beginning":
        shutil.rmtree("run")
    elif name == "elsewhere":
        patch.chdir(project.parent)
    elif name == "other_tokenizer":
        byte_tokenizer("<mask>").save("examples/tokenizer.json")
    elif name == "damaged_checkpoint":
        Path("run/main/checkpoints/step-00000006/model.safetensors").write_bytes(b"cut")
    elif name == "changed_shard":
        shard.write_bytes(bytes(shard.stat().st_size))
    else:
        assert name in ("unfinished", "another_trainer")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["mistake"])
def test_a_mistake_is_answered_in_these_words(
    mistake: dict[str, Any],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, text in mistake.get("files", {}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving(mistake["server"])) if "server" in mistake else "PORT"
        if "arrange" in mistake:
            arrange(mistake["arrange"], project, monkeypatch)
        if mistake.get("arrange") == "another_trainer":
            stack.enter_context(run_lock(Path("run/main/lock")))
        command = re.sub(r"^TRAIN (\w+)", lambda match: TRAIN.format(match[1]), mistake["command"])
        capsys.readouterr()
        try:
            status: object = main(shlex.split(command))
        except SystemExit as stop:
            status = stop.code
        given = capsys.readouterr()
    printed = given.err + given.out if status else "\n".join(caplog.messages)
    answer = re.sub("^usage: .*?\n(?=relm)", "", printed.replace(port, "PORT"), flags=re.DOTALL).strip()
    for pattern, word in {"[0-9a-f]{64}": "SHA256", "[0-9a-f]{12}": "KEY", r"(?<=pid )\d+|(?<=kill )\d+": "PID"}.items():
        answer = re.sub(rf"\b(?:{pattern})\b", word, answer)
    if WRITTEN:
        mistake[WRITTEN] = answer
    assert answer == mistake["after" if WRITTEN is None else WRITTEN]


@pytest.fixture(scope="module", autouse=True)
def write_answers() -> Iterator[None]:
    """Write the table with the answers of now, where RELM_WRITE_ANSWERS asks for it."""
    yield
    if WRITTEN:
        TABLE.write_text(yaml.dump(MISTAKES, Dumper=TableDumper, sort_keys=False, allow_unicode=True, width=120))


class TableDumper(yaml.SafeDumper):
    """Writes answers of several lines as blocks."""


TableDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)
