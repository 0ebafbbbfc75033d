"""The faults of `make chaos` strike where they should, and its comparison finds what was lost."""

import dataclasses
import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import disturbed_project
import pytest
from disturbed_calls import DisturbedCalls, find_lacking
from disturbed_project import DisturbedProject, Ended, Server
from soak import Use, find_leaks

from chaos import find_other, judge

PROBE = """
import errno, os, sys, time
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return errno.errorcode[error.errno]
print(int(time.time()))
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDWR)
    print(attempt(lambda: os.read(file, 1)), attempt(lambda: os.write(file, b"x")), attempt(lambda: os.fsync(file)))
"""


@pytest.fixture
def calls(tmp_path: Path) -> DisturbedCalls:
    if lacking := find_lacking():
        pytest.skip(lacking)
    (tmp_path / "disturbed").mkdir()
    (tmp_path / "disturbed" / "file").write_text("content")
    (tmp_path / "other").write_text("content")
    return DisturbedCalls(tmp_path, tmp_path / "disturbed")


def probe(calls: DisturbedCalls) -> list[str]:
    """Return the time of day and what reads, writes and flushes gave, inside and outside the disturbed folder."""
    files = [str(calls.folder / "disturbed" / "file"), str(calls.folder / "other")]
    command = [sys.executable, "-c", PROBE, *files]
    return subprocess.run(
        command, env={**os.environ, **calls.environment}, text=True, capture_output=True, check=True
    ).stdout.splitlines()


def test_without_settings_every_call_is_right(calls: DisturbedCalls) -> None:
    now, *results = probe(calls)
    assert abs(int(now) - time.time()) < 60
    assert results == ["done done done"] * 2
    assert calls.failures == 0


def test_only_calls_on_files_of_the_folder_fail(calls: DisturbedCalls) -> None:
    calls.set(reads_one_in=1)
    assert probe(calls)[1:] == ["EIO done done", "done done done"]
    calls.set(writes_one_in=1, error=errno.ENOSPC)
    assert probe(calls)[1:] == ["done ENOSPC ENOSPC", "done done done"]
    assert calls.failures == 3


def test_the_clock_jumps(calls: DisturbedCalls) -> None:
    calls.set(clock_seconds=-86400)
    assert abs(int(probe(calls)[0]) + 86400 - time.time()) < 60


@pytest.mark.parametrize(
    ("found", "other"),
    [
        ({"work/a": "1", "results/b": "2"}, []),
        ({"work/a": "1", "results/b": "2", "work/more": "3"}, []),
        ({"results/b": "2"}, []),
        ({"work/a": "1"}, ["results/b"]),
        ({"work/a": "1", "results/b": "3"}, ["results/b"]),
        ({"work/a": "0", "results/b": "2"}, ["work/a"]),
    ],
)
def test_changed_products_and_absent_published_ones_are_lost(found: dict[str, str], other: list[str]) -> None:
    assert find_other({"work/a": "1", "results/b": "2"}, found) == other


@pytest.mark.parametrize(
    ("code", "printed", "outcome"),
    [
        (0, "", "finished"),
        (1, "an error in one sentence", "stopped"),
        (1, "Traceback (most recent call last):", "traceback"),
        (0, "Traceback (most recent call last):", "traceback"),
        (None, "", "waited for ever"),
    ],
)
def test_the_outcome_of_a_command(code: int | None, printed: str, outcome: str) -> None:
    assert judge(Ended(code, printed, 1.0)) == outcome


@pytest.mark.parametrize(
    ("code", "ends"), [("time.sleep(99)", (1, 3)), ("while True: pass", (4, 8)), ("time.sleep(0.5)", (0, 2))]
)
def test_a_command_that_does_nothing_is_killed_sooner_than_one_that_works(
    code: str, ends: tuple[float, float], calls: DisturbedCalls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disturbed_project, "LONGEST", 1)
    monkeypatch.setattr(disturbed_project, "WORK", 0.2)
    project = DisturbedProject(tmp_path, "causal", calls, Server())
    monkeypatch.setattr(project, "command", lambda *targets: [sys.executable, "-c", f"import time\n{code}"])
    project.begin()
    ended = project.end()
    assert (ended.code is None) == (ends[0] > 0) == ('File "<string>", line 2 in <module>' in ended.printed)
    assert ends[0] <= ended.seconds < ends[1]
    assert not project.is_running()


FLAT = [Use(descriptors=6, threads=8, processes=0, temporary_files=0, memory=500 << 20)] * 40


def test_resources_that_stay_are_no_leak() -> None:
    first = [dataclasses.replace(use, memory=number << 20, temporary_files=3) for number, use in enumerate(FLAT[:10])]
    assert find_leaks(first + FLAT[10:]) == []


@pytest.mark.parametrize(("name", "each"), [("descriptors", 1), ("temporary_files", 1), ("memory", 256 << 10)])
def test_what_each_round_leaves_behind_is_found(name: str, each: int) -> None:
    uses = [dataclasses.replace(use, **{name: getattr(use, name) + each * number}) for number, use in enumerate(FLAT)]
    (leak,) = find_leaks(uses)
    assert leak.startswith(f"{name}: ")
