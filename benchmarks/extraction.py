"""Measure how fast a dump becomes documents, beside mwparserfromhell: `python benchmarks/extraction.py DUMP`.

Each measurement of the whole step runs in a fresh process, so its peak memory is its own. The comparison is of the cleaners
alone, on the same articles in turns, so that both see the same machine.
"""

import argparse
import importlib.util
import itertools
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from relm.artifact import checked_sidecar
from relm.corpus.extract import extract
from relm.corpus.wikipedia import Dump, Page, read_decompressed
from relm.corpus.wikitext_markup import extract_plain_text
from relm.recipes.datasets import Dataset

COMPARED_ARTICLES = 100


def measure(dump: Path, workers: int) -> tuple[float, int, int, int]:
    """Seconds, pages, and peak memory in MB of the parent and of the largest worker."""
    settings = {"title": "", "licence": "", "language": "en", "format": "mediawiki_xml", "ends_mid_page": True}
    remote = {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org"}]}
    dataset = Dataset.model_validate(settings | {"held_out_one_in": 10, "files": {"dump": remote}})
    with tempfile.TemporaryDirectory() as folder:
        outputs = {split: Path(folder) / f"{split}.jsonl" for split in ("train", "held_out")}
        started = time.perf_counter()
        extract(dataset, dump, outputs, None, workers)
        seconds = time.perf_counter() - started
        sidecars = [checked_sidecar(path) for path in outputs.values()]
    pages = sum(sidecar["documents"] for sidecar in sidecars) + sum(sidecars[0]["skipped"].values())
    peaks = [resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return seconds, pages, *peaks


def seconds_of(clean: Callable[[str], object], text: str) -> float:
    started = time.perf_counter()
    clean(text)
    return time.perf_counter() - started


def compare(dump: Path) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure extraction.")
    parser.add_argument("dump", type=Path, metavar="DUMP")
    dump = parser.parse_args().dump
    size = sum(len(block) for block in read_decompressed(dump)) / 1e6
    for workers in (1, 2):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            seconds, pages, parent, worker = fresh.submit(measure, dump, workers).result()
        print(
            f"{workers} workers: {seconds:.1f} s, {pages / seconds:,.0f} pages/s, {size / seconds:.1f} MB/s of XML; "
            f"peak memory {parent} MB" + (f" and {worker} MB a worker" if workers > 1 else "")
        )
    compare(dump)


if __name__ == "__main__":
    main()
