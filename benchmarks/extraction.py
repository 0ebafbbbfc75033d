"""Compare extraction of a dump with WikiExtractor and mwparserfromhell by speed: `python benchmarks/extraction.py DUMP`.

WikiExtractor 3.1.0 (AGPL-3.0) is not part of the project: it is installed into a temporary environment from PyPI, and runs
unchanged, as `--json --no-templates`, on the same .xml.bz2 and with as many processes. Every run of either is a whole command
in a separate process, imports included, in turns. WikiExtractor takes a page for an article only by its <ns>, which dumps
lacked before 2010 (enwik8 is of 2006): such a dump first gets them, and <redirect /> where a page is one, for both.

mwparserfromhell cleans the same articles as relm's cleaner (no other step), in alternation; it reads no dumps.
"""

import argparse
import bz2
import importlib.util
import itertools
import json
import os
import re
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

from relm.artifact import checked_sidecar, sha256_of
from relm.corpus.decompression import read_decompressed
from relm.corpus.documents import Skipped
from relm.corpus.wikipedia.dump import OTHER_NAMESPACES, Page, Wiki
from relm.corpus.wikipedia.markup import extract_plain_text
from relm.corpus.wikipedia.names import names_of
from relm.corpus.wikipedia.pieces import PiecedDump, read_piece

PEER = "wikiextractor==3.1.0"
COMPARED_ARTICLES = 100
CORES = 16
WHOLE_DUMP = 100e9  # bytes of XML, about those of the English Wikipedia's pages-articles

_TITLE = re.compile(r"( *)<title>(.*)</title>\n?")
_ID = re.compile(r"<id>(\d+)")
PAGE_END = "</page>\n"
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
    # pip leaves the peer's modules compiled; relm's are compiled by its first run.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", between, *command], cwd=folder, capture_output=True, text=True, env=variables)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    *output, last = done.stdout.strip().splitlines()
    seconds, processor_seconds, megabytes = json.loads(last)
    return Run(seconds, processor_seconds, 0.0, megabytes), "\n".join(output).strip()


def write_dataset(dump: Path, folder: str) -> Path:
    """Write a dataset's file for a dump, and return its path."""
    source = {"sha256": sha256_of(dump), "size": dump.stat().st_size, "sources": [{"url": "https://example.org/dump"}]}
    facts = {"title": "A dump", "licence": "CC-BY-SA-4.0", "language": "en", "format": "mediawiki_xml", "ends_mid_page": True}
    path = Path(folder) / "dump.yaml"
    path.write_text(json.dumps({**facts, "held_out_one_in": 10, "files": {dump.name: source}}))
    return path


def run_relm(dump: Path, workers: int, folder: str) -> tuple[Run, dict[str, int]]:
    """Return a run of `relm extract`, and how many pages it read and documents it wrote."""
    # As `python -m relm` does, but for the time of this process alone at the end.
    code = (
        "import resource,sys;from relm.cli import main;status=main(sys.argv[1:]);"
        "own=resource.getrusage(resource.RUSAGE_SELF);print(own.ru_utime+own.ru_stime);sys.exit(status)"
    )
    with tempfile.TemporaryDirectory(dir=folder) as output:
        outputs = [Path(output) / f"{split}.jsonl" for split in ("train", "held_out")]
        options = ["--dataset", str(write_dataset(dump, folder)), "--source", str(dump), "--workers", str(workers)]
        written = ["--train", str(outputs[0]), "--held-out", str(outputs[1])]
        found, printed = run([sys.executable, "-c", code, "extract", *options, *written], folder)
        sidecars = [checked_sidecar(path) for path in outputs]
    documents = sum(sidecar["documents"] for sidecar in sidecars)
    counts = {"pages": documents + sum(sidecars[0]["skipped"].values()), "documents": documents}
    return found._replace(parent_seconds=float(printed.splitlines()[-1])), counts


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


def write_input(dump: Path, target: Path, copies: int = 1) -> float:
    """Write a dump as bz2, with <ns> where it has none, and return the MB of its XML.

    Args:
        copies: how many times it has the dump's pages, each time with other ids.
    """
    size, step = 0, id_step(dump)
    with bz2.open(target, "wt", encoding="utf-8", newline="") as output:
        for copy in range(copies):
            for page in pages_of(dump):
                text = page if not copy else renumber(page, copy * step)
                if page.endswith(PAGE_END) or copy == copies - 1:  # the end stands at the end of the last copy
                    size += len(text.encode())
                    output.write(text)
    return size / 1e6


def id_step(dump: Path) -> int:
    """Return the difference between the ids of two copies of a page: the smallest, since the ids of a whole dump are dense."""
    return 1 + max(int(found[1]) for page in pages_of(dump) if (found := _ID.search(page)))


def renumber(page: str, step: int) -> str:
    """Return a page with another id, and without the header before it."""
    begin = max(page.find("<page>"), 0)
    return _ID.sub(lambda found: f"<id>{int(found[1]) + step}", page[begin:], count=1)


def pages_of(dump: Path) -> Iterator[str]:
    """Yield what stands before the first page, each page, and the end; <ns> and <redirect /> are added where they lack."""
    rest = b""
    for block in itertools.chain(read_decompressed(dump), [b""]):
        *ended, rest = (rest + block).split(PAGE_END.encode())
        yield from (add_namespace(page.decode() + PAGE_END) for page in ended)
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


def read_articles(path: Path) -> Iterator[tuple[Page, Wiki]]:
    """Yield the articles of a dump, each with its wiki."""
    dump = PiecedDump(path, with_wiki, ends_mid_page=True)
    joined = itertools.chain.from_iterable(dump.join(read_piece(piece, with_wiki)) for piece in dump.cut())
    yield from ((page, wiki) for page, wiki in itertools.chain(joined, dump.finish()) if isinstance(page, Page))


def with_wiki(page: Page | Skipped, wiki: Wiki) -> tuple[Page | Skipped, Wiki]:
    return page, wiki


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

    texts = [page.wikitext for page, _ in itertools.islice(read_articles(dump), COMPARED_ARTICLES)]
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


def print_whole_dump(writing: float, working: float, measured: str) -> None:
    """Print what a whole dump takes: one process cuts and writes, the workers do the rest, and all share the cores.

    Args:
        writing: seconds of processor time that the one process takes for a MB of XML.
        working: those of all workers together.
        measured: what the two were measured on.
    """
    shared = max(writing, (writing + working) / CORES)
    hours = shared * WHOLE_DUMP / 1e6 / 3600
    print(
        f"{WHOLE_DUMP / 1e9:.0f} GB of XML on {CORES} cores: {hours:.2f} h of work. One process cuts the dump and writes, "
        f"{1e3 * writing:.0f} s of processor time a GB, which no number of cores shortens; the workers take "
        f"{1e3 * working:.0f}; together they need {1e3 * (writing + working) / CORES:.0f} s a GB of {CORES} cores ({measured})"
    )


def compare_copies(arguments: argparse.Namespace, once: list[Run], size: float, folder: str) -> None:
    """Print time and memory of a dump that is several times as large, and what a whole dump takes by the difference."""
    dump = Path(folder) / "copies.xml.bz2"
    larger = write_input(arguments.dump, dump, arguments.copies)
    many, counts = run_relm(dump, arguments.workers, folder)
    print_runs(f"relm, {arguments.workers} workers, {arguments.copies} copies in one file", [many], counts["pages"], larger)
    seconds = median(run.seconds for run in once)
    print(f"{larger / size:.2f} times the XML takes {many.seconds / seconds:.2f} times the wall time")
    further = larger - size
    writing = (many.parent_seconds - median(run.parent_seconds for run in once)) / further
    whole = (many.processor_seconds - median(run.processor_seconds for run in once)) / further
    print_whole_dump(writing, whole - writing, "by the difference of the two")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure extraction.")
    parser.add_argument("dump", type=Path, metavar="DUMP")
    parser.add_argument("--runs", type=int, default=3, help="runs of each command, in turns (default 3)")
    parser.add_argument("--workers", type=int, default=2, help="processes of both extractors (default 2)")
    parser.add_argument("--copies", type=int, default=1, help="then extract as many copies of the dump in one file (default 1)")
    parser.add_argument("--without-wikiextractor", action="store_true", help="install and run relm alone")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    workers = arguments.workers
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.xml.bz2"
        size = write_input(arguments.dump, dump)
        python = None if arguments.without_wikiextractor else install_peer(str(Path(folder) / "peer"))
        alone, together, peers, articles = list[Run](), list[Run](), list[Run](), 0
        for _ in range(arguments.runs):
            alone.append(run_relm(dump, 1, folder)[0])
            found, counts = run_relm(dump, workers, folder)
            together.append(found)
            if python:
                found, articles = run_peer(python, dump, workers, folder)
                peers.append(found)
        pages = counts["pages"]
        print(f"{size:.1f} MB of XML with {pages:,} pages; relm wrote {counts['documents']:,} articles")
        print_runs("relm, 1 worker", alone, pages, size)
        print_runs(f"relm, {workers} workers", together, pages, size)
        print_ratios(f"relm, 1 worker by {workers}", alone, together)
        if python:
            print_runs(f"{PEER}, {workers} processes, {articles:,} articles", peers, pages, size)
            print_ratios("WikiExtractor by relm", peers, together)
        if arguments.copies > 1:
            compare_copies(arguments, together, size, folder)
        else:
            writing = median(run.parent_seconds for run in together) / size
            whole = median(run.processor_seconds for run in together) / size
            print_whole_dump(writing, whole - writing, "the start of the command included")
        compare_cleaners(dump)


if __name__ == "__main__":
    main()
