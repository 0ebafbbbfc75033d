"""Extract a dump made large by repetition, by few and many workers: time, memory, and the same bytes.

`python benchmarks/extraction_at_scale.py DUMP --copies 20 200 --workers 1 16` makes two dumps of copies of DUMP, each
copy with its own ids, and extracts both. The documents must have the same sha256 for any number of workers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from bz2 import compress
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from extraction import PAGE_END, id_step, pages_of, renumber, write_dataset

from relm.artifact import sha256_of
from relm.limits import usable_cores

SPLITS = ("train", "held-out")
# Runs a command, and prints its processor time and the memory of its largest process.
BETWEEN = (
    "import json,resource,subprocess,sys;done=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL);"
    "used=resource.getrusage(resource.RUSAGE_CHILDREN);print(json.dumps([used.ru_utime+used.ru_stime,used.ru_maxrss//1024]));"
    "sys.exit(done.returncode)"
)


# --- the dump --------------------------------------------------------------------------------------------------------------


def compressed_copy(copy: int, copies: int, dump: Path, step: int) -> tuple[int, bytes]:
    """Return one copy of a dump's pages as a bz2 stream, with the header in the first and the end in the last; and its size."""
    pages = (page if not copy else renumber(page, copy * step) for page in pages_of(dump))
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


def extract(dump: Path, dataset: Path, workers: int, size: float) -> tuple[float, list[str]]:
    """Extract a dump of `size` GB of XML, print what it took, and return its seconds and the sha256 of the documents."""
    with tempfile.TemporaryDirectory(dir=dump.parent) as folder:
        files = [Path(folder, f"{split}.jsonl") for split in SPLITS]
        written = [word for split, file in zip(SPLITS, files, strict=True) for word in (f"--{split}", str(file))]
        options = ["--dataset", str(dataset), "--source", str(dump), "--workers", str(workers), *written]
        started = time.perf_counter()
        command = [sys.executable, "-c", BETWEEN, sys.executable, "-m", "relm", "extract", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds, (processor_seconds, megabytes) = time.perf_counter() - started, json.loads(done.stdout)
        hashes = [sha256_of(file) for file in files]
    print(
        f"  {workers} workers: {seconds:.1f} s, {1e3 * size / seconds:.0f} MB/s of XML, processor {processor_seconds:.1f} s, "
        f"largest process {megabytes} MB; sha256 {hashes[0][:12]} and {hashes[1][:12]}",
        flush=True,
    )
    return seconds, hashes


def compare(dump: Path, copies: int, workers: list[int]) -> tuple[float, list[float]]:
    """Extract a dump of `copies` copies by each number of workers.

    Returns:
        The GB of its XML, and the seconds of each extraction.

    Raises:
        SystemExit: the documents differ.
    """
    with tempfile.TemporaryDirectory(dir=dump.parent) as folder:
        large = Path(folder) / "large.xml.bz2"
        size = write_copies(dump, large, copies, usable_cores())
        print(f"{copies} copies: {size:.2f} GB of XML, {large.stat().st_size / 1e9:.2f} GB of bz2", flush=True)
        dataset = write_dataset(large, folder)
        runs = [extract(large, dataset, count, size) for count in workers]
    if any(hashes != runs[0][1] for _, hashes in runs):
        sys.exit("the documents depend on the number of workers")
    return size, [seconds for seconds, _ in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description="Extract a dump made large by repetition.")
    parser.add_argument("dump", type=Path, metavar="DUMP")
    parser.add_argument(
        "--copies", type=int, nargs="+", default=[2, 20], metavar="N", help="copies in each dump (default 2 20)"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of workers (default 1 2)")
    parser.add_argument("--folder", type=Path, help="where the dumps and documents go, 7 GB for 1 GB of bz2 (default: /tmp)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        dump = Path(folder) / arguments.dump.name
        dump.symlink_to(arguments.dump.resolve())
        found = [compare(dump, copies, arguments.workers) for copies in arguments.copies]
    (smallest, first), (largest, last) = found[0], found[-1]
    if len(found) > 1:
        for workers, before, after in zip(arguments.workers, first, last, strict=True):
            print(f"{largest / smallest:.2f} times the XML takes {after / before:.2f} times the wall time ({workers} workers)")


if __name__ == "__main__":
    main()
