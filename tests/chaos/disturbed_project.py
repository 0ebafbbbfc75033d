"""A small project for disturbed runs: its sources come from a server here, its disk can be filled, its calls can fail."""

import bz2
import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil
from disturbed_calls import DisturbedCalls

from relm.artifact import sha256_of
from small_project import CHECKOUT, TINY_BERT_RECIPE, TINY_RECIPE, Commands
from small_servers import QuietHandler, running

DATASET = """
title: Two halves of the committed pages
licence: CC-BY-SA-3.0
language: en
format: mediawiki_xml
held_out_one_in: 4
files:
"""
FILE = """  {name}:
    sha256: '{sha256}'
    size: {size}
    sources: [{{url: "{url}"}}]
"""
# Phase, model and evaluations of each recipe; both train for seconds, so that a disturbance may fall into the training.
RECIPES = {
    "causal": TINY_RECIPE.replace("steps: 40", "steps: 1200").replace("interval: 10", "interval: 40"),
    "masked": TINY_BERT_RECIPE.replace("steps: 40", "steps: 800").replace("interval: 10", "interval: 40"),
}
DISK = 96 << 20
"""Bytes of the disk on which a project lies, where this user may mount one."""
LONGEST = 100
"""Seconds without work after which a command counts as one that waits for ever; four times as many, with work."""
WORK = 0.5
"""Seconds of processor time that are work."""


class Server(ThreadingHTTPServer):
    """Serve the dump files, as badly as `fault` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.fault = ""
        self.faults = 0
        """The count of requests that met a fault."""

    def url(self, name: str) -> str:
        """Return the address of a file."""
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing about clients that were killed."""


class _Handler(QuietHandler):
    server: Server

    def do_GET(self) -> None:
        body, fault = self.server.files[self.path[1:]], self.server.fault
        self.server.faults += bool(fault)
        if fault == "unavailable":
            self.respond(503)
        elif fault == "cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif fault == "slow":
            self._drip(body)
        else:
            self.respond(200, body)

    def _drip(self, body: bytes) -> None:
        """Send a piece at a time until the network is quick again."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        while body:
            length = 64 if self.server.fault else len(body)
            self.wfile.write(body[:length])
            body = body[length:]
            time.sleep(0.05)


@dataclass
class Ended:
    """A command that ended, with what it printed."""

    code: int | None
    """None: it did not end within the time of `LONGEST` and was killed."""
    printed: str
    seconds: float

    @property
    def has_traceback(self) -> bool:
        """Return whether it printed a traceback of Python's."""
        return "Traceback (most recent call last)" in self.printed


class DisturbedProject(Commands):
    """One project, and what may happen to it while its command runs."""

    def __init__(self, folder: Path, recipe: str, calls: DisturbedCalls, server: Server) -> None:
        super().__init__(folder)
        self.recipe, self.calls, self.server = recipe, calls, server
        self.out = calls.folder / "snakemake.out"
        """What the command prints: outside the project, whose disk may be full."""
        self.environment |= calls.environment
        self.environment["PYTHONFAULTHANDLER"] = "1"
        del self.environment["RELM_MIRROR"]
        self.process: subprocess.Popen[bytes] | None = None
        self.second: subprocess.Popen[bytes] | None = None
        """The same command, given again while the first one runs."""

    def command(self, *targets: str) -> list[str]:
        """The bare command, on two cores."""
        return ["snakemake", *targets, "--cores", "2", "--nocolor"]

    @property
    def target(self) -> str:
        """The folder that the command makes."""
        return f"results/{self.recipe}"

    def begin(self) -> None:
        """Start the command."""
        self.process, self.second = self.launch(self.out), None

    def launch(self, printed: Path) -> "subprocess.Popen[bytes]":
        """Start the command in a new session, and write what it prints into a file."""
        with open(printed, "wb") as out:
            return subprocess.Popen(
                self.command(self.target),
                cwd=self.folder,
                env=self.environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Return whether the command has not ended yet."""
        return self.process is not None and self.process.poll() is None

    def end(self) -> Ended:
        """Wait for the end of the command, and of a second one."""
        assert self.process is not None
        start = worked = time.monotonic()
        used = 0.0
        while self.is_running() or (self.second is not None and self.second.poll() is None):
            if abs((now_used := self.processor_time()) - used) > WORK:  # it falls when a process ends
                used, worked = now_used, time.monotonic()
            if time.monotonic() > min(worked + LONGEST, start + 4 * LONGEST):
                left = self.kill_waiting()
                return Ended(None, f"{self.out.read_text(errors='replace')}\n{left}", time.monotonic() - start)
            time.sleep(0.1)
        return Ended(self.process.returncode, self.out.read_text(errors="replace"), time.monotonic() - start)

    def kill_waiting(self) -> str:
        """Kill all that still runs, after each process has printed where it waits; return a line for each."""
        processes = self.running()
        lines = [f"{each.pid} ({describe_state(each)}): {' '.join(command_line(each))}" for each in processes]
        for number in (signal.SIGABRT, signal.SIGCONT, signal.SIGKILL):  # Python's fault handler prints at the first
            for each in processes:
                with contextlib.suppress(psutil.Error):
                    each.send_signal(number)
            psutil.wait_procs(processes, timeout=1)
        for started in filter(None, (self.process, self.second)):
            started.wait()
        return "\n".join(lines)

    def processor_time(self) -> float:
        """Return the seconds of processor time of all that runs."""
        return sum(processor_time(each.pid) for each in self.running())

    def running(self) -> list[psutil.Process]:
        """Return the processes of both commands that still run."""
        found = []
        for started in filter(None, (self.process, self.second)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process := psutil.Process(started.pid), *process.children(recursive=True)]
        return found

    def descendants(self) -> list[psutil.Process]:
        """Return all processes that the command started and that still run."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children(recursive=True))
        return []

    def steps(self) -> list[psutil.Process]:
        """Return the steps that run: `python -m relm STEP`."""
        return [each for each in self.descendants() if command_line(each)[1:3] == ["-m", "relm"]]

    def workers(self) -> list[psutil.Process]:
        """Return the processes that a step started."""
        return [worker for step in self.steps() for worker in children(step)]

    def wait_for_processes(self) -> None:
        """Wait until no process works in the project, as the trainer of a killed Snakemake does until it has saved."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end and any(working_folder(each) == self.folder for each in psutil.process_iter()):
            time.sleep(0.2)

    def files(self) -> list[Path]:
        """Return the files of `work` that a step may read or write, in the order of their names."""
        return sorted(path for path in (self.folder / "work").rglob("*") if path.is_file() and "logs" not in path.parts)


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's command; empty when it has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def describe_state(process: psutil.Process) -> str:
    """Return the state of a process, and how many threads it has."""
    try:
        return f"{process.status()}, {process.num_threads()} threads"
    except psutil.Error:
        return "ended"


def processor_time(pid: int) -> float:
    """Return the seconds of processor time of a process; 0 when it has just ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def working_folder(process: psutil.Process) -> Path | None:
    """Return a process's working folder; None when it has just ended."""
    try:
        return Path(process.cwd())
    except psutil.Error:
        return None


def children(process: psutil.Process) -> list[psutil.Process]:
    """Return the processes that a process started; empty when it has just ended."""
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def halves() -> dict[str, bytes]:
    """Return the committed pages as two dumps: one plain, one packed."""
    xml = bz2.decompress((CHECKOUT / "tests" / "data" / "enwiki-sample.xml.bz2").read_bytes()).decode()
    head, *pages = xml.removesuffix("</mediawiki>\n").split("  <page>")
    middle = len(pages) // 2
    first, second = (head + "".join(f"  <page>{page}" for page in part) for part in (pages[:middle], pages[middle:]))
    return {"first.xml": f"{first}</mediawiki>\n".encode(), "second.xml.bz2": bz2.compress(f"{second}</mediawiki>\n".encode())}


@contextlib.contextmanager
def serving_halves() -> Iterator[Server]:
    """Serve the two dumps for the length of a block."""
    with running(Server()) as server:
        server.files = halves()
        yield server


def make_project(folder: Path, recipe: str, calls: DisturbedCalls, server: Server) -> DisturbedProject:
    """Make a project with one recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("Snakefile", "src", "profiles", "containers"):
        (folder / name).symlink_to(CHECKOUT / name)
    (folder / "recipes" / "data").mkdir(parents=True)
    (folder / "recipes" / "models").mkdir()
    files = ""
    for name, content in server.files.items():
        (folder / name).write_bytes(content)
        files += FILE.format(name=name, sha256=sha256_of(folder / name), size=len(content), url=server.url(name))
        (folder / name).unlink()
    (folder / "recipes" / "data" / "sample.yaml").write_text(DATASET + files)
    (folder / "recipes" / f"{recipe}.yaml").write_text(RECIPES[recipe])
    return DisturbedProject(folder, recipe, calls, server)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk in memory on a folder for the length of a block; False where this user may not."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
