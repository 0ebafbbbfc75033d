"""The processes, time limits and results of one `relm accept`, in a temporary folder below work/accept."""

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.formatting import escape_for_terminal
from relm.recipes.identity import work_folder
from relm.recipes.redaction import mask_secrets
from relm.training.interruption import STOP_WITH_PARENT
from relm.training.kill_points import KILL_AT

Check = Callable[["CheckRun", str], tuple[str, dict[str, Any]]]
"""Take the run and a recipe's name, and return a sentence and figures, or raise."""
Outcome = Literal["passed", "failed", "skipped"]
LONGEST_FULL = 3600
"""Seconds of each check with --full."""


class NotApplicable(Exception):
    """A check does not apply here; the message is the reason."""


class TooSlow(RelmError):
    """A process did not end within the time of its check."""


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check on one recipe."""

    check: str
    recipe: str
    outcome: Outcome
    sentence: str
    seconds: float
    figures: Mapping[str, Any]


@dataclass
class CheckRun:
    """The device, folder, time and results that all checks share."""

    device: str
    folder: Path
    full: bool
    results: list[CheckResult] = field(default_factory=list)
    made_on: dict[str, Any] = field(default_factory=dict)
    """The description of the device that a training process opened."""
    _deadline: float = field(default_factory=time.monotonic)
    """When the current check must end; time that a check leaves is the next one's."""
    _numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def new_path(self, name: str) -> Path:
        """Return an unused path in the temporary folder."""
        return self.folder / f"{next(self._numbers):03}-{name}"

    def run_check(
        self,
        check: str,
        seconds: int,
        recipes: Sequence[str],
        function: Check,
    ) -> None:
        """Run a check on each recipe until its time is over, and print a line for each; a failure stops nothing."""
        self._deadline += LONGEST_FULL if self.full else seconds
        longest = 0.0
        for recipe in recipes:
            started = time.monotonic()
            outcome: Outcome = "passed"
            figures: dict[str, Any] = {}
            try:
                left = self._deadline - started
                if longest > left or left <= 0:
                    raise NotApplicable(f"{max(0, left):.0f} s are left for this check; --full gives it {LONGEST_FULL:,}")
                sentence, figures = function(self, recipe)
            except NotApplicable as reason:
                outcome, sentence = "skipped", str(reason)
            except Exception as error:  # on new hardware anything may fail
                outcome, sentence = "failed", str(error) if isinstance(error, RelmError) else f"{type(error).__name__}: {error}"
            took = time.monotonic() - started
            longest = max(longest, took)
            result = CheckResult(check, recipe, outcome, hide_names(sentence), round(took, 1), figures)
            self.results.append(result)
            print(f"{outcome:8} {check:12} {recipe}: {escape_for_terminal(result.sentence)} ({took:.0f} s)", flush=True)

    def ask_worker(self, task: str, kill_at: str = "", **request: Any) -> dict[str, Any]:
        """Run a task in a separate process, and return its answer; `kill_at` is a point at which it must kill itself.

        Raises RelmError with the process's error, or if it takes longer than the check may.
        """
        asked, answer = self.new_path("request.json"), self.new_path("answer.json")
        write_json(asked, {"task": task, **request})
        words = ["-m", "relm.forecast.acceptance.worker", str(asked), str(answer)]
        status, stderr = self.run_python(words, {KILL_AT: kill_at})
        if kill_at:
            if status != -signal.SIGKILL:
                raise RelmError(f"the process ended with {status} and did not reach {kill_at}, where it was to be killed")
            return {}
        if answer.exists():
            content: dict[str, Any] = read_json(answer)
            if "error" not in content:
                return content
            raise RelmError(content["error"])
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        raise RelmError(f"the process ended with {status}: {lines[-1] if lines else 'without a message'}")

    def run_python(self, words: Sequence[str], environment: Mapping[str, str] = {}) -> tuple[int, str]:
        """Run Python in its own run within the check's time; return its exit status and its standard error."""
        log = self.new_path("stderr.txt")
        whole = {**os.environ, STOP_WITH_PARENT: "1", **environment}
        with open(log, "wb") as file:
            command = [sys.executable, *words]
            process = subprocess.Popen(
                command, env=whole, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )
            try:
                status = process.wait(max(1.0, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise TooSlow("the process did not end within the time of this check, and was killed") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return status, log.read_text(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder below work/accept, and remove it at the end, also on TERM and HUP.

    Folders of calls that were killed are removed first, if their process no longer exists.
    """
    parent = work_folder() / "accept"
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.iterdir():
        number = left.name.partition("-")[0]
        if number.isdecimal() and not Path("/proc", number).exists():
            shutil.rmtree(left, ignore_errors=True)
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent)).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for caught, handler in before.items():
            signal.signal(caught, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def hide_names(value: Any) -> Any:
    """Return texts, in lists and dictionaries too, without secrets, temporary folders, and names of host and user."""
    if isinstance(value, Mapping):
        return {key: hide_names(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hide_names(inner) for inner in value]
    if not isinstance(value, str):
        return value
    text = re.sub(r"\S*\baccept/\d+-\w+/", "", mask_secrets(value))
    for name, shown in ((socket.gethostname(), "HOST"), (_user(), "USER")):
        if len(name) > 2 and name not in ("root", "localhost"):
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", shown, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
