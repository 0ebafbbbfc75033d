"""`relm list`: all runs by paper."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relm.recipes.project import Project
from relm.reporting.run_list import WIDTH, describe_runs
from small_project import CHECKOUT, Commands


def copy_recipes(folder: Path, *runs: str) -> None:
    """Copy the shipped machines, data and models, and of the runs those that are named and what they extend."""
    shutil.copytree(
        CHECKOUT / "recipes",
        folder / "recipes",
        ignore=lambda at, names: [
            name
            for name in names
            if Path(at) == CHECKOUT / "recipes" and name.endswith(".yaml") and name.removesuffix(".yaml") not in runs
        ],
    )


def test_the_table_has_each_run_by_paper_in_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    table = describe_runs(Project(CHECKOUT))
    assert re.search(r"^shakespeare_char +cpu +804 k +(?:\d+ min|\d+\.\d h)  done ", table, re.MULTILINE), (
        "as the published run has it"
    )
    assert max(map(len, table.splitlines())) <= WIDTH == 100
    names = re.findall(r"^(\w\S*)  +(?:\w[\w-]*)  +[\d.]+ [kMB]  ", table, re.MULTILINE)
    assert sorted(names) == Project(CHECKOUT).names()
    assert names[-1] == "quickstart", "it has no paper"
    headings = re.findall(r"^.* \[paper_\w+\]$", table, re.MULTILINE)
    assert "LM Pretraining with Pytorch/TPU [paper_tpu_pretrain]" in headings
    assert len(headings) == len(set(headings)) == 8
    assert re.search(r"^roberta_base_v3-8 +v3-8 +125 M +(< 1 min|\d+ min)", table, re.MULTILINE)


def test_the_table_shows_what_is_done_and_the_state_of_the_others(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / Project().plan("tiny").run_folder).mkdir(parents=True)
    assert re.search(r"^tiny +cpu .* stopped  As small as can be$", describe_runs(Project()), re.MULTILINE)
    (project.folder / "results" / "tiny").mkdir(parents=True)
    assert re.search(r"^tiny +cpu .* done ", describe_runs(Project()), re.MULTILINE)


def test_machines_with_faults_and_files_without_a_machines_name_are_listed(tmp_path: Path) -> None:
    copy_recipes(tmp_path, "quickstart")
    (tmp_path / "recipes" / "machines" / "mine.yaml").write_text("title: Mine\n")
    for name in ("my box.yaml", ".#h100.yaml"):
        shutil.copy(CHECKOUT / "recipes/machines/h100.yaml", tmp_path / "recipes" / "machines" / name)
    listed = " ".join(describe_runs(Project(tmp_path)).split())
    assert re.search(r"@mine has faults: \S*mine.yaml: 1 error: device: missing", listed)
    assert f"{tmp_path}/recipes/machines/'my box.yaml': cannot be a machine's name, which begins with a letter or" in listed
    assert "#h100" not in listed


def test_a_result_on_another_machine_does_not_count_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_recipes(tmp_path, "quickstart", "shakespeare_char")
    (tmp_path / "results" / "quickstart@h100").mkdir(parents=True)
    (tmp_path / "results" / "shakespeare_char").mkdir()
    monkeypatch.chdir(tmp_path)
    assert re.search(r"^shakespeare_char .* done  ", describe_runs(Project()), re.M)
    assert not re.search(r"^quickstart .* done", describe_runs(Project()), re.M)


def test_the_list_needs_no_torch() -> None:
    script = "import sys; from relm.cli import main; main(['list']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True).returncode == 0


def test_a_reader_that_ends_early_is_no_fault() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m relm list | true; echo ${{PIPESTATUS[0]}}"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("141\n", "")
