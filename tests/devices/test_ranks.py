"""Rank 0 alone of the processes of one step prints and writes; a single process does so, too."""

import os
import subprocess
import sys
import time
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
step = cli.Step("do a thing", [], lambda a: Job(run, inputs=inputs, outputs=[Path("out")]))
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
    assert '"torchrun",\n  "--standalone",\n  "--nproc-per-node",\n  "2"' in (tmp_path / "out.record.json").read_text()


def test_another_rank_runs_its_part_and_prints_nothing(tmp_path: Path) -> None:
    done = step(tmp_path, 1, 2)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert files(tmp_path) == {"ran", "out"}


@pytest.mark.parametrize(("rank", "status"), [(0, 75), (1, 0)])
def test_only_the_first_rank_reports_a_stopped_step(rank: int, status: int, tmp_path: Path) -> None:
    done = step(tmp_path, rank, 2, "preempted")
    assert (done.returncode, "stopped by SIGTERM" in done.stderr) == (status, rank == 0)


def test_an_error_of_another_rank_is_reported_with_its_rank(tmp_path: Path) -> None:
    done = step(tmp_path, 1, 2, "badly")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "relm schema: it went badly (rank 1 of 2)\n")
    assert files(tmp_path) == {"ran", "out"}


def test_rank_is_ignored_where_the_world_size_is_one(tmp_path: Path) -> None:
    assert step(tmp_path, 3, 1).stdout == "schema: it went well\n"


def test_the_first_rank_alone_checks_the_inputs(tmp_path: Path) -> None:
    assert "no such file: absent" in step(tmp_path, 0, 2, given="absent").stderr
    assert step(tmp_path, 1, 2, given="absent").returncode == 0


def test_one_process_is_started_plainly_and_several_by_torchrun() -> None:
    assert ranks.launcher(1) == ["python", "-m", "relm"]
    assert ranks.launcher(4)[:4] == ["torchrun", "--standalone", "--nproc-per-node", "4"]
    assert ranks.launcher(4)[-3:] == ["-m", "--", "relm"]


# A rank that takes a moment to save when it gets TERM, the first one longest.
SAVING = """
import os, signal, sys, time
from pathlib import Path
rank, received = int(os.environ["RANK"]), []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
Path(f"began-{rank}").touch()
while not received:
    time.sleep(0.02)
time.sleep(1.5 - rank)
Path(f"saved-{rank}").touch()
sys.exit(75 if rank == 0 else 0)
"""


def test_a_terminated_torchrun_lets_each_rank_save_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(SAVING)
    words = ranks.launcher(2)[:-3]
    command = [str(Path(sys.executable).parent / words[0]), *words[1:], "saving.py"]
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=output)
    while process.poll() is None and not {"began-0", "began-1"} <= files(tmp_path):
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 1, (tmp_path / "output").read_text()
    assert {"saved-0", "saved-1"} <= files(tmp_path)
    assert "closing signal SIGTERM" in (tmp_path / "output").read_text()


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
    assert ranks.split_launcher([*ranks.started_by(), "pretrain", "relm"]) == ["pretrain", "relm"]


@pytest.mark.parametrize("value", ["", "x", "0", "-4", "9"])
def test_variables_that_poprun_cannot_have_set_make_no_ranks(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name, known in {**POPRUN, "POPDIST_NUM_LOCAL_REPLICAS": value}.items():
        monkeypatch.setenv(name, known)
    assert (ranks.rank(), ranks.ranks()) == (0, 1)
    assert ranks.started_by() == ["relm"]


@pytest.mark.parametrize(
    "words",
    [
        [*ranks.launcher(2)[:-1], "sh", "relm"],
        [*ranks.poprun(2, 8, 8, ["--host", "a"]), "pretrain"],
        ["env", "LD_PRELOAD=x", *ranks.poprun(2, 8, 8)[2:], "pretrain"],
        ["poprun", "relm"],
    ],
)
def test_no_other_words_before_relm_are_taken_for_a_launcher(words: list[str]) -> None:
    assert ranks.split_launcher(words) is None
