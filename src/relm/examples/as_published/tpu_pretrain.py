"""allenai/tpu_pretrain, pregenerate_training_data.py at 10e8f26 (2019): its instances, bit for bit.

Its defects are kept; `docs/as_published.md` says what they do to real text, and what the default does instead:

- a: a hidden token becomes the token spelt ``[MASK]``, which RoBERTa does not have: training reads ``<unk>``.
- b: whole words are those of BERT's ``##``; for byte-level BPE the option changes nothing but where the text has ``##``.
- c: with next-sentence prediction, a second segment that does follow is put into the first: every such pair has an empty one.
- d: without it, a chunk of one sentence still gets random sentences of another document glued on.
- f: each sentence is encoded on its own, with a space put before it by the tokenizer, if that is one of bytes.
- h: one place always stays empty without next-sentence prediction.

The original takes no seed; ours is given to Python's generator before its first draw.
"""

import itertools
import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.as_published.instances import Instance, blocks_of, columns_of, packed, table_columns
from relm.examples.as_published.options import (
    Original,
    model_vocabulary,
    require_length,
    require_options,
    required_predictions,
)
from relm.examples.as_published.pairs import Corpus, Pair, Rule, hidden, pairs_of
from relm.examples.as_published.tables import opened_table, read_documents, sentence
from relm.examples.tokenizers import LoadedTokenizer
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
# The token "[MASK]" of instances, before a tokenizer says which id it has: RoBERTa's has none.
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


@dataclass(frozen=True)
class TpuPretrainVocabulary:
    """The tokens and special tokens that the original needs."""

    tokens: Sequence[str]
    """By id."""
    cls: int
    sep: int
    mask: int = MASK
    """What a hidden token becomes."""

    def continues(self) -> list[bool]:
        """Whether each token begins with ``##``."""
        return [token.startswith("##") for token in self.tokens]


def instances(
    corpus: Corpus, settings: TpuPretrainOptions, vocabulary: TpuPretrainVocabulary, draws: random.Random
) -> Iterator[Instance]:
    """Yield the instances of one epoch, in the order of the original's file; `draws` goes on from epoch to epoch, and file to file.

    Raises:
        RelmError: there is one document or none, so that no other can be drawn.
    """
    if corpus.documents <= 1:
        raise RelmError(
            f"tpu_pretrain draws sentences of other documents, and there is {corpus.documents or 'none'}; put more documents "
            "into each shard"
        )
    starts = corpus.document_starts
    rule = Rule(
        settings.sequence_length,
        settings.short_sequence_probability,
        settings.next_sentences,
        second_joins_first=True,
        other_document=lambda document, draws: _other_document(starts, document, draws),
    )
    continues = vocabulary.continues()
    for document in range(corpus.documents):
        for pair in pairs_of(corpus, document, rule, draws):
            yield _instance(corpus, pair, settings, vocabulary, continues, draws)


def _other_document(starts: npt.NDArray[np.int64], document: int, draws: random.Random) -> int:
    """Return a document other than this one, each with a chance in proportion to its sentences."""
    first, stop, sentences = int(starts[document]), int(starts[document + 1]), int(starts[-1])
    drawn = draws.randrange(stop, first + sentences) % sentences
    return bisect_right(starts, drawn) - 1


def _instance(
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
    candidates: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (vocabulary.cls, vocabulary.sep):
            continue
        if settings.whole_words and candidates and continues[token]:
            candidates[-1].append(place)
        else:
            candidates.append([place])
    count = min(settings.max_predictions, max(1, round(len(tokens) * settings.probability)))
    positions, labels = hidden(tokens, candidates, count, vocabulary.mask, len(vocabulary.tokens), draws)
    second_start = len(first) + 2 if settings.next_sentences else len(tokens)
    return Instance(tokens, second_start, pair.is_random, positions, labels)


def epoch_files(
    corpora: Sequence[Corpus], epochs: int, settings: TpuPretrainOptions, vocabulary: TpuPretrainVocabulary, seed: int
) -> Iterator[tuple[int, Iterator[Instance]]]:
    """For each input file and epoch, in the original's order: the number N of ``epoch_N.json``, and its instances.

    The instances of one have to be read before those of the next, for all draw from one generator.
    """
    draws = random.Random(seed)
    for number, corpus in enumerate(corpora):
        for epoch in range(epochs):
            yield number + epoch * len(corpora), instances(corpus, settings, vocabulary, draws)


def json_line(instance: Instance, tokens: Sequence[str]) -> str:
    """Return an instance as a line of ``epoch_N.json``, without its newline.

    Args:
        tokens: by id.
    """
    segments = [0] * instance.second_start + [1] * (len(instance.tokens) - instance.second_start)
    return json.dumps(
        {
            "tokens": [MASK_TOKEN if token == MASK else tokens[token] for token in instance.tokens],
            "segment_ids": segments,
            "is_random_next": instance.is_random,
            "masked_lm_positions": instance.positions,
            "masked_lm_labels": [tokens[label] for label in instance.labels],
        }
    )


def vocabulary_of(loaded: LoadedTokenizer) -> TpuPretrainVocabulary:
    """What training reads: a hidden token has the id of ``[MASK]``, or that of the unknown token where there is none.

    Raises:
        RelmError: the tokenizer lacks the special tokens, or its ids have gaps.
    """
    tokens = model_vocabulary(loaded, ORIGINAL.name)
    mask = tokens.index(MASK_TOKEN) if MASK_TOKEN in tokens else loaded.required("unk")
    return TpuPretrainVocabulary(tokens, loaded.required("cls"), loaded.required("sep"), mask)


def pregenerate_tpu_pretrain(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Write the instances of all epochs (`masked.duplication_factor`), one after the other, as a table.

    Args:
        documents: JSON lines, one input file of the original; a line of text is a sentence.
        tokenizer: `tokenizer.json`.
        output: the table; its sidecar's facts are what the manifest is made of.
        language: of the text, where `masked.sentences` asks for a splitter.
        workers: processes that encode; None: as many as there are cores. They change no byte.

    Raises:
        RelmError: an option the original lacks, an input that is absent or faulty, or a single document.
    """
    chosen = require_options(ORIGINAL, objective)
    masked = objective.masked
    settings = TpuPretrainOptions(
        require_length(ORIGINAL.name, objective),
        required_predictions(ORIGINAL.name, masked),
        masked.probability,
        masked.short_sequence_probability,
        masked.whole_words,
        masked.packing == "sentence_pairs",
    )
    started = perf_counter()
    with read_documents(documents, tokenizer, objective.masked.sentences, language, workers, output.parent) as (
        corpus,
        source,
        loaded,
    ):
        vocabulary = vocabulary_of(loaded)
        width, places = settings.sequence_length, settings.max_predictions
        columns = table_columns(width, places, loaded.vocabulary_size)
        draws = random.Random(chosen.seed)
        epochs = masked.duplication_factor if corpus.documents else 0
        with opened_table(output, objective, loaded, source, columns) as table:
            made = itertools.chain.from_iterable(instances(corpus, settings, vocabulary, draws) for _ in range(epochs))
            for block in blocks_of(made):
                rows = packed(block, width, places, settings.next_sentences)
                table.append(columns_of(rows, width, places), rows[:, 0])
    return sentence(ORIGINAL.name, table, source, started)
