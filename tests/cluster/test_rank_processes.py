"""`relm --processes N` starts N ranks, passes signals on, and ends with one exit status that says what happened to them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relm.cluster import rank_processes
from relm.cluster.rank_processes import RanksEnd, run_ranks, split_processes
from relm.errors import RelmError

# Takes the place of `python -m relm`: a rank that ends as the word for it says, or once it has received TERM.
RANK = """#!{python}
import os, signal, sys, time
rank, end = int(os.environ["RANK"]), sys.argv[3 + int(os.environ["RANK"])]
received = []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
open(f"began-{{rank}}", "w").close()
while end in ("saves", "hangs") and (end == "hangs" or not received):
    time.sleep(0.01)
if end == "saves":
    time.sleep(0.3 - 0.3 * rank)
    open(f"saved-{{rank}}", "w").close()
if end == "killed":
    while not os.path.exists("began-1"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(75 if end == "saves" else int(end))
"""
# Runs the ranks in a process of its own, which a test may send signals.
LAUNCH = """
import sys
from relm.cluster import rank_processes
sys.executable = sys.argv[1]
sys.exit(rank_processes.run_ranks(2, sys.argv[2:]).status)
"""


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "rank"
    path.write_text(RANK.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def run(rank: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RanksEnd]:
    """Return a function: how each rank ends -> the end of all."""
    monkeypatch.setattr(rank_processes.sys, "executable", str(rank))
    monkeypatch.setattr(rank_processes, "SECONDS_TO_NOTICE", 0.1)
    monkeypatch.setattr(rank_processes, "SECONDS_TO_END", 0.3)
    return lambda *ends: run_ranks(len(ends), ends)


@pytest.fixture
def launched(rank: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(rank), "saves", "saves"])
    while not (Path("began-0").exists() and Path("began-1").exists()):
        time.sleep(0.02)
    yield process
    process.kill()


@pytest.mark.parametrize(
    ("ends", "status"), [(("0", "0"), 0), (("75", "75"), 75), (("0", "75"), 75), (("3", "75"), 3), (("0", "1"), 1)]
)
def test_the_status_is_75_only_if_every_rank_ended_well_or_saved(
    run: Callable[..., RanksEnd], ends: tuple[str, ...], status: int
) -> None:
    assert run(*ends) == RanksEnd(status, None)


def test_a_killed_rank_is_named_and_one_that_hangs_is_ended(run: Callable[..., RanksEnd]) -> None:
    done = run("killed", "hangs")
    assert done.status == 128 + signal.SIGKILL
    assert done.message is not None
    assert re.match(r"rank 0 of 2 was ended by SIGKILL \(did memory run out\?\), so the others", done.message)


def test_a_failed_rank_speaks_for_itself_and_the_others_are_told_to_stop(run: Callable[..., RanksEnd]) -> None:
    assert run("2", "saves") == RanksEnd(2, None)
    assert Path("saved-1").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_reaches_every_rank_and_it_waits_until_all_have_saved(
    launched: "subprocess.Popen[bytes]", number: signal.Signals
) -> None:
    launched.send_signal(number)
    if number == signal.SIGHUP:  # for which these ranks have no handler
        assert launched.wait(timeout=20) == 128 + signal.SIGHUP
    else:
        assert launched.wait(timeout=20) == 75
        assert {path.name for path in Path().glob("saved-*")} == {"saved-0", "saved-1"}


def test_ranks_find_each_other_by_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = rank_processes._environment(1, 4, 2345)
    assert {found[name] for name in ("RANK", "LOCAL_RANK", "OMP_NUM_THREADS", "RELM_STOP_WITH_PARENT")} == {"1"}
    assert (found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"], found["MASTER_PORT"]) == ("4", "4", "2345")
    assert found["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("words", [["--processes"], ["--processes", "0", "pretrain"], ["--processes=x", "pretrain"]])
def test_a_count_that_is_none_is_refused(words: list[str]) -> None:
    with pytest.raises(RelmError, match="--processes: expected a count of processes of 1 or more, found"):
        split_processes(words)


@pytest.mark.parametrize("cores", [2, 96])
def test_more_processes_than_a_machine_bears_are_refused(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(rank_processes, "usable_cores", lambda: cores, raising=False)
    most = max(cores, 64)
    assert split_processes(["--processes", str(most), "pretrain"]) == (most, ["pretrain"])
    for count in (most + 1, 40000, 10**30):
        with pytest.raises(RelmError, match=f"--processes: found {count:,}; expected at most {most} on this machine"):
            split_processes(["--processes", str(count), "pretrain"])


def test_the_option_stands_before_the_step() -> None:
    assert split_processes(["--processes=3", "pretrain", "x"]) == (3, ["pretrain", "x"])
    assert split_processes(["pretrain", "--processes", "3"]) is None
    assert split_processes([]) is None
