"""Every step as a command: `relm STEP ...` or `python -m relm STEP ...`.

A step reads files, writes files atomically, prints one line with its result, and writes a record of its run beside its output.
A user's mistake ends in one clear message and a non-zero exit status.
"""

import datetime
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from relm.artifact import checked_sidecar, require_sha256, sha256_of
from relm.devices import ranks
from relm.errors import RelmError
from relm.recipes.declaration import load_extensions
from relm.steps import list_steps
from relm.steps.contract import Arguments, Step
from relm.steps.parser import parser
from relm.training.interruption import Preempted


def run_step(name: str, step: Step, arguments: Arguments, argv: Sequence[str]) -> str:
    """Run one step with a record of it, and return its sentence. With several ranks, only the first checks and records."""
    job = step.job(arguments)
    if ranks.rank():
        return job.run()
    from relm.provenance.step_record import record, sidecar

    if absent := [str(path) for path in job.inputs if not path.exists()]:
        raise RelmError(f"no such file: {', '.join(absent)}; run the step that makes it, or correct the path")
    for given in job.inputs:  # a file must match its sidecar and the recipe
        expected = job.expected_sha256.get(given)
        if sidecar(given) is not None:
            checked_sidecar(given, expected)
        elif expected is not None:
            require_sha256(given, sha256_of(given), expected)
    if not step.records:
        return job.run()

    for folder in {output.parent for output in job.outputs}:
        folder.mkdir(parents=True, exist_ok=True)
    with record(name, job.inputs, job.outputs, [*ranks.started_by(), *argv]) as facts:
        facts["summary"] = job.run()
    return str(facts["summary"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the process's exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        load_extensions()
        steps = list_steps()
    except RelmError as error:
        print(f"relm: {error}", file=sys.stderr)
        return error.exit_code
    arguments = parser(steps).parse_args(argv)
    logging.basicConfig(format=f"relm {arguments.step}: %(message)s")
    logging.getLogger("relm").setLevel(logging.INFO)
    step = steps[arguments.step]
    status, stream = 0, sys.stdout
    try:
        message = run_step(arguments.step, step, arguments, argv)
        if step.records or arguments.step == "publish":
            message = f"{arguments.step}: {message}"
    except RelmError as error:
        words = str(error).removeprefix(f"{arguments.step}: ")
        status, stream, message = error.exit_code, sys.stderr, f"relm {arguments.step}: {words}"
    except KeyboardInterrupt:
        status, stream, message = 130, sys.stderr, f"relm {arguments.step}: interrupted; nothing half-written is left"
    except BrokenPipeError:
        return close_broken_pipe()
    except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        words = f"{error.filename}: {error.strerror}; correct the path or its permissions"
        status, stream, message = 1, sys.stderr, f"relm {arguments.step}: {words}"
    except OSError as error:
        words = f"{error.filename or 'a file'}: {error.strerror or error}; is the disk full or read-only?"
        status, stream, message = 1, sys.stderr, f"relm {arguments.step}: {words}"
    message = message.encode("utf-8", "backslashreplace").decode()  # names of files and strings of JSON may be invalid UTF-8
    if ranks.rank():
        return report_from_other_rank(status, message)
    try:
        print(message, file=stream, flush=True)
    except BrokenPipeError:
        return close_broken_pipe()
    return status if arguments.log is None else max(status, write_log(arguments.log, message))


def close_broken_pipe() -> int:
    """Send further output nowhere, because its reader has ended, as in `relm list | head`, and return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


def report_from_other_rank(status: int, message: str) -> int:
    """Print an error in a rank other than the first, and nothing else, and return its exit status.

    A stopped rank exits with 0: torchrun would take another status for a fault, and kill a first rank that still saves.
    """
    if status in (0, Preempted.exit_code):
        return 0
    print(f"{message} (rank {ranks.rank()} of {ranks.ranks()})", file=sys.stderr, flush=True)
    return status


def write_log(log: Path, message: str) -> int:
    """Append a step's last line to its log, with the time, and return 0, or 1 if the log cannot be written."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{now} {message}\n")
    except OSError as error:
        print(f"relm: --log {log}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
