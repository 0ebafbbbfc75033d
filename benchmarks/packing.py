"""Measure how fast documents become rows by best fit, beside nanochat's loader.

    python benchmarks/packing.py [--nanochat FOLDER] [--documents 30000] [--length 2048] [--runs 5]

FOLDER is a clone of github.com/karpathy/nanochat, whose nanochat/dataloader.py runs unchanged, on one process and the CPU; only
its list of files and its processes are replaced. It needs torch and pyarrow. Without FOLDER relm is measured alone.

Both get the same documents, already tokenised: made-up tokens, with lengths as in web text (median 400, mean 700). nanochat's
rows come in batches of 32, as inputs and labels; relm's are written to a table, and compared with nanochat's. Each measurement
runs in a fresh process bound to one core, in turns; processor time counts, so that other programs disturb little. The peak
memory is that of the process, with the documents and what it imports, of which torch is the most.
"""

import argparse
import hashlib
import importlib.util
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from relm.examples.best_fit import BestFitPacker
from relm.examples.columns import Column
from relm.examples.table import ExampleTable, table_writer

VOCABULARY, BOS = 50_257, 50_256
BATCH = 32
ROW_GROUP = 1024


class Case(NamedTuple):
    """The settings of a measurement."""

    folder: Path | None
    """The clone of nanochat; None: relm is measured."""
    documents: int
    length: int


class Measurement(NamedTuple):
    """The figures of one process."""

    rows: int
    seconds: float
    """Time of the processor."""
    megabytes: float
    hashes: list[str]
    """Hash of the rows of each whole batch, in order."""


def made_up_documents(count: int) -> list[np.ndarray]:
    """Return the tokens of each document."""
    draws = np.random.default_rng(0)
    sizes = draws.lognormal(6.0, 1.05, count).astype(np.int64) + 1
    tokens = draws.integers(0, BOS, sizes.sum()).astype(np.uint16)
    return np.split(tokens, np.cumsum(sizes)[:-1])


def measured(case: Case) -> Measurement:
    """Pack all documents once."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {random.SystemRandom().choice(sorted(os.sched_getaffinity(0)))})
    with tempfile.TemporaryDirectory() as folder:
        return (ours if case.folder is None else nanochats)(case, Path(folder))


def ours(case: Case, folder: Path) -> Measurement:
    documents, path = made_up_documents(case.documents), folder / "rows.arrow"
    started = time.process_time()
    packer = BestFitPacker(case.length + 1, BOS)
    with table_writer(path, [Column("tokens", "uint16", case.length + 1, VOCABULARY)], {}) as table:
        for rows in packer.rows(iter(documents)):
            table.append({"tokens": rows})
    seconds = time.process_time() - started
    written = ExampleTable(path)
    batches = (written.rows("tokens", np.arange(first, first + BATCH)) for first in range(0, len(written) - BATCH + 1, BATCH))
    return Measurement(table.rows, seconds, peak_memory(), [hash_of(batch) for batch in batches])


def nanochats(case: Case, folder: Path) -> Measurement:
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert case.folder is not None
    # The text of a document is its number, for which the tokenizer has the tokens at hand.
    lists = [[BOS, *tokens.tolist()] for tokens in made_up_documents(case.documents)]
    path = folder / "documents.parquet"
    pq.write_table(pa.table({"text": list(map(str, range(len(lists))))}), path, row_group_size=ROW_GROUP)
    tokenizer = types.SimpleNamespace(
        get_bos_token_id=lambda: BOS, encode=lambda texts, prepend, num_threads: [lists[int(text)] for text in texts]
    )
    loader = loader_of(case.folder, path)
    seconds, hashes = 0.0, []
    batches = loader.tokenizing_distributed_data_loader_with_state_bos_bestfit(
        tokenizer, B=BATCH, T=case.length, split="train", device="cpu"
    )
    while True:
        started = time.process_time()
        inputs, targets, state = next(batches)
        if state["epoch"] > 1:  # it has begun with the documents again
            return Measurement(len(hashes) * BATCH, seconds, peak_memory(), hashes)
        seconds += time.process_time() - started
        hashes.append(hash_of(np.concatenate([inputs.numpy(), targets[:, -1:].numpy()], axis=1)))


def loader_of(folder: Path, documents: Path) -> Any:
    """Import nanochat's loader, which will read one file."""
    common, dataset = types.ModuleType("nanochat.common"), types.ModuleType("nanochat.dataset")
    common.__dict__["get_dist_info"] = lambda: (False, 0, 0, 1)
    dataset.__dict__["list_parquet_files"] = lambda warn_on_legacy: [str(documents)] * 2  # the last one is for validation
    sys.modules.update({"nanochat": types.ModuleType("nanochat"), "nanochat.common": common, "nanochat.dataset": dataset})
    spec = importlib.util.spec_from_file_location("nanochat.dataloader", folder / "nanochat" / "dataloader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hash_of(rows: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows, dtype="<i4").data).hexdigest()


def peak_memory() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alternated(cases: dict[str, Case], runs: int) -> Iterator[dict[str, Measurement]]:
    """Yield the measurements of each round."""
    for _ in range(runs):
        found = {}
        for who, case in cases.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                found[who] = fresh.submit(measured, case).result()
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure best-fit packing.")
    parser.add_argument("--nanochat", type=Path, metavar="FOLDER")
    parser.add_argument("--documents", type=int, default=30_000)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    cases = {"relm": Case(None, given.documents, given.length)}
    if given.nanochat is not None:
        cases["nanochat"] = Case(given.nanochat, given.documents, given.length)
    rounds = list(alternated(cases, given.runs))
    for who in cases:
        rates = [found[who].rows / found[who].seconds for found in rounds]
        ratios = sorted(found["relm"].rows / found["relm"].seconds / rate for found, rate in zip(rounds, rates, strict=True))
        ratio = f", relm is {statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        seconds, memory = (statistics.median(getattr(found[who], key) for found in rounds) for key in ("seconds", "megabytes"))
        print(
            f"{who}: {rounds[0][who].rows:,} rows of {given.length + 1:,} tokens, {statistics.median(rates):,.0f} rows/s "
            f"({min(rates):,.0f} to {max(rates):,.0f}), {seconds:.2f} s, peak memory {memory:,.0f} MB"
            + (ratio if who != "relm" else "")
        )
    if given.nanochat is not None:
        mine, theirs = rounds[0]["relm"].hashes, rounds[0]["nanochat"].hashes
        if mine[: len(theirs)] != theirs:
            raise SystemExit("the rows differ")
        print(f"the rows of nanochat's {len(theirs)} batches are equal")


if __name__ == "__main__":
    main()
