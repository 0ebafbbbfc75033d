"""The instances of allenai/tpu_pretrain, pregenerate_training_data.py at 10e8f26 (2019), bit for bit.

Its defects are kept; `docs/as_published.md` describes their effect on real text, and the default's behaviour:

- a: a masked token becomes the token with the text ``[MASK]``, which RoBERTa does not have: training reads ``<unk>``.
- b: whole words are those of BERT's ``##``; for byte-level BPE the option changes nothing but where the text has ``##``.
- c: with next-sentence prediction, a second segment that does follow is appended to the first: every such second one is empty.
- d: without it, a chunk of one sentence still gets random sentences of another document appended.
- f: each sentence is encoded by itself, with a space before it if the tokenizer is byte-level BPE.
- h: one position always stays empty without next-sentence prediction.

The original takes no seed; relm seeds Python's generator before its first draw. `as_published.corrected` leaves out a, b or c
and keeps all else, so that what one of them costs can be measured.
"""

import itertools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.as_published.instances import Instance, batched, pack_instances, split_columns, table_columns
from relm.examples.as_published.options import (
    Original,
    read_model_vocabulary,
    require_length,
    require_options,
    require_predictions,
)
from relm.examples.as_published.pairs import Corpus, Pair, Rule, make_pairs, mask_tokens
from relm.examples.as_published.tables import format_summary, read_documents
from relm.examples.described_tables import open_table
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.recipes.objectives import Objective

ORIGINAL = Original(
    "tpu_pretrain",
    {
        "packing": ("sentence_pairs", "document_sentences"),
        "short_sequence_probability": None,
        "duplication_factor": None,
        "seed": (0,),
        "masks": ("static",),
        "probability": None,
        "max_predictions": None,
        "selection": ("exact",),
        "whole_words": (True, False),
    },
)
# The token "[MASK]" of instances, before a tokenizer gives its id: RoBERTa's has none.
MASK = -1
MASK_TOKEN = "[MASK]"


@dataclass(frozen=True)
class TpuPretrainOptions:
    """The original's options, under this project's names."""

    sequence_length: int
    """--max_seq_len."""
    max_predictions: int
    """--max_predictions_per_seq."""
    probability: float = 0.15
    """--masked_lm_prob."""
    short_sequence_probability: float = 0.1
    """--short_seq_prob."""
    whole_words: bool = False
    """--do_whole_word_mask."""
    next_sentences: bool = False
    """--do_next_sent_prediction."""
    joins_second: bool = True
    """Defect c."""
    words_by_marks: bool = True
    """Defect b: a word's tokens but the first have the mark ``##``; False: the tokenizer knows where words begin."""


@dataclass(frozen=True)
class TpuPretrainVocabulary:
    """The tokens and special tokens that the original needs."""

    tokens: Sequence[str]
    """The tokens by id."""
    cls: int
    sep: int
    mask: int = MASK
    """The id that replaces a masked token."""

    def continues(self) -> list[bool]:
        """Return whether each token begins with ``##``, by id."""
        return [token.startswith("##") for token in self.tokens]


def make_instances(
    corpus: Corpus, settings: TpuPretrainOptions, vocabulary: TpuPretrainVocabulary, draws: random.Random
) -> Iterator[Instance]:
    """Yield the instances of one epoch in the order of the original's file; `draws` is shared by all epochs and files."""
    if corpus.documents <= 1:
        raise RelmError(
            f"tpu_pretrain draws sentences of other documents, but there is {corpus.documents or 'none'}; put more documents "
            "into each shard"
        )
    starts = corpus.document_starts
    rule = Rule(
        settings.sequence_length,
        settings.short_sequence_probability,
        settings.next_sentences,
        second_joins_first=settings.joins_second,
        other_document=lambda document, draws: _draw_other_document(starts, document, draws),
    )
    continues = vocabulary.continues()
    for document in range(corpus.documents):
        for pair in make_pairs(corpus, document, rule, draws):
            yield _make_instance(corpus, pair, settings, vocabulary, continues, draws)


def _draw_other_document(starts: npt.NDArray[np.int64], document: int, draws: random.Random) -> int:
    """Draw a document other than this one, each with a probability in proportion to its sentences."""
    first, stop, sentences = int(starts[document]), int(starts[document + 1]), int(starts[-1])
    drawn = draws.randrange(stop, first + sentences) % sentences
    return bisect_right(starts, drawn) - 1


def _make_instance(
    corpus: Corpus,
    pair: Pair,
    settings: TpuPretrainOptions,
    vocabulary: TpuPretrainVocabulary,
    continues: list[bool],
    draws: random.Random,
) -> Instance:
    first, second = corpus.between(pair.a_start, pair.a_stop), corpus.between(pair.b_start, pair.b_stop)
    between = [vocabulary.sep] if settings.next_sentences else []
    tokens = [vocabulary.cls, *first, *between, *second, vocabulary.sep]
    if settings.words_by_marks:
        inside = [[continues[token] for token in segment] for segment in (first, second)]
    else:
        inside = [_inside_words(corpus, *span) for span in ((pair.a_start, pair.a_stop), (pair.b_start, pair.b_stop))]
    joins = [False, *inside[0], *[False] * len(between), *inside[1], False]
    candidates: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (vocabulary.cls, vocabulary.sep):
            continue
        if settings.whole_words and candidates and joins[place]:
            candidates[-1].append(place)
        else:
            candidates.append([place])
    count = min(settings.max_predictions, max(1, round(len(tokens) * settings.probability)))
    positions, labels = mask_tokens(tokens, candidates, count, vocabulary.mask, len(vocabulary.tokens), draws)
    second_start = len(first) + 2 if settings.next_sentences else len(tokens)
    return Instance(tokens, second_start, pair.is_random, positions, labels)


def _inside_words(corpus: Corpus, start: int, stop: int) -> list[bool]:
    """Return for each token of a span whether it continues the word of the token before it in the span."""
    assert corpus.word_starts is not None, "documents are read with them"
    inside: list[bool] = (~corpus.word_starts[start:stop]).tolist()
    return [False, *inside[1:]] if inside else []


def read_vocabulary(loaded: LoadedTokenizer, corrected: bool = False) -> TpuPretrainVocabulary:
    """Return the vocabulary that training reads: the mask is ``[MASK]``, or the unknown token where there is none.

    Without defect a (`corrected`) it is the tokenizer's own mask.
    """
    tokens = read_model_vocabulary(loaded, ORIGINAL.name)
    mask = tokens.index(MASK_TOKEN) if MASK_TOKEN in tokens else loaded.required("mask" if corrected else "unk")
    return TpuPretrainVocabulary(tokens, loaded.required("cls"), loaded.required("sep"), mask)


def pregenerate_tpu_pretrain(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Write the instances of all epochs (`masked.duplication_factor`) in order as a table.

    The documents are one input file of the original, in which a line of text is a sentence; other arguments are those of
    `relm.examples.builders.pregenerate`.
    """
    chosen = require_options(ORIGINAL, objective)
    masked = objective.masked
    settings = TpuPretrainOptions(
        require_length(ORIGINAL.name, objective),
        require_predictions(ORIGINAL.name, masked),
        masked.probability,
        masked.short_sequence_probability,
        masked.whole_words,
        masked.packing == "sentence_pairs",
        joins_second="empty_second_segments" not in chosen.corrected,
        words_by_marks="partly_masked_words" not in chosen.corrected,
    )
    started = perf_counter()
    with read_documents(documents, tokenizer, objective.masked.sentences, language, workers, output.parent) as (
        corpus,
        source,
        loaded,
    ):
        vocabulary = read_vocabulary(loaded, "unk_for_mask" in chosen.corrected)
        width, places = settings.sequence_length, settings.max_predictions
        columns = table_columns(width, places, loaded.vocabulary_size)
        draws = random.Random(chosen.seed)
        epochs = masked.duplication_factor if corpus.documents else 0
        with open_table(output, objective, loaded, source, columns) as table:
            made = itertools.chain.from_iterable(make_instances(corpus, settings, vocabulary, draws) for _ in range(epochs))
            for block in batched(made):
                rows = pack_instances(block, width, places, settings.next_sentences)
                table.append(split_columns(rows, width, places), rows[:, 0])
    return format_summary(ORIGINAL.name, table, source, started)
