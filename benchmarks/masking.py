"""Measure how fast sentences become masked examples, compared with two originals.

    python benchmarks/masking.py [--graphcore FOLDER] [--tpu-pretrain FOLDER] [--runs 5] [--documents 8000]

FOLDER is a checkout of github.com/graphcore/examples at v3.0.0 (or its nlp/bert/tensorflow1/bert_data, where
create_pretraining_data.py lies), and of github.com/allenai/tpu_pretrain (or its pytorch_transformers_lm_finetuning, where
pregenerate_training_data.py lies). A peer whose folder is not given is left out.

All get the same sentences, already tokenised: made-up words, with sizes as in English Wikipedia (25 tokens a sentence, 20
sentences a document, a fifth of the tokens continue a word). The originals' own functions make the instances of every document,
masks included; nothing is written. Ours are the rows of a table with static masks, all columns of it. Each measurement runs in
a fresh process bound to one core, in turns; processor time counts, so that other programs disturb little. What the originals
import and the functions measured never call (tensorflow, six, pytorch_transformers, natsort) is replaced by empty modules where
it is not installed; nothing has to be put on a path.
"""

import argparse
import importlib.util
import itertools
import os
import random
import resource
import statistics
import sys
import time
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

from relm.examples.masked import blocks_of, make_columns
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, SpecialIds
from relm.examples.tokenized import TokenizedDocuments
from relm.recipes.objectives import Objective

VOCABULARY = 30_522
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONTINUES = 25_000  # ids from here on continue a word
SCRIPTS = {
    "graphcore": ("nlp/bert/tensorflow1/bert_data", "create_pretraining_data"),
    "tpu_pretrain": ("pytorch_transformers_lm_finetuning", "pregenerate_training_data"),
}
# What they import beyond numpy and tqdm, and the names they take from it.
IMPORTED = {
    "tensorflow": (),
    "six": (),
    "natsort": ("natsorted",),
    "pytorch_transformers.tokenization_auto": ("AutoTokenizer",),
    "pytorch_transformers": (),
}
# Sequence length and masks, as both originals' recipes have them.
SETTINGS = ((128, 20), (384, 58))
# Ours are made so often, that there is something to measure.
REPETITIONS = 8


class Case(NamedTuple):
    """The settings of a measurement."""

    who: str
    folder: Path | None
    length: int
    predictions: int
    whole_words: bool
    documents: int


def made_up_text(documents: int) -> TokenizedDocuments:
    """Return the same documents for all contenders."""
    generator = np.random.default_rng(0)
    sentences = generator.geometric(1 / 20, documents)
    sizes = np.maximum(1, generator.lognormal(3.05, 0.6, sentences.sum())).astype(np.int64)
    tokens = generator.integers(len(SPECIAL), VOCABULARY, sizes.sum()).astype(np.uint16)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    tokens[starts[:-1]] = np.minimum(tokens[starts[:-1]], CONTINUES - 1)
    special = SpecialIds(**dict(zip(("pad", "unk", "cls", "sep", "mask"), range(5), strict=True)))
    loaded = LoadedTokenizer(Tokenizer(models.WordPiece()), VOCABULARY, special, "0" * 64, "wordpiece")
    document_starts = np.concatenate([[0], np.cumsum(sentences)])
    return TokenizedDocuments(tokens, tokens < CONTINUES, starts, document_starts, 0, 0, "0" * 64, loaded)


def sentences_of(text: TokenizedDocuments) -> list[list[list[str]]]:
    """Return the documents of sentences of tokens, as the originals hold them."""
    names = np.array(token_names(), dtype=object)
    pieces = [piece.tolist() for piece in np.split(names[text.tokens], text.sentence_starts[1:-1])]
    bounds = text.document_starts.tolist()
    return [pieces[start:stop] for start, stop in itertools.pairwise(bounds)]


def token_names() -> list[str]:
    """The tokens of all ids."""
    words = (f"##{number}" if number >= CONTINUES else f"w{number}" for number in range(len(SPECIAL), VOCABULARY))
    return [*SPECIAL, *words]


def measured(case: Case) -> tuple[float, float]:
    """Return the instances in a second of processor time, and the peak memory of the process in MB."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {random.SystemRandom().choice(sorted(os.sched_getaffinity(0)))})
    text = made_up_text(case.documents)
    work = {"relm": ours, "graphcore": graphcore, "tpu_pretrain": tpu_pretrain}[case.who](case, text)
    started = time.process_time()
    instances = sum(work)
    seconds = time.process_time() - started
    return instances / seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ours(case: Case, text: TokenizedDocuments) -> Iterator[int]:
    """Yield the count of instances of each block."""
    masked = {
        "packing": "sentence_pairs",
        "short_sequence_probability": 0.1,
        "duplication_factor": REPETITIONS,
        "masks": "static",
        "max_predictions": case.predictions,
        "whole_words": case.whole_words,
    }
    objective = Objective.model_validate({"objective": "masked", "sequence_length": case.length, "masked": masked})
    return (len(make_columns(text, objective, block)["length"]) for block in blocks_of(text, objective))


def graphcore(case: Case, text: TokenizedDocuments) -> Iterator[int]:
    documents, names, draws = sentences_of(text), token_names(), random.Random(1984)
    make = original(case).create_instances_from_document
    settings = (case.length, 0.1, 0.15, case.predictions, names, draws)
    return (len(make(documents, number, *settings)) for number in range(len(documents)))


def tpu_pretrain(case: Case, text: TokenizedDocuments) -> Iterator[int]:
    module = original(case)
    random.seed(42)
    database = module.DocumentDatabase()
    for document in sentences_of(text):
        database.add_document(document)
    tokenizer = types.SimpleNamespace(cls_token="[CLS]", sep_token="[SEP]", vocab_list=token_names())
    settings = (case.length, 0.1, 0.15, case.predictions, case.whole_words, tokenizer, True)
    make = module.create_instances_from_document
    return (len(make(database, number, *settings)) for number in range(len(database)))


def original(case: Case) -> Any:
    """Return an original's script as a module."""
    assert case.folder is not None
    inside, name = SCRIPTS[case.who]
    folder = case.folder / inside if (case.folder / inside).is_dir() else case.folder
    for name_of_import, attributes in IMPORTED.items():
        if importlib.util.find_spec(name_of_import.partition(".")[0]) is None:
            sys.modules[name_of_import] = empty_module(name_of_import, attributes)
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def empty_module(name: str, attributes: Sequence[str]) -> types.ModuleType:
    module = types.ModuleType(name)
    for attribute in attributes:
        setattr(module, attribute, None)
    return module


def compare(case: Case, runs: int, peers: dict[str, Path | None]) -> None:
    """Print relm's rate and that of each given peer, measured in alternation."""
    cases = [case] + [case._replace(who=who, folder=folder) for who, folder in peers.items() if folder is not None]
    found: dict[str, list[tuple[float, float]]] = {one.who: [] for one in cases}
    for _ in range(runs):
        for one in cases:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                found[one.who].append(fresh.submit(measured, one).result())
    words = ", whole words" if case.whole_words else ""
    print(f"{case.length} tokens, {case.predictions} masks{words}:")
    for who, results in found.items():
        rate, memory = (statistics.median(column) for column in zip(*results, strict=True))
        ratios = sorted(mine[0] / theirs[0] for mine, theirs in zip(found["relm"], results, strict=True))
        ratio = f", relm is {statistics.median(ratios):.1f} times as fast ({ratios[0]:.1f} to {ratios[-1]:.1f})"
        print(f"  {who}: {rate:,.0f} instances/s, peak memory {memory:,.0f} MB" + (ratio if who != "relm" else ""), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure packing and masking.")
    parser.add_argument("--graphcore", type=Path, metavar="FOLDER")
    parser.add_argument("--tpu-pretrain", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--documents", type=int, default=8000)
    given = parser.parse_args()
    for length, predictions in SETTINGS:
        for whole_words in (False, True):
            # Graphcore's script knows no whole words.
            peers = {"graphcore": None if whole_words else given.graphcore, "tpu_pretrain": given.tpu_pretrain}
            compare(Case("relm", None, length, predictions, whole_words, given.documents), given.runs, peers)


if __name__ == "__main__":
    main()
