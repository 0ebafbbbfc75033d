"""Pseudo-log-likelihoods of sentences, by which a masked model chooses among them (Salazar et al. 2020, arXiv 1910.14659).

Each token of a sentence but the special ones around it is masked alone, and its log-probability at that position is added, as
BabyLM's evaluation pipelines score masked models on BLiMP. A model that sees the whole sentence has no other likelihood of it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from relm.errors import RelmError
from relm.evaluation.beginning import tokens_around
from relm.evaluation.choices.choice_formats import Question
from relm.evaluation.evaluated_text import encode_rows
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


def sentence_scores(
    model: MaskedModel, tokenizer: LoadedTokenizer, questions: Sequence[Question], batch_tokens: int
) -> tuple[Floats, Integers]:
    """Return pseudo-log-likelihood and count of masked tokens of each choice of questions, (choices,) each.

    Sentences with the same tokens go through the model once. Batches have sentences of similar length, and change the
    sums by rounding at most.
    """
    mask = mask_token(tokenizer.special.mask, tokenizer.path)
    sentences = [(question.where, text) for question in questions for text in question.prompts["babylm"].choices]
    before, after = _tokens_around(tokenizer)
    tokens = [row.astype(np.int64) for row in encode_rows(tokenizer, [text for _, text in sentences])]
    for (where, _), row in zip(sentences, tokens, strict=True):
        _require_scorable(model, tokenizer, where, len(row), len(row) + len(before) + len(after))
    numbers: dict[bytes, int] = {}
    indices = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in tokens])
    rows = [np.frombuffer(content, dtype=np.int64) for content in numbers]
    sizes = np.fromiter(map(len, rows), dtype=np.int64)
    sums = np.zeros(len(rows))
    with ProgressBar(total=int(sizes.sum()), unit=" tokens", unit_scale=True, disable=None) as bar:
        order = np.argsort(-sizes, kind="stable")
        for together in (order[first : first + TOGETHER] for first in range(0, len(order), TOGETHER)):
            lengths = sizes[together] + len(before) + len(after)
            columns = np.arange(lengths.max())
            padded = np.full((len(together), len(columns)), tokenizer.special.pad or 0, dtype=np.int64)
            padded[columns < lengths[:, None]] = np.concatenate([np.concatenate([before, rows[n], after]) for n in together])
            scored = (columns >= len(before)) & (columns < (lengths - len(after))[:, None])
            nats = [
                score_masked(model, batch, batch_tokens, bar.update).nats[:, 0]
                for batch in mask_one_by_one(padded, lengths, scored, mask)
            ]
            sums[together] = -np.add.reduceat(np.concatenate(nats), np.cumsum(sizes[together]) - sizes[together])
    return sums[indices], sizes[indices]


def _tokens_around(tokenizer: LoadedTokenizer) -> tuple[Integers, Integers]:
    """Return the ids before and after a sentence: those that the tokenizer adds, or else [CLS] and [SEP] where it has them."""
    before, after = tokens_around(tokenizer)
    if not before and not after:
        before, after = (() if one is None else (one,) for one in (tokenizer.special.cls, tokenizer.special.sep))
    return np.array(before, dtype=np.int64), np.array(after, dtype=np.int64)


def _require_scorable(model: MaskedModel, tokenizer: LoadedTokenizer, where: str, size: int, whole: int) -> None:
    """Refuse a sentence without a token, or with more than the model has positions once special ones are around it."""
    if size == 0:
        raise RelmError(f"{where}: {tokenizer.path} has no token for a sentence; correct the line, or use another tokenizer")
    if model.positions is not None and whole > model.positions:
        raise RelmError(
            f"{where}: a sentence has {whole:,} tokens with its special ones, {model.folder} has "
            f"{model.positions} positions; evaluate a model with more, or delete the line"
        )


def mask_one_by_one(input_ids: Integers, lengths: Integers, scored: Flags, mask: int) -> Iterator[Batch]:
    """Yield a copy of each sequence for each of its scored tokens, with that one masked, in batches of bounded size.

    `input_ids` and `scored` are (rows, L), `lengths` are (rows,) without padding.
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
