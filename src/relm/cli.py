"""Every step as a command: `relm STEP ...` or `python -m relm STEP ...`.

A step reads files, writes files atomically, prints its result on one line, and writes a record next to its output. A user's
mistake ends in one clear message and a non-zero exit status.
"""

import contextlib
import datetime
import itertools
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from relm.artifact import sidecar_of
from relm.cluster.rank_processes import run_ranks, split_processes
from relm.cluster.slurm_step import adopt_slurm_step
from relm.devices import ranks
from relm.errors import RelmError
from relm.formatting import escape_for_terminal
from relm.progress import JOB_LOGS, print_into_log
from relm.recipes.declaration import load_extensions
from relm.recipes.project import Project
from relm.recipes.redaction import withhold_logger_keys
from relm.steps import list_steps
from relm.steps.contract import Arguments, Step, name_variation, plan_of
from relm.steps.parser import MissingArguments, Parser
from relm.training.interruption import Preempted

# Words of C libraries, in an OSError, an ImportError or a RuntimeError of torch.
LACK_OF_MEMORY = re.compile("(allocate|not enough) memory|failed to map segment|can't start new thread", re.IGNORECASE)


def run_step(name: str, step: Step, arguments: Arguments, argv: Sequence[str]) -> str:
    """Run and record a step, and return its sentence. With several ranks, only the first checks and records."""
    name_variation(arguments)
    job = step.job(arguments)
    if isinstance(job, str):
        return job
    if ranks.rank():
        return job.run()
    from relm.provenance.step_record import record, require_as_made

    known = {path for path in job.described if sidecar_of(path).is_file()}
    if absent := [str(path) for path in job.inputs if path not in known and not path.exists()]:
        raise RelmError(f"no such file: {', '.join(absent)}; run the step that makes it, or correct the path")
    taken = {path.resolve(): "is also read" for path in job.inputs}
    for output in job.outputs:
        if (found := taken.get(output.resolve())) is not None:
            raise RelmError(f"{output}: is to be written, but {found} by the same command; choose another path")
        taken[output.resolve()] = "is also written"
    for given in job.inputs:
        if given not in known and (given not in job.checked_by_run or not sidecar_of(given).is_file()):
            require_as_made(given, job.expected_sha256.get(given))
    if not step.records:
        return job.run()
    words = [*ranks.started_by(), *argv]
    with folders_of(job.outputs), record(step.recorded_as or name, job.inputs, job.outputs, words) as facts:
        facts["summary"] = job.run()
    return str(facts["summary"])


@contextlib.contextmanager
def folders_of(outputs: Sequence[Path]) -> Iterator[None]:
    """Make the folders of a step's outputs; remove the empty ones if the step fails."""
    absent = {folder for output in outputs for folder in output.parents if not folder.exists()}
    for output in outputs:
        output.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in sorted(absent, key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):  # not empty, or gone
                folder.rmdir()
        raise


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return the process's exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        adopt_slurm_step(os.environ)
        if (started := split_processes(argv)) is not None:
            if ranks.ranks() == 1:
                return run_in_processes(*started)
            argv = started[1]  # torchrun or srun has started the processes
        load_extensions()
        from relm.steps.evaluation import name_evaluation

        reader, argv = Parser(list_steps()), name_evaluation(argv)
    except RelmError as error:
        print(f"relm: {error}", file=sys.stderr)
        return error.exit_code
    try:
        arguments = reader.read(argv)
    except MissingArguments as missing:
        return run_by_name(reader, argv, missing)
    logging.basicConfig(format=f"relm {arguments.step}: %(message)s")
    logging.getLogger("relm").setLevel(logging.INFO)
    step = reader.steps[arguments.step]
    if step.records:  # a step of the graph; other commands only print or start one
        withhold_logger_keys(arguments.step, os.environ)
    status, into_log, stream = 0, False, sys.stderr if step.sentence_on_stderr else sys.stdout
    try:
        if into_log := arguments.log is not None and os.environ.get(JOB_LOGS) == "1":
            print_into_log(arguments.log)
        message = run_step(arguments.step, step, arguments, argv)
        if step.records or arguments.step == "publish":
            message = f"{arguments.step}: {message}"
    except BrokenPipeError as error:
        return close_output(error)
    except (RelmError, KeyboardInterrupt, OSError, MemoryError, ImportError, RuntimeError) as error:
        status, words = explain_fault(error)
        stream, message = sys.stderr, f"relm {arguments.step}: {words.removeprefix(f'{arguments.step}: ')}"
    # File names and JSON strings may be invalid UTF-8, or contain commands to a terminal.
    message = escape_for_terminal(message.encode("utf-8", "backslashreplace").decode())
    if ranks.rank():
        if status not in (0, Preempted.exit_code):
            print(f"{message} (rank {ranks.rank()} of {ranks.ranks()})", file=sys.stderr, flush=True)
        return status
    try:
        if not into_log:
            print(message, file=stream, flush=True)
    except OSError as error:
        return close_output(error)
    return status if arguments.log is None else max(status, write_log(arguments.log, message))


def run_in_processes(count: int, words: Sequence[str]) -> int:
    """Run a step in several processes, and return the exit status of all of them."""
    with keep_checkpoints(words):
        done = run_ranks(count, words)
    if done.message is None:
        return done.status
    message = f"relm {words[0] if words else ''}: {done.message}"
    log = next((Path(value) for option, value in itertools.pairwise(words) if option == "--log"), None)
    if log is None or os.environ.get(JOB_LOGS) != "1":
        print(message, file=sys.stderr)
    return done.status if log is None else max(done.status, write_log(log, message))


@contextlib.contextmanager
def keep_checkpoints(words: Sequence[str]) -> Iterator[None]:
    """Keep a training step's checkpoints in the recipe's store; leave other faults to the ranks."""
    plan = None
    with contextlib.suppress(RelmError, MissingArguments):
        if words[:1] == ["pretrain"]:
            load_extensions()
            arguments = Parser(list_steps()).read(list(words))
            name_variation(arguments)
            plan = plan_of(arguments)
    if plan is None or plan.recipe.run.checkpoints_to is None:
        yield
        return
    from relm.cluster.bucket.checkpoints import keep_in_store

    logging.basicConfig(format="relm pretrain: %(message)s")
    logging.getLogger("relm").setLevel(logging.INFO)
    with keep_in_store(plan):
        yield


def explain_fault(error: BaseException) -> tuple[int, str]:
    """Return exit status and sentence of a fault that a user can correct; raise any other error again."""
    if isinstance(error, RelmError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT, "interrupted; no partial files are left"
    if isinstance(error, MemoryError) or LACK_OF_MEMORY.search(str(error)):
        return (
            1,
            f"memory ran out ({str(error) or 'no details'}); give the step more, or close other programs, and run it again",
        )
    if not isinstance(error, OSError):
        raise error
    if isinstance(error, PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError | IsADirectoryError):
        return 1, f"{error.filename}: {error.strerror}; correct the path or its permissions"
    return 1, f"{error.filename or 'a file'}: {error.strerror or error}; is the disk full or read-only?"


def run_by_name(reader: Parser, argv: Sequence[str], missing: MissingArguments) -> int:
    """Run `relm STEP NAME` with the arguments from the recipe's plan, and return its exit status."""
    from relm.steps.by_name import describe_command, find_command, read_words

    step, *words = argv
    try:
        named = read_words(step, words) if reader.steps[step].takes_name else None
        if named is None:
            return reader.print_missing(missing, step)
        command = find_command(Project(), step, named)
        if named.printed is not None:
            reader.read(ranks.words_of_step(command))  # to report unknown options
            print(describe_command(Project(), command, named.printed))
            return 0
    except RelmError as error:
        print(f"relm {step}: {error}", file=sys.stderr)
        return error.exit_code
    if not ranks.rank():
        print(f"relm: {shlex.join(command)}", file=sys.stderr)
    if command[0] == "relm":
        return main(command[1:])
    return subprocess.run(command).returncode  # poprun or srun, which starts the step's processes


def close_output(error: OSError) -> int:
    """Discard further output, because its reader has closed it or its disk is full, and return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # as in `relm list | head`
        return 128 + signal.SIGPIPE
    with contextlib.suppress(OSError):
        print(f"relm: cannot write the output: {error.strerror}", file=sys.stderr, flush=True)
    return 1


def write_log(log: Path, message: str) -> int:
    """Append a step's last line with the time to its log; return 0, or 1 if that fails."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{now} {message}\n")
    except OSError as error:
        print(f"relm: --log {log}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
