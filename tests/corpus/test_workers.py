import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from relm.artifact import sha256_of
from relm.corpus import workers as module
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from small_dumps import articles, written


def slow_for_even(number: int) -> tuple[int, int]:
    time.sleep(0.02 if number % 2 == 0 else 0)
    return number, os.getpid()


def failing_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def leave(number: int) -> int:
    if number == 1:
        os._exit(5)
    return number


def kill_oneself(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def numbers_then_fault() -> Iterator[int]:
    yield from range(5)
    raise RelmError("the source is cut")


def test_results_come_in_order_from_several_processes() -> None:
    results = list(ordered_map(slow_for_even, range(30), 3, "testing"))
    assert [number for number, _ in results] == list(range(30))
    processes = {process for _, process in results}
    assert len(processes) == 3
    assert os.getpid() not in processes


def test_one_worker_is_this_process() -> None:
    assert {process for _, process in ordered_map(slow_for_even, range(3), 1, "testing")} == {os.getpid()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_of_the_source_comes_after_the_results_before_it(workers: int) -> None:
    results = ordered_map(failing_at_three if workers == 0 else abs, numbers_then_fault(), workers, "testing")
    assert [next(results) for _ in range(5)] == list(range(5))
    with pytest.raises(RelmError, match="the source is cut"):
        next(results)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fault_of_the_function_is_raised(workers: int) -> None:
    with pytest.raises(ValueError, match="three"):
        list(ordered_map(failing_at_three, range(9), workers, "testing"))


def test_the_source_is_not_read_far_ahead() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    results = ordered_map(abs, source(), 2, "testing")
    for _ in range(10):
        next(results)
    assert len(taken) <= 10 + 3 * 2
    results.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("function", "how"),
    [
        (leave, r"worker process \d+ ended with exit status 5"),
        (kill_oneself, r"worker process \d+ was killed by SIGKILL, perhaps"),
    ],
    ids=["exits", "is killed"],
)
def test_a_worker_that_dies_is_an_error_that_names_it(function, how: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RelmError, match="extracting x: " + how):
        list(ordered_map(function, range(50), 2, "extracting x"))
    assert not multiprocessing.active_children()


ENDLESS = """
import itertools
from relm.corpus.workers import ordered_map

if __name__ == "__main__":
    for number in ordered_map(abs, itertools.count(), 2, "counting"):
        if number == 100:
            print("running", flush=True)
"""


def test_workers_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "running\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


class Sliced(NamedTuple):
    """Arrays of all sorts, as a function may return them."""

    large: np.ndarray
    empty: np.ndarray
    strided: np.ndarray
    text: str


def make_arrays(number: int) -> Sliced:
    return Sliced(np.full((3, 2**18), number, dtype=np.int64), np.empty(0), np.arange(20)[::number], "x" * 2**17)


def test_arrays_arrive_as_they_were_sent_whatever_their_size() -> None:
    for number, found in enumerate(ordered_map(make_arrays, range(1, 6), 2, "testing"), 1):
        for sent, received in zip(make_arrays(number), found, strict=True):
            assert np.array_equal(sent, received)
        found.large[0, 0] = 7  # writable, as without workers


def sum_of(array: np.ndarray) -> int:
    return int(array.sum())


def test_items_may_be_larger_than_a_pipe() -> None:
    items = [np.full(2**20, number, dtype=np.int64) for number in range(5)]
    assert list(ordered_map(sum_of, items, 2, "testing")) == [number * 2**20 for number in range(5)]


def pair_with_time(item: object) -> tuple[float, object, np.ndarray]:
    """Return an item and the time at which it was taken, in a result that is larger than a pipe."""
    return time.monotonic(), item, np.zeros(2**21, dtype=np.int8)


def test_small_items_wait_in_the_pipes_of_busy_workers() -> None:
    results = ordered_map(pair_with_time, range(8), 2, "testing")
    taken = [next(results)[0]]
    time.sleep(1)  # the caller is slow, and reads no result
    asked = time.monotonic()
    taken += [moment for moment, *_ in results]
    assert sum(moment < asked for moment in taken) >= 3  # one of the workers at least had a second item


def test_small_and_large_items_in_turns_do_not_block() -> None:
    items = [number if number % 3 else np.full(2**20, number, dtype=np.int8) for number in range(20)]
    found = [item for _, item, _ in ordered_map(pair_with_time, items, 2, "testing")]
    assert all(np.array_equal(one, other) for one, other in zip(found, items, strict=True))


def kill_oneself_while_sending(number: int) -> Sliced:
    if number == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return Sliced(np.zeros(2**28, dtype=np.int8), np.empty(0), np.empty(0), "")  # the parent reads for longer than that
    return make_arrays(number)


def test_a_worker_that_dies_while_it_sends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = module._receive

    def slow(connection: Connection) -> object:
        time.sleep(0.5)
        return receive(connection)

    monkeypatch.setattr(module, "_receive", slow)
    with pytest.raises(RelmError, match=r"testing: worker process \d+ was killed by SIGKILL"):
        list(ordered_map(kill_oneself_while_sending, [1, 1], 2, "testing"))


def test_workers_of_a_command_import_neither_the_command_nor_recipes(tmp_path: Path) -> None:
    source = written(tmp_path, articles(60, words=600))
    remote = {"sha256": sha256_of(source), "size": source.stat().st_size, "sources": [{"url": "https://example.org/x"}]}
    facts = {"title": "T", "licence": "L", "language": "en", "format": "mediawiki_xml", "held_out_one_in": 2}
    (tmp_path / "d.yaml").write_text(json.dumps({**facts, "files": {"dump.xml": remote}}))
    files = ["--dataset", "d.yaml", "--source", "dump.xml", "--train", "t.jsonl", "--held-out", "h.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "relm", "extract", *files, "--workers", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    imported = [line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert imported.count("relm.corpus.wikipedia.markup") == 3
    assert imported.count("relm.cli") == imported.count("pydantic") == 1
