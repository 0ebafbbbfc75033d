"""The table at the end of `.ci/run`: seconds of each stage next to its limit, and those to a first result next to a target."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MAKE = '#!/bin/sh\ncase "$*" in *quickstart) mkdir -p results/quickstart ;; *{making}*) mkdir -p "$RELM_ENVS/made" ;; esac\n'


@pytest.mark.parametrize(
    ("making", "result", "shown"), [("nothing", False, True), ("harness", False, False), ("nothing", True, False)]
)
def test_the_seconds_to_a_first_result_are_shown_where_all_was_cached(
    checkout: Path, tmp_path: Path, making: str, result: bool, shown: bool
) -> None:
    """A `make` that does nothing takes the place of the real one."""
    script, make, environments = tmp_path / ".ci" / "run", tmp_path / "bin" / "make", tmp_path / "environments"
    for folder in (
        script.parent,
        make.parent,
        environments / "cpu",
        *([tmp_path / "results" / "quickstart"] if result else []),
    ):
        folder.mkdir(parents=True)
    shutil.copy(checkout / ".ci" / "run", script)
    make.write_text(MAKE.format(making=making))
    make.chmod(0o755)
    variables = {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}", "RELM_ENVS": str(environments)}
    done = subprocess.run(["bash", str(script)], env=variables, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.rpartition("\n\n")[2].splitlines()
    assert all(re.match(r"[a-z-]+ +\d+ s of +\d+", row) for row in rows), done.stdout
    assert [row.split()[0] for row in rows[:2]] == ["environment", "format"]
    assert any(re.fullmatch(r"first-result +\d+ s of +300, a target: environment and quickstart", row) for row in rows) == shown
