"""Only rank 0 of the processes of one step prints and writes; a single process does so, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relm.devices import ranks

# A job that only ends, run as the command line runs one.
STEP = """
import sys
import time
from pathlib import Path
from relm import cli
from relm.errors import RelmError
from relm.steps.contract import Job
from relm.training.interruption import Preempted
END = {"well": None, "badly": RelmError("it went badly"), "preempted": Preempted("stopped by SIGTERM")}[sys.argv[1]]
def run():
    Path("ran").touch()
    Path("out").touch()
    if END is not None:
        raise END
    return "it went well"
inputs = [Path("absent")] if sys.argv[2] == "absent" else []
step = cli.Step("do a thing", [], lambda a: Job(run, inputs=inputs, outputs=[Path("out")]), "project")
cli.list_steps = lambda: {"schema": step}
sys.exit(cli.main(["schema", "--log", "log"]))
"""


def step(folder: Path, rank: int, ranks: int, end: str = "well", given: str = "present") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", STEP, end, given],
        cwd=folder,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
        text=True,
        capture_output=True,
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_first_rank_prints_records_and_logs(tmp_path: Path) -> None:
    done = step(tmp_path, 0, 2)
    assert (done.returncode, done.stdout) == (0, "schema: it went well\n")
    assert files(tmp_path) == {"ran", "out", "out.record.json", "log"}
    assert '"relm",\n  "--processes",\n  "2",\n  "schema"' in (tmp_path / "out.record.json").read_text()


def test_another_rank_runs_its_part_and_prints_nothing(tmp_path: Path) -> None:
    done = step(tmp_path, 1, 2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert files(tmp_path) == {"ran", "out"}


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_of_a_stopped_step_ends_with_75_and_the_first_reports_it(rank: int, tmp_path: Path) -> None:
    done = step(tmp_path, rank, 2, "preempted")
    assert (done.returncode, "stopped by SIGTERM" in done.stderr) == (75, rank == 0)


def test_an_error_of_another_rank_is_reported_with_its_rank(tmp_path: Path) -> None:
    done = step(tmp_path, 1, 2, "badly")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "relm schema: it went badly (rank 1 of 2)\n")
    assert files(tmp_path) == {"ran", "out"}


def test_rank_is_ignored_where_the_world_size_is_one(tmp_path: Path) -> None:
    assert step(tmp_path, 3, 1).stdout == "schema: it went well\n"


def test_only_the_first_rank_checks_the_inputs(tmp_path: Path) -> None:
    assert "no such file: absent" in step(tmp_path, 0, 2, given="absent").stderr
    assert step(tmp_path, 1, 2, given="absent").returncode == 0


def test_one_process_is_started_plainly_and_several_by_an_option_of_relm() -> None:
    assert ranks.launcher(1) == ["python", "-m", "relm"]
    assert ranks.launcher(4) == ["python", "-m", "relm", "--processes", "4"]


def test_srun_starts_the_processes_of_several_hosts_and_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpu-bind=none --kill-on-bad-exit=1"
    assert ranks.launcher(16, hosts=2) == [*words.split(), "python", "-m", "relm"]
    for name, value in {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    assert ranks.started_by() == [*words.split(), "relm"]
    assert ranks.words_of_step([*words.split(), "relm", "pretrain", "NAME"]) == ["pretrain", "NAME"]


POPRUN = {
    "POPDIST_NUM_TOTAL_REPLICAS": "8",
    "POPDIST_NUM_LOCAL_REPLICAS": "4",
    "POPDIST_REPLICA_INDEX_OFFSET": "4",
    "POPDIST_NUM_IPUS_PER_REPLICA": "16",
}


def test_popruns_instances_are_ranks_and_their_launcher_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in POPRUN.items():
        monkeypatch.setenv(name, value)
    assert (ranks.rank(), ranks.ranks()) == (1, 2)
    started = " ".join(ranks.started_by())
    assert started.endswith("poprun --num-instances 2 --num-replicas 8 --ipus-per-replica 16 python -m relm")


@pytest.mark.parametrize("value", ["", "x", "0", "-4", "9"])
def test_variables_that_poprun_cannot_have_set_make_no_ranks(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name, known in {**POPRUN, "POPDIST_NUM_LOCAL_REPLICAS": value}.items():
        monkeypatch.setenv(name, known)
    assert (ranks.rank(), ranks.ranks()) == (0, 1)
    assert ranks.started_by() == ["relm"]
