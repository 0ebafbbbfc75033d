"""The instances of Graphcore's BERT for TensorFlow 1, create_pretraining_data.py of its examples v3.0.0, bit for bit.

The defaults of this project differ from it in what `docs/as_published.md` lists; here its defects are kept:

- "Another" document is drawn up to ten times, and may be the current one after all.
- A sequence of nearly full length gets as many masks as its remasked layout has positions for, not 15 % of its tokens.
- In the layout of the original's --remask, a token with id 0 is dropped, also one that was drawn at random: `remask`.
"""

import random
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.as_published.instances import (
    BLOCK,
    Instance,
    Rows,
    batched,
    pack_instances,
    row_width,
    split_columns,
    table_columns,
)
from relm.examples.as_published.options import (
    Original,
    read_model_vocabulary,
    require_length,
    require_options,
    require_predictions,
)
from relm.examples.as_published.pairs import SPECIAL_TOKENS, Corpus, Pair, Rule, make_pairs, mask_tokens
from relm.examples.as_published.tables import format_summary, read_documents
from relm.examples.described_tables import open_table
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.recipes.objectives import Objective

Array = npt.NDArray[Any]

ORIGINAL = Original(
    "graphcore_bert",
    {
        "packing": ("sentence_pairs",),
        "short_sequence_probability": None,
        "duplication_factor": None,
        "seed": (0,),
        "masks": ("static",),
        "probability": None,
        "max_predictions": None,
        "selection": ("exact",),
        "whole_words": (False,),
    },
)
# `input_position` of slots without a token in the remasked layout: --pad-position-value.
PAD_POSITION = 384
# Attempts to draw another document than the current one.
TRIES = 10


@dataclass(frozen=True)
class GraphcoreBertOptions:
    """The original's options, under this project's names; the defaults are the original's."""

    sequence_length: int = 128
    """--sequence-length."""
    max_predictions: int = 20
    """--mask-tokens."""
    probability: float = 0.15
    """--mlm-prob."""
    short_sequence_probability: float = 0.1
    """--short-seq-prob."""
    duplication_factor: int = 6
    """--duplication-factor."""


@dataclass(frozen=True)
class GraphcoreBertVocabulary:
    """The special tokens that the original needs."""

    size: int
    cls: int
    sep: int
    mask: int


def make_instances(
    corpus: Corpus, settings: GraphcoreBertOptions, vocabulary: GraphcoreBertVocabulary, draws: random.Random
) -> Iterator[Instance]:
    """Yield all instances, before the original shuffles them: for each duplicate the documents, in one shuffled order.

    `draws.shuffle` of a list of all of them, afterwards, gives the order of the original's files; with several output files,
    k of n has those numbered k, k + n and so on.
    """
    order = array("q", range(corpus.documents))
    draws.shuffle(order)  # an array is shuffled as a list is

    def other_document(document: int, draws: random.Random) -> int:
        for _ in range(TRIES):
            drawn = order[draws.randint(0, len(order) - 1)]
            if drawn != document:
                break
        return drawn

    rule = Rule(
        settings.sequence_length,
        settings.short_sequence_probability,
        random_second=True,
        second_joins_first=False,
        other_document=other_document,
    )
    for _ in range(settings.duplication_factor):
        for document in order:
            for pair in make_pairs(corpus, document, rule, draws):
                yield _make_instance(corpus, pair, settings, vocabulary, draws)


def _make_instance(
    corpus: Corpus, pair: Pair, settings: GraphcoreBertOptions, vocabulary: GraphcoreBertVocabulary, draws: random.Random
) -> Instance:
    first, second = corpus.between(pair.a_start, pair.a_stop), corpus.between(pair.b_start, pair.b_stop)
    tokens = [vocabulary.cls, *first, vocabulary.sep, *second, vocabulary.sep]
    special = (vocabulary.cls, vocabulary.sep)
    candidates = [[place] for place, token in enumerate(tokens) if token not in special]
    count = count_masks(len(tokens), settings)
    positions, labels = mask_tokens(tokens, candidates, count, vocabulary.mask, vocabulary.size, draws)
    return Instance(tokens, len(first) + 2, pair.is_random, positions, labels)


def count_masks(length: int, settings: GraphcoreBertOptions) -> int:
    """Return how many of `length` tokens are masked: the rest must fit after the slots reserved for masked ones.

    >>> [count_masks(length, GraphcoreBertOptions(128, 20)) for length in (10, 100, 118, 123, 128)]
    [2, 15, 18, 18, 20]
    """
    wanted = min(settings.max_predictions, max(1, round(length * settings.probability)))
    return max(wanted, length - settings.sequence_length + settings.max_predictions)


def remask(plain: Mapping[str, Array], predictions: int, pad_position: int = PAD_POSITION) -> dict[str, Array]:
    """Return the instances in the layout of the original's --remask: masked tokens in the first `predictions` slots.

    A token with id 0 is taken for padding and dropped, with its label if it was masked (create_pretraining_data.py:113).
    `plain` are the columns of `split_columns`, padded with id 0; slots without a token have the position `pad_position`
    (--pad-position-value).

    The result has the original's fields: ``input_ids``, ``input_position``, ``segment_ids`` (rows, L); ``mask_padding_index``,
    ``seq_padding_index``, ``next_sentence_labels`` (rows,); ``masked_lm_positions``, ``masked_labels``, ``masked_lm_ids`` and
    ``masked_lm_weights`` (rows, predictions). The original writes only the first ``masked_lm_weights.sum()`` of
    ``masked_lm_positions``; here the rest is 0.
    """
    input_ids, counts = plain["input_ids"], plain["masked_count"]
    rows, width = input_ids.shape
    used = np.arange(predictions) < counts[:, None]
    which, nth = np.nonzero(used)
    labels = np.zeros((rows, width), dtype=np.int32)
    is_hidden = np.zeros((rows, width), dtype=np.bool_)
    is_hidden[which, plain["masked_positions"][which, nth]] = True
    labels[which, plain["masked_positions"][which, nth]] = plain["masked_labels"][which, nth]
    present = input_ids != 0
    hidden_rank = np.cumsum(present & is_hidden, axis=1)
    other_rank = predictions + np.cumsum(present & ~is_hidden, axis=1)
    row, position = np.nonzero(present)
    place = np.where(is_hidden, hidden_rank, other_rank)[row, position] - 1
    ids = np.zeros((rows, width), dtype=np.int32)
    positions = np.full((rows, width), pad_position, dtype=np.int32)
    segments = np.zeros((rows, width), dtype=np.int32)
    formatted = np.zeros((rows, width), dtype=np.int32)
    ids[row, place] = input_ids[row, position]
    positions[row, place] = position
    segments[row, place] = position >= plain["second_start"][row]
    formatted[row, place] = labels[row, position]
    return {
        "input_ids": ids,
        "input_position": positions,
        "segment_ids": segments,
        "mask_padding_index": hidden_rank[:, -1],
        "seq_padding_index": other_rank[:, -1],
        "masked_lm_positions": np.where(used, plain["masked_positions"], 0),
        "masked_labels": formatted[:, :predictions],
        "masked_lm_ids": np.where(used, plain["masked_labels"], 0),
        "masked_lm_weights": used.astype(np.float32),
        "next_sentence_labels": plain["next_sentence_label"],
    }


def read_vocabulary(loaded: LoadedTokenizer) -> GraphcoreBertVocabulary:
    """Return the original's special tokens, by their names."""
    tokens = read_model_vocabulary(loaded, ORIGINAL.name)
    special = ("[CLS]", "[SEP]", "[MASK]")
    if lacking := [token for token in special if token not in tokens]:
        raise RelmError(f"{loaded.path}: has no token {lacking[0]}; {ORIGINAL.name} knows BERT's vocabularies only: use one")
    return GraphcoreBertVocabulary(len(tokens), *map(tokens.index, special))


def pregenerate_graphcore_bert(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Write all instances as a table, in the order of the original's file; a line of text is a sentence.

    The original holds all instances in memory to shuffle them; here they are in an unnamed temporary file. Arguments are those
    of `relm.examples.builders.pregenerate`.
    """
    chosen = require_options(ORIGINAL, objective)
    settings = _read_options(objective)
    width, places = settings.sequence_length, settings.max_predictions
    started = perf_counter()
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        read_documents(documents, tokenizer, objective.masked.sentences, language, workers, output.parent) as (
            corpus,
            source,
            loaded,
        ),
        tempfile.TemporaryFile(dir=output.parent) as spool,
    ):
        draws = random.Random(chosen.seed)
        count = 0
        for block in batched(make_instances(corpus, settings, read_vocabulary(loaded), draws)):
            _keep(pack_instances(block, width, places, pairs=True), spool, output)
            count += len(block)
        with open_table(output, objective, loaded, source, table_columns(width, places, loaded.vocabulary_size)) as table:
            for rows in _shuffle(spool, count, row_width(width, places), draws):
                table.append(split_columns(rows, width, places), rows[:, 0])
    return format_summary(ORIGINAL.name, table, source, started)


def _read_options(objective: Objective) -> GraphcoreBertOptions:
    masked, length = objective.masked, require_length(ORIGINAL.name, objective)
    predictions = require_predictions(ORIGINAL.name, masked)
    if predictions > length - SPECIAL_TOKENS:
        raise RelmError(
            f"masked.max_predictions: {predictions}, but in a sequence of {length} at most {length - SPECIAL_TOKENS} can be "
            "masked; lower it"
        )
    return GraphcoreBertOptions(
        length, predictions, masked.probability, masked.short_sequence_probability, masked.duplication_factor
    )


def _keep(rows: Rows, spool: IO[bytes], output: Path) -> None:
    try:
        rows.tofile(spool)
    except OSError as error:
        raise RelmError(
            f"{output}: its instances cannot be kept in a temporary file in {output.parent}: {error.strerror or error}; "
            "nothing was changed"
        ) from None


def _shuffle(spool: IO[bytes], count: int, width: int, draws: random.Random) -> Iterator[Rows]:
    """Yield the rows of a file in blocks, in the order that shuffling a list of them would give."""
    order = array("q", range(count))
    draws.shuffle(order)
    if not count:
        return
    rows = np.memmap(spool, dtype=np.int32, mode="r", shape=(count, width))
    for start in range(0, count, BLOCK):
        yield rows[np.frombuffer(order, dtype=np.int64)[start : start + BLOCK]]
