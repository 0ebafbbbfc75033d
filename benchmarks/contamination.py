"""Documents that share 13 words with a test: relm's sets beside the janitor of lm_eval, in one process each.

    .venv/harness/bin/python benchmarks/contamination.py --text wiki.train.raw --test lambada_test.jsonl

The text's lines, without punctuation because the two treat it differently, are the documents; some passages of the test are
among them. Both see the same strings, and must name the same documents. lm_eval's compiled janitor is no part of its package.
"""

import argparse
import contextlib
import io
import itertools
import json
import re
import time
from pathlib import Path

from relm.examples.cut_passages import WordSequences, find_every, find_words, list_sequences


def read_texts(text: Path, test: Path, documents: int, planted: int) -> tuple[list[str], list[str]]:
    """Return documents and passages, in words with single spaces."""
    passages = [plain(json.loads(line)["text"]) for line in test.read_text(encoding="utf-8").splitlines()]
    lines = [found for line in text.read_text(encoding="utf-8").splitlines() if (found := plain(line))][:documents]
    return [*lines, *(f"before {passage} after" for passage in passages[:planted])], passages


def plain(text: str) -> str:
    """Return the ASCII letters and digits of a text, with one space for everything else."""
    return re.sub("[^A-Za-z0-9]+", " ", text).strip()


def find_by_sets(documents: list[str], passages: list[str]) -> list[int]:
    """Return the indices of the documents that share 13 words with a passage."""
    sequences = (list_sequences(passage) for passage in passages if len(passage.split()) >= 13)
    sought = WordSequences.of(itertools.chain.from_iterable(sequences))
    words = (find_words(document).words for document in documents)
    return [index for index, found in enumerate(words) if sought.may_be_in(found) and find_every(documents[index], sought)]


def find_by_janitor(documents: list[str], passages: list[str]) -> list[int]:
    """Return the same by lm_eval: the documents that its janitor does not leave whole."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from lm_eval.decontamination.janitor import Janitor

    janitor = Janitor(ngram_n=13, minimum_slice_length=0)
    for passage in passages:
        janitor.register_contaminant_python(passage)
    return [index for index, document in enumerate(documents) if janitor.clean_python(document) != [document]]


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--text", type=Path, required=True)
    reader.add_argument("--test", type=Path, required=True, help="LAMBADA's file")
    reader.add_argument("--documents", type=int, default=1_000_000)
    reader.add_argument("--planted", type=int, default=100)
    a = reader.parse_args()
    documents, passages = read_texts(a.text, a.test, a.documents, a.planted)
    find_by_janitor(["a"], ["b"])  # imports it
    size, found, seconds = sum(map(len, documents)) / 1e6, {}, {}
    for name, find in {"relm": find_by_sets, "lm_eval": find_by_janitor}.items():
        started = time.perf_counter()
        found[name] = find(documents, passages)
        seconds[name] = time.perf_counter() - started
        print(f"{name}: {len(found[name]):,} of {len(documents):,} documents, {size / seconds[name]:.1f} MB/s")
    same = "the same documents" if found["relm"] == found["lm_eval"] else "other documents"
    print(f"{same}; {seconds['lm_eval'] / seconds['relm']:.1f} times as fast")


if __name__ == "__main__":
    main()
