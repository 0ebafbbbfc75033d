"""Measure how fast a dump becomes documents, beside WikiExtractor and mwparserfromhell: `python benchmarks/extraction.py DUMP`.

WikiExtractor 3.1.0 (AGPL-3.0) is no part of the project: it is installed into a temporary environment from PyPI, and runs
unchanged, as `--json --no-templates`, on the same .xml.bz2 and with as many processes. Every run of either is a whole command
in a process of its own, imports included, in turns. WikiExtractor takes a page for an article only by its <ns>, which dumps
lacked before 2010 (enwik8 is of 2006): such a dump first gets them, and <redirect /> where a page is one, for both.

mwparserfromhell cleans the same articles as relm's cleaner alone, in alternation; it reads no dumps.
"""

import argparse
import bz2
import importlib.util
import itertools
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple
from xml.sax.saxutils import unescape

from relm.artifact import checked_sidecar
from relm.corpus.decompression import read_decompressed
from relm.corpus.extract import extract
from relm.corpus.wiki_names import names_of
from relm.corpus.wikipedia import OTHER_NAMESPACES, Dump, Page
from relm.corpus.wikitext_markup import extract_plain_text
from relm.recipes.datasets import Dataset

PEER = "wikiextractor==3.1.0"
COMPARED_ARTICLES = 100
CORES = 16
WHOLE_DUMP = 100e9  # bytes of XML, about those of the English Wikipedia's pages-articles

_TITLE = re.compile(r"( *)<title>(.*)</title>\n?")
_TEXT = re.compile(r"<text[^<>]*>(.*)", re.DOTALL)


class Run(NamedTuple):
    """One run of one command."""

    seconds: float
    processor_seconds: float
    parent_seconds: float
    """Processor time of the process that cuts the dump and writes the documents, which is a part of the other."""
    megabytes: int
    """Peak resident memory of the largest process."""


# --- the commands ----------------------------------------------------------------------------------------------------------


def extract_dump(dump: Path, workers: int) -> None:
    """Extract a dump, as a process of its own, and print pages, documents and the processor time of this process."""
    settings = {"title": "", "licence": "", "language": "en", "format": "mediawiki_xml", "ends_mid_page": True}
    remote = {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org"}]}
    dataset = Dataset.model_validate(settings | {"held_out_one_in": 10, "files": {"dump": remote}})
    with tempfile.TemporaryDirectory() as folder:
        outputs = {split: Path(folder) / f"{split}.jsonl" for split in ("train", "held_out")}
        extract(dataset, dump, outputs, None, workers)
        sidecars = [checked_sidecar(path) for path in outputs.values()]
    documents = sum(sidecar["documents"] for sidecar in sidecars)
    own = resource.getrusage(resource.RUSAGE_SELF)
    pages = documents + sum(sidecars[0]["skipped"].values())
    print(json.dumps({"pages": pages, "documents": documents, "own": own.ru_utime + own.ru_stime}))


def run(command: list[str], folder: str) -> tuple[Run, str]:
    """Run a command and return its times and output; the memory is read from the children of a process between."""
    between = (
        "import json,resource,subprocess,sys,time\n"
        "started=time.perf_counter()\n"
        "done=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE,text=True)\n"
        "used=resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(done.stdout);print(json.dumps([time.perf_counter()-started,used.ru_utime+used.ru_stime,used.ru_maxrss//1024]))\n"
        "sys.exit(done.returncode)"
    )
    done = subprocess.run([sys.executable, "-c", between, *command], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    *output, last = done.stdout.strip().splitlines()
    seconds, processor_seconds, megabytes = json.loads(last)
    return Run(seconds, processor_seconds, 0.0, megabytes), "\n".join(output).strip()


def run_relm(dump: Path, workers: int, folder: str) -> tuple[Run, dict[str, float]]:
    """Return a run of relm, and what it says of itself."""
    found, output = run([sys.executable, str(Path(__file__).resolve()), "--extract", str(dump), str(workers)], folder)
    said = json.loads(output.splitlines()[-1])
    return found._replace(parent_seconds=said["own"]), said


def install_peer(folder: str) -> str:
    """Return the Python of a fresh environment with WikiExtractor."""
    venv.create(folder, with_pip=True)
    python = str(Path(folder) / "bin" / "python")
    done = subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", PEER], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{PEER} cannot be installed: {done.stderr.strip()[-500:]}; --without-wikiextractor leaves it out")
    return python


def run_peer(python: str, dump: Path, workers: int, folder: str) -> tuple[Run, int]:
    """Return a run of WikiExtractor, and the articles that it wrote."""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        options = ["--json", "--no-templates", "--quiet", "--processes", str(workers), "--output", output]
        found, _ = run([python, "-m", "wikiextractor.WikiExtractor", *options, str(dump)], folder)
        articles = sum(path.read_bytes().count(b"\n") for path in Path(output).rglob("wiki_*"))
    return found, articles


# --- the input -------------------------------------------------------------------------------------------------------------


def write_input(dump: Path, target: Path) -> float:
    """Write a dump as bz2, with <ns> where it has none, and return the MB of its XML."""
    size = 0
    with bz2.open(target, "wt", encoding="utf-8", newline="") as output:
        for page in pages_of(dump):
            size += len(page.encode())
            output.write(page)
    return size / 1e6


def pages_of(dump: Path) -> Iterator[str]:
    """Yield what stands before the first page, each page, and the end; <ns> and <redirect /> are added where they lack."""
    rest = b""
    for block in itertools.chain(read_decompressed(dump), [b""]):
        *ended, rest = (rest + block).split(b"</page>\n")
        yield from (add_namespace((page + b"</page>\n").decode()) for page in ended)
    yield rest.decode()


def add_namespace(page: str) -> str:
    title = _TITLE.search(page)
    if "<ns>" in page or not title:
        return page
    prefix, colon, _ = unescape(title[2]).partition(":")
    added = f"{title[1]}<ns>{int(bool(colon) and prefix.lower() in OTHER_NAMESPACES)}</ns>\n"
    text = _TEXT.search(page)
    if text and names_of("en").redirect.match(text[1]):
        added += f"{title[1]}<redirect />\n"
    return page[: title.end()] + added + page[title.end() :]


# --- the comparison of cleaners --------------------------------------------------------------------------------------------


def seconds_of(clean: Callable[[str], object], text: str) -> float:
    started = time.perf_counter()
    clean(text)
    return time.perf_counter() - started


def compare_cleaners(dump: Path) -> None:
    """Print the time of both cleaners on the first articles, in alternation."""
    if importlib.util.find_spec("mwparserfromhell") is None:
        print("mwparserfromhell is not installed: nothing to compare with")
        return
    import mwparserfromhell

    def peer(text: str) -> str:
        return str(mwparserfromhell.parse(text).strip_code())

    pages = (page for page in Dump(dump, ends_mid_page=True) if isinstance(page, Page))
    texts = [page.wikitext for page in itertools.islice(pages, COMPARED_ARTICLES)]
    times = [(seconds_of(extract_plain_text, text), seconds_of(peer, text)) for text in texts]
    ours, theirs = (sum(column) for column in zip(*times, strict=True))
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"the first {len(texts)} articles, {size:.1f} MB of wikitext, cleaned alone:")
    print(f"relm {ours:.2f} s, mwparserfromhell {theirs:.2f} s, ratio {theirs / ours:.1f}")


# --- the table -------------------------------------------------------------------------------------------------------------


def print_runs(name: str, runs: list[Run], pages: int, size: float) -> None:
    seconds = sorted(run.seconds for run in runs)
    processor = sorted(run.processor_seconds for run in runs)
    middle = median(seconds)
    print(
        f"{name}: {middle:.1f} s ({seconds[0]:.1f} to {seconds[-1]:.1f}), processor {median(processor):.1f} s "
        f"({processor[0]:.1f} to {processor[-1]:.1f}); {pages / middle:,.0f} pages/s, {size / middle:.1f} MB/s "
        f"of XML; largest process {max(run.megabytes for run in runs)} MB"
    )


def print_ratios(name: str, dividends: list[Run], divisors: list[Run]) -> None:
    for what in ("seconds", "processor_seconds"):
        ratios = sorted(getattr(a, what) / getattr(b, what) for a, b in zip(dividends, divisors, strict=True))
        label = "wall time" if what == "seconds" else "processor time"
        print(f"{name}, {label}: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def print_whole_dump(runs: list[Run], size: float) -> None:
    """Print what a whole dump takes: one process cuts and writes, the workers do the rest, and all share the cores."""
    writing = median(run.parent_seconds for run in runs) / size
    working = median(run.processor_seconds - run.parent_seconds for run in runs) / size
    shared = max(writing, (writing + working) / CORES)
    hours = shared * WHOLE_DUMP / 1e6 / 3600
    print(
        f"{WHOLE_DUMP / 1e9:.0f} GB of XML on {CORES} cores: {hours:.2f} h of work. One process cuts the dump and writes, "
        f"{1e3 * writing:.0f} s of processor time a GB, which no number of cores shortens; the workers take "
        f"{1e3 * working:.0f}; together they need {1e3 * (writing + working) / CORES:.0f} s a GB of {CORES} cores"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure extraction.")
    parser.add_argument("dump", type=Path, metavar="DUMP")
    parser.add_argument("--runs", type=int, default=3, help="runs of each command, in turns (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes of both extractors (default 2)")
    parser.add_argument("--without-wikiextractor", action="store_true", help="install and run relm alone")
    return parser.parse_args()


def main() -> None:
    if sys.argv[1:2] == ["--extract"]:
        extract_dump(Path(sys.argv[2]), int(sys.argv[3]))
        return
    arguments = parse_arguments()
    workers = arguments.workers
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.xml.bz2"
        size = write_input(arguments.dump, dump)
        python = None if arguments.without_wikiextractor else install_peer(str(Path(folder) / "peer"))
        alone, together, peers, articles = list[Run](), list[Run](), list[Run](), 0
        for _ in range(arguments.runs):
            alone.append(run_relm(dump, 1, folder)[0])
            found, said = run_relm(dump, workers, folder)
            together.append(found)
            if python:
                found, articles = run_peer(python, dump, workers, folder)
                peers.append(found)
        pages = int(said["pages"])
        print(f"{size:.1f} MB of XML with {pages:,} pages; relm wrote {int(said['documents']):,} articles")
        print_runs("relm, 1 worker", alone, pages, size)
        print_runs(f"relm, {workers} workers", together, pages, size)
        print_ratios(f"relm, 1 worker by {workers}", alone, together)
        if python:
            print_runs(f"{PEER}, {workers} processes, {articles:,} articles", peers, pages, size)
            print_ratios("WikiExtractor by relm", peers, together)
        print_whole_dump(together, size)
        compare_cleaners(dump)


if __name__ == "__main__":
    main()
