"""Ctrl-C while a command imports its modules ends it with 130 and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_project import Commands

INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.fixture
def interrupted(tmp_path: Path) -> dict[str, str]:
    """An environment in which importing pydantic, as relm's recipes do, is where Ctrl-C comes."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "pydantic.py").write_text(INTERRUPTING)
    return {"PYTHONPATH": str(tmp_path / "first")}


@pytest.mark.parametrize("command", [[str(Path(sys.executable).with_name("relm"))], [sys.executable, "-m", "relm"]], ids=len)
def test_relm_ends_quietly(command: list[str], interrupted: dict[str, str]) -> None:
    done = subprocess.run([*command, "list"], env={**os.environ, **interrupted}, text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_snakemake_ends_quietly_while_the_snakefile_imports(project: Commands) -> None:
    snakefile, first = project.folder / "Snakefile", "from snakemake.utils import min_version\n"
    text = snakefile.read_text()
    assert first in text
    snakefile.unlink()  # a link to the checkout's
    snakefile.write_text(text.replace(first, INTERRUPTING + first))
    done = project.run_command("results/tiny", "-n")
    assert (done.returncode, done.stdout) == (130, "relm: interrupted; no step was running, and the same command resumes\n")
