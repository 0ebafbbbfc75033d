"""Extract a dump made large by repetition, whole and in ranges, by few and many workers: time, memory, and the same bytes.

`python benchmarks/extraction_at_scale.py DUMP --copies 20 200 --cuts 64x1 7x2 1x16 --kill` makes two dumps of 20 and 200 copies
of DUMP, each copy with ids of its own, and extracts both in 64 ranges by one worker each, in 7 ranges by two and as one range
by sixteen, as many ranges at a time as there are cores. The documents of every cut must have the same sha256. With --kill,
SIGKILL ends all processes of the first cut in the middle, and the ranges that are left are then extracted.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from bz2 import compress
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from extraction import PAGE_END, id_step, number_anew, pages_of, write_dataset

from relm.artifact import sha256_of, sidecar_of
from relm.limits import usable_cores

SPLITS = ("train", "held-out")
# Runs a command, and prints its processor time and the memory of its largest process.
BETWEEN = (
    "import json,resource,subprocess,sys;done=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL);"
    "used=resource.getrusage(resource.RUSAGE_CHILDREN);print(json.dumps([used.ru_utime+used.ru_stime,used.ru_maxrss//1024]));"
    "sys.exit(done.returncode)"
)
POLL = 0.05  # seconds


class Cut(NamedTuple):
    """A way to extract a dump."""

    ranges: int
    workers: int
    """Worker processes of each range."""

    @classmethod
    def of(cls, text: str) -> "Cut":
        """Read RANGESxWORKERS."""
        ranges, workers = text.split("x")
        return cls(int(ranges), int(workers))

    def __str__(self) -> str:
        return (
            f"{self.ranges} range{'s' if self.ranges > 1 else ''}, {self.workers} worker{'s' if self.workers > 1 else ''} each"
        )


class Job(NamedTuple):
    """One range in work."""

    folder: Path
    process: subprocess.Popen[str]


class Used(NamedTuple):
    """The time and memory of a cut's commands."""

    seconds: float
    processor_seconds: float
    megabytes: int
    """Peak resident memory of the largest process."""


# --- the dump --------------------------------------------------------------------------------------------------------------


def compressed_copy(copy: int, copies: int, dump: Path, step: int) -> tuple[int, bytes]:
    """Return one copy of a dump's pages as a bz2 stream, with the header in the first and the end in the last; and its size."""
    pages = (page if not copy else number_anew(page, copy * step) for page in pages_of(dump))
    text = "".join(page for page in pages if page.endswith(PAGE_END) or copy == copies - 1).encode()
    return len(text), compress(text)


def write_copies(dump: Path, target: Path, copies: int, cores: int) -> float:
    """Write copies of a dump as one bz2 file and return the GB of its XML."""
    size, compressed = 0, partial(compressed_copy, copies=copies, dump=dump, step=id_step(dump))
    with ProcessPoolExecutor(cores) as pool, target.open("wb") as output:
        for begin in range(0, copies, cores):  # no more streams in memory than there are cores
            some = range(begin, min(begin + cores, copies))
            for length, stream in pool.map(compressed, some):
                size += length
                output.write(stream)
    return size / 1e9


# --- the extraction --------------------------------------------------------------------------------------------------------


def start(dump: Path, dataset: Path, cut: Cut, number: int, folder: Path) -> Job:
    """Start the extraction of one range in a process group of its own."""
    written = [word for split in SPLITS for word in (f"--{split}", str(folder / f"{split}.jsonl"))]
    options = ["--dataset", str(dataset), "--source", str(dump), "--workers", str(cut.workers), *written]
    part = ["--range", f"{number}-of-{cut.ranges}"] if cut.ranges > 1 else []
    command = [sys.executable, "-c", BETWEEN, sys.executable, "-m", "relm", "extract", *options, *part]
    log = (folder.parent / f"{number}.log").open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    return Job(folder, process)


def is_complete(folder: Path) -> bool:
    """Say whether a range is there; a file that is there without its sidecar is a fault."""
    files = [folder / f"{split}.jsonl" for split in SPLITS]
    return all(file.exists() and sidecar_of(file).exists() for file in files)


def extract_ranges(dump: Path, dataset: Path, cut: Cut, folder: Path, cores: int, stop_after: float | None) -> list[Used]:
    """Extract the ranges that are not there yet, and return what each took.

    Args:
        stop_after: kill all processes after so many seconds; None: never.
    """
    folders = {number: folder / str(number) for number in range(1, cut.ranges + 1)}
    left = [number for number, own in folders.items() if not is_complete(own)]
    running, used = list[Job](), list[Used]()
    started = time.perf_counter()
    while left or running:
        while left and len(running) < max(1, cores // cut.workers):
            number = left.pop(0)
            folders[number].mkdir(parents=True, exist_ok=True)
            running.append(start(dump, dataset, cut, number, folders[number]))
        time.sleep(POLL)
        if stop_after is not None and time.perf_counter() - started > stop_after:
            for job in running:
                os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
            return used
        for job in [job for job in running if job.process.poll() is not None]:
            running.remove(job)
            printed, _ = job.process.communicate()
            if job.process.returncode:
                sys.exit(f"the range in {job.folder} failed: {(folder / f'{job.folder.name}.log').read_text()[-2000:]}")
            processor_seconds, megabytes = json.loads(printed)
            used.append(Used(time.perf_counter() - started, processor_seconds, megabytes))
    return used


def join(cut: Cut, folder: Path) -> Path:
    """Put the documents of all ranges together and return the folder that they lie in."""
    if cut.ranges == 1:
        return folder / "1"
    words = ["--job", '{"format":"mediawiki_xml"}']
    for split in SPLITS:
        ranges = [str(folder / str(number) / f"{split}.jsonl") for number in range(1, cut.ranges + 1)]
        words += [f"--{split}", str(folder / f"{split}.jsonl"), f"--{split}-ranges", *ranges]
    subprocess.run([sys.executable, "-m", "relm", "join-ranges", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


def measure(dump: Path, dataset: Path, cut: Cut, cores: int, stop_after: float | None) -> tuple[Used, list[str], str]:
    """Return what a cut took, the sha256 of its documents, and what was found after a kill."""
    with tempfile.TemporaryDirectory(dir=dump.parent) as temporary:
        folder, found = Path(temporary), ""
        used = list[Used]()
        started = time.perf_counter()
        if stop_after is not None:
            used += extract_ranges(dump, dataset, cut, folder, cores, stop_after)
            complete = sum(is_complete(folder / str(number)) for number in range(1, cut.ranges + 1))
            found = (
                f"; killed after {stop_after:.0f} s with {complete} of {cut.ranges} ranges complete, which were not read again"
            )
        used += extract_ranges(dump, dataset, cut, folder, cores, None)
        joined = join(cut, folder)
        seconds = time.perf_counter() - started
        total = Used(seconds, sum(one.processor_seconds for one in used), max(one.megabytes for one in used))
        return total, [sha256_of(joined / f"{split}.jsonl") for split in SPLITS], found


def compare(dump: Path, copies: int, cuts: Sequence[Cut], cores: int, kill: bool) -> tuple[float, list[float]]:
    """Extract a dump of so many copies in every cut and print what each took.

    Returns:
        The GB of its XML, and the seconds of each cut.

    Raises:
        SystemExit: the documents of two cuts differ.
    """
    with tempfile.TemporaryDirectory(dir=dump.parent) as folder:
        large = Path(folder) / "large.xml.bz2"
        size = write_copies(dump, large, copies, cores)
        print(f"{copies} copies: {size:.2f} GB of XML, {large.stat().st_size / 1e9:.2f} GB of bz2", flush=True)
        dataset = write_dataset(large, folder)
        runs: list[tuple[Cut, float | None]] = [(cut, None) for cut in cuts]
        expected, seconds = list[str](), list[float]()
        while runs:
            cut, stop_after = runs.pop(0)
            used, hashes, found = measure(large, dataset, cut, cores, stop_after)
            print(
                f"  {cut}: {used.seconds:.1f} s, {1e3 * size / used.seconds:.0f} MB/s of XML, processor "
                f"{used.processor_seconds:.1f} s, largest process {used.megabytes} MB; sha256 {hashes[0][:12]} and "
                f"{hashes[1][:12]}{found}",
                flush=True,
            )
            if hashes != (expected := expected or hashes):
                sys.exit(f"the documents differ from those of the first cut, {expected[0][:12]} and {expected[1][:12]}")
            if stop_after is None:
                seconds.append(used.seconds)
            if kill and len(seconds) == 1 and stop_after is None:
                runs.insert(0, (cut, used.seconds / 2))
        return size, seconds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Extract a dump made large by repetition.")
    parser.add_argument("dump", type=Path, metavar="DUMP")
    parser.add_argument(
        "--copies", type=int, nargs="+", default=[2, 20], metavar="N", help="copies in each dump (default 2 20)"
    )
    cuts = "ranges and workers of each (default 1x2 7x1)"
    parser.add_argument("--cuts", type=Cut.of, nargs="+", default=[Cut(1, 2), Cut(7, 1)], metavar="RANGESxWORKERS", help=cuts)
    parser.add_argument("--cores", type=int, default=usable_cores(), help="processes at a time (default: all cores)")
    parser.add_argument("--kill", action="store_true", help="repeat the first cut and kill it in the middle")
    parser.add_argument("--folder", type=Path, help="where the dumps and documents go, 7 GB for 1 GB of bz2 (default: /tmp)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        dump = Path(folder) / arguments.dump.name
        dump.symlink_to(arguments.dump.resolve())
        found = [compare(dump, copies, arguments.cuts, arguments.cores, arguments.kill) for copies in arguments.copies]
    (smallest, first), (largest, last) = found[0], found[-1]
    if len(found) > 1:
        for cut, before, after in zip(arguments.cuts, first, last, strict=True):
            print(f"{largest / smallest:.2f} times the XML takes {after / before:.2f} times the wall time ({cut})")


if __name__ == "__main__":
    main()
