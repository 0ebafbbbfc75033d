"""Pseudo-log-likelihoods of sentences, by which a masked model chooses among them (Salazar et al. 2020, arXiv 1910.14659).

Each token of a sentence but the special ones around it is masked alone, and its log-probability at that position is added, as
BabyLM's evaluation pipelines score masked models on BLiMP. A model that sees the whole sentence has no other likelihood of it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from relm.errors import RelmError
from relm.evaluation.beginning import tokens_around
from relm.evaluation.choices.choice_formats import Question
from relm.evaluation.evaluated_text import encode_texts
from relm.evaluation.masked_models import MaskedModel
from relm.evaluation.masked_scoring import chunks_of, mask_token, score_masked
from relm.evaluation.scoring import Flags, Floats, Integers
from relm.examples.contract import Batch
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.progress import ProgressBar

WAY = "pseudo_log_likelihood"
"""Name of this way of scoring, with which its figures begin."""
# Sentences of similar length whose tokens are enumerated together.
TOGETHER = 1024


def only_pseudo_log_likelihood(questions: Sequence[Question]) -> list[Question]:
    """Return questions whose choices are whole sentences, with this way of scoring alone."""
    return [
        Question(question.where, {WAY: question.prompts["babylm"]}, question.answer, question.paradigm)
        for question in questions
    ]


def sentence_scores(
    model: MaskedModel, tokenizer: LoadedTokenizer, questions: Sequence[Question], batch_tokens: int
) -> tuple[Floats, Integers]:
    """Return pseudo-log-likelihood and count of masked tokens of each choice of questions, (choices,) each.

    Sentences with the same tokens go through the model once. Batches have sentences of similar length, and change the
    sums by rounding at most.
    """
    mask = mask_token(tokenizer.special.mask, tokenizer.path)
    sentences = [(question.where, text) for question in questions for text in question.prompts[WAY].choices]
    before, after = _tokens_around(tokenizer)
    tokens = _encode(tokenizer, [text for _, text in sentences])
    _require_scorable(
        model,
        tokenizer,
        sentences=[(where, len(row)) for (where, _), row in zip(sentences, tokens, strict=True)],
        around=len(before) + len(after),
    )
    numbers: dict[bytes, int] = {}
    indices = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in tokens])
    rows = [np.frombuffer(content, dtype=np.int64) for content in numbers]
    sizes = np.fromiter(map(len, rows), dtype=np.int64)
    sums = np.zeros(len(rows))
    with ProgressBar(total=int(sizes.sum()), unit=" tokens", unit_scale=True, disable=None) as bar:
        for together in _groups(sizes):
            padded, lengths = _pad(
                [np.concatenate([before, rows[index], after]) for index in together], tokenizer.special.pad or 0
            )
            columns = np.arange(padded.shape[1])
            scored = (columns >= len(before)) & (columns < (lengths - len(after))[:, None])
            nats = [
                score_masked(model, batch, batch_tokens, bar.update).nats[:, 0]
                for batch in mask_one_by_one(padded, lengths, scored, mask)
            ]
            sums[together] = -np.add.reduceat(np.concatenate(nats), np.cumsum(sizes[together]) - sizes[together])
    return sums[indices], sizes[indices]


def _encode(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> list[Integers]:
    """Return the ids of each text, without special ones."""
    encoded = encode_texts(tokenizer, texts)
    return np.split(encoded.tokens.astype(np.int64), np.cumsum(encoded.sizes, dtype=np.int64)[:-1])


def _tokens_around(tokenizer: LoadedTokenizer) -> tuple[Integers, Integers]:
    """Return the ids before and after a sentence: those that the tokenizer adds, or else [CLS] and [SEP] where it has them."""
    before, after = tokens_around(tokenizer)
    if not before and not after:
        before, after = (() if one is None else (one,) for one in (tokenizer.special.cls, tokenizer.special.sep))
    return np.array(before, dtype=np.int64), np.array(after, dtype=np.int64)


def _require_scorable(
    model: MaskedModel, tokenizer: LoadedTokenizer, sentences: Sequence[tuple[str, int]], around: int
) -> None:
    """Refuse a sentence without a token, or with more tokens than the model has positions.

    Args:
        sentences: line and count of tokens of each sentence.
        around: the count of tokens that are put around each.
    """
    for where, size in sentences:
        if size == 0:
            raise RelmError(
                f"{where}: {tokenizer.path} has no token for a sentence; correct the line, or use another tokenizer"
            )
        if model.positions is not None and size + around > model.positions:
            raise RelmError(
                f"{where}: a sentence has {size + around:,} tokens with its special ones, {model.folder} has "
                f"{model.positions} positions; evaluate a model with more, or delete the line"
            )


def _groups(sizes: Integers) -> Iterator[Integers]:
    """Yield the indices of sentences of similar length, the longest first."""
    order = np.argsort(-sizes, kind="stable")
    yield from (order[first : first + TOGETHER] for first in range(0, len(order), TOGETHER))


def _pad(rows: Sequence[Integers], padding: int) -> tuple[Integers, Integers]:
    """Return rows of one length, and the lengths without padding."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64)
    width = int(lengths.max())
    return np.stack([np.pad(row, (0, width - len(row)), constant_values=padding) for row in rows]), lengths


def mask_one_by_one(input_ids: Integers, lengths: Integers, scored: Flags, mask: int) -> Iterator[Batch]:
    """Yield a copy of each sequence for each of its scored tokens, with that one masked, in batches of bounded size.

    Args:
        input_ids: (rows, L) ids.
        lengths: (rows,) tokens that are not padding.
        scored: (rows, L) True for tokens to score.
        mask: the id of the mask token.
    """
    rows, positions = np.nonzero(scored)
    columns: Integers = np.arange(input_ids.shape[1])
    for copies in chunks_of(len(rows), len(columns)):
        row, position = rows[copies], positions[copies]
        masked = input_ids[row]
        labels = masked[np.arange(len(row)), position]
        masked[np.arange(len(row)), position] = mask
        yield {
            "input_ids": masked,
            "attention_mask": columns < lengths[row][:, None],
            "token_type_ids": np.zeros_like(masked),
            "masked_positions": position[:, None],
            "masked_labels": labels[:, None],
        }
