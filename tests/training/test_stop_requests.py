import os
import signal
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.training.interruption import Preempted, run_lock, stop_requests


def test_a_signal_becomes_a_request_and_a_second_one_is_harmless() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_requests() as stop:
        assert not stop
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop
        assert stop.name == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_closed_terminal_is_a_request_unless_it_is_ignored() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, name in ((signal.SIG_DFL, "SIGHUP"), (signal.SIG_IGN, "nothing")):
            signal.signal(signal.SIGHUP, handler)
            with stop_requests() as stop:
                if handler == signal.SIG_IGN:
                    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
                else:
                    signal.getsignal(signal.SIGHUP)(signal.SIGHUP, None)  # type: ignore[operator, misc]
                assert stop.name == name
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_exit_code_of_preempted_means_try_again() -> None:
    assert issubclass(Preempted, RelmError)
    assert Preempted.exit_code == os.EX_TEMPFAIL


def test_a_lock_is_held_once_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    with (
        run_lock(path),
        pytest.raises(RelmError, match=rf"another process trains here already \(pid {os.getpid()}\)"),
        run_lock(path),
    ):
        pass
    with run_lock(path):
        assert path.read_text() == f"{os.getpid()}\n"
