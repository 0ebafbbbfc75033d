"""Cut a question and its paragraph into windows in which a model marks the answer's first and last token.

A paragraph too long for one window is cut into several, each `doc_stride` tokens after the one before. So a token may be in
several windows; it counts in the one where it has the most context on its shorter side. Windows, and the labels with a
WordPiece, are those of the original BERT's `run_squad.py` (google-research/bert; Devlin et al. 2019, section 4.2). With other
tokenizers the labels are the tokens that cover the answer's characters, as in `run_qa.py` of transformers.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.contract import Batch, Integers
from relm.examples.fine_tuning.squad import MarkedAnswer, Paragraph, SpanQuestion
from relm.examples.text_pairs import PairTemplate, model_inputs, read_pair_template
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

# The original's white space between words, which decide a label; it has no no-break spaces.
WORD_BREAKS = " \t\r\n\u202f"
WORDS = re.compile(f"[{WORD_BREAKS}]")


class WindowLengths(NamedTuple):
    """Lengths in tokens; the defaults are those of `run_squad.py`."""

    sequence: int = 384
    """Tokens of a window, padding included."""
    doc_stride: int = 128
    """Tokens of the paragraph from the beginning of one window to that of the next."""
    max_query: int = 64
    """Tokens of the question; the rest is cut off."""


class TokenizedText(NamedTuple):
    """The tokens of a text, and the characters of each."""

    ids: Integers
    starts: Integers
    """(tokens,), offset of each token's first character."""
    ends: Integers
    """(tokens,), offset after its last character."""


class AnswerWindows(NamedTuple):
    """The windows of all questions, in their order."""

    input_ids: Integers
    """(windows, sequence), padded."""
    lengths: Integers
    """(windows,), tokens without padding."""
    context_starts: Integers
    """(windows,), position of the paragraph's first token."""
    first_tokens: Integers
    """(windows,), index of that token in the paragraph."""
    questions: Integers
    """(windows,), index of the question, ascending."""
    has_most_context: npt.NDArray[np.bool_]
    """(windows, sequence), True for the paragraph's tokens that have their most context in this window."""
    starts: Integers
    """(windows,), position of the answer's first token; 0 if the window lacks the answer, or without labels."""
    ends: Integers
    """(windows,), position of the answer's last token; 0 likewise."""

    def inputs(self) -> Batch:
        """Return `input_ids`, `attention_mask` and `token_type_ids`, all (windows, sequence), as a model takes them."""
        return model_inputs(self.input_ids, self.lengths, self.context_starts)


class TokenizedParagraph(NamedTuple):
    """A paragraph as text, words and tokens."""

    text: str
    tokens: TokenizedText
    words: list[str]
    word_of_character: Integers
    """(characters,), index of the word; white space has the index of the word before it, or -1."""
    word_of_token: Integers
    """(tokens,), index of the word, ascending."""


class AskedQuestion(NamedTuple):
    """A question and its paragraph."""

    question: SpanQuestion
    paragraph: TokenizedParagraph


class Windowed(NamedTuple):
    """Questions and their windows."""

    questions: list[AskedQuestion]
    windows: AnswerWindows
    skipped: int
    """Questions that were left out because their answer is not at its offset."""


def window_questions(
    paragraphs: Sequence[Paragraph], tokenizer: LoadedTokenizer, lengths: WindowLengths, labelled: bool
) -> Windowed:
    """Return the windows of all questions; if `labelled`, each has the position of the question's first answer."""
    special = read_pair_template(tokenizer)
    rows: list[dict[str, Any]] = []
    asked: list[AskedQuestion] = []
    skipped = 0
    for given in paragraphs:
        paragraph = tokenize_paragraph(tokenizer, given.context)
        queries = tokenize(tokenizer, [question.text for question in given.questions])
        answers = tokenize(tokenizer, [question.answers[0].text for question in given.questions] if labelled else [])
        for number, (question, query) in enumerate(zip(given.questions, queries, strict=True)):
            answer = question.answers[0]
            if labelled and not has_answer_at_offset(answer, paragraph):
                skipped += 1
                continue
            label = find_label(tokenizer.kind, paragraph, answer, answers[number].ids) if labelled else None
            rows += _windows(query.ids[: lengths.max_query], paragraph.tokens, lengths, special, label, len(asked))
            asked.append(AskedQuestion(question, paragraph))
    return Windowed(asked, _columns(rows, lengths.sequence), skipped)


def _columns(rows: Sequence[Mapping[str, Any]], length: int) -> AnswerWindows:
    if not rows:
        empty = np.zeros(0, dtype=np.int64)
        wide = np.zeros((0, length), dtype=np.int64)
        return AnswerWindows(wide, empty, empty, empty, empty, wide.astype(np.bool_), empty, empty)
    return AnswerWindows(**{name: np.array([row[name] for row in rows]) for name in AnswerWindows._fields})


# --- tokens ------------------------------------------------------------------------------------------------------------------


def tokenize(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> list[TokenizedText]:
    """Return the tokens of texts; spaces at the ends of a token, as in byte-level BPE, do not count as its characters."""
    encodings = tokenizer.tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [_with_offsets(encoding.ids, encoding.offsets, text) for encoding, text in zip(encodings, texts, strict=True)]


def _with_offsets(ids: Sequence[int], offsets: Sequence[tuple[int, int]], text: str) -> TokenizedText:
    spans = np.array([_trim(start, end, text) for start, end in offsets], dtype=np.int64).reshape(-1, 2)
    return TokenizedText(np.array(ids, dtype=np.int64), spans[:, 0].copy(), spans[:, 1].copy())


def _trim(start: int, end: int, text: str) -> tuple[int, int]:
    while start < end - 1 and text[start].isspace():
        start += 1
    while start < end - 1 and text[end - 1].isspace():
        end -= 1
    return start, end


def tokenize_paragraph(tokenizer: LoadedTokenizer, text: str) -> TokenizedParagraph:
    """Return a paragraph with its tokens and its words, which white space separates."""
    tokens = tokenize(tokenizer, [text])[0]
    within = np.array([character not in WORD_BREAKS for character in text], dtype=np.bool_)
    begins = within & ~np.concatenate([[False], within[:-1]])
    word_of_character = np.cumsum(begins, dtype=np.int64) - 1
    words = [word for word in WORDS.split(text) if word]
    # A byte-level token of a space at the end of the text begins after its last character.
    word_of_token = word_of_character[np.minimum(tokens.starts, len(text) - 1)]
    return TokenizedParagraph(text, tokens, words, word_of_character, word_of_token)


# --- labels ------------------------------------------------------------------------------------------------------------------


def has_answer_at_offset(answer: MarkedAnswer, paragraph: TokenizedParagraph) -> bool:
    """Return True if an answer's text is in the words at its offset; otherwise the original skips the question."""
    first, last = _words_of(answer, paragraph)
    return " ".join(answer.text.split()) in " ".join(paragraph.words[first : last + 1])


def _words_of(answer: MarkedAnswer, paragraph: TokenizedParagraph) -> tuple[int, int]:
    """Return the words in which an answer begins and ends."""
    first, last = paragraph.word_of_character[[answer.start, answer.start + len(answer.text) - 1]].tolist()
    return max(first, 0), max(last, 0)


def find_label(kind: str, paragraph: TokenizedParagraph, answer: MarkedAnswer, answer_ids: Integers) -> tuple[int, int]:
    """Return the first and last token of an answer in its paragraph; `kind` is the tokenizer's."""
    tokens = paragraph.tokens
    if kind != "wordpiece":
        return find_covering_tokens(tokens, answer.start, answer.start + len(answer.text))
    first, last = _words_of(answer, paragraph)
    start, stop = np.searchsorted(paragraph.word_of_token, [first, last + 1]).tolist()
    return narrow_span(tokens.ids, start, stop - 1, answer_ids)


def find_covering_tokens(tokens: TokenizedText, start: int, stop: int) -> tuple[int, int]:
    """Return the last token that begins at `start` or before, and the first that ends at `stop` or after.

    >>> find_covering_tokens(TokenizedText(np.arange(3), np.array([0, 4, 9]), np.array([3, 9, 12])), 4, 8)
    (1, 1)
    """
    first = int(np.searchsorted(tokens.starts, start, "right")) - 1
    return max(first, 0), min(int(np.searchsorted(tokens.ends, stop, "left")), len(tokens.ids) - 1)


def narrow_span(ids: Integers, start: int, end: int, answer: Integers) -> tuple[int, int]:
    """Return the first part of the tokens `start` to `end` that equals the answer's tokens; otherwise all of them.

    The answer 1895 is such a part of the word (1895-1943), but the answer Japan is not a part of the token japanese.

    >>> narrow_span(np.array([7, 1, 2, 3, 4]), 1, 4, np.array([2, 3]))
    (2, 3)
    >>> narrow_span(np.array([7, 1, 2, 3, 4]), 1, 4, np.array([9]))
    (1, 4)
    """
    size = len(answer)
    for first in range(start, end + 2 - size) if size else ():
        if np.array_equal(ids[first : first + size], answer):
            return first, first + size - 1
    return start, end


# --- windows -----------------------------------------------------------------------------------------------------------------


def window_spans(tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the first token and the length of each window's part of a paragraph.

    >>> window_spans(10, room=6, stride=3)
    [(0, 6), (3, 6), (6, 4)]
    """
    spans, first = [], 0
    while first < tokens:
        length = min(tokens - first, room)
        spans.append((first, length))
        if first + length == tokens:
            break
        first += min(length, stride)
    return spans


def window_with_most_context(tokens: int, spans: Sequence[tuple[int, int]]) -> Integers:
    """Return for each token of a paragraph the window in which its shorter side has most context.

    Of equal ones the longer window wins, then the first.

    >>> window_with_most_context(10, [(0, 6), (3, 6), (6, 4)]).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    """
    if not spans:
        return np.zeros(0, dtype=np.int64)
    positions = np.arange(tokens)
    first, length = (np.array(column)[:, None] for column in zip(*spans, strict=True))
    before, after = positions - first, first + length - 1 - positions
    scores = np.where((before >= 0) & (after >= 0), np.minimum(before, after) + 0.01 * length, -1.0)
    best: Integers = scores.argmax(0)
    return best


def _windows(
    query: Integers,
    context: TokenizedText,
    lengths: WindowLengths,
    special: PairTemplate,
    label: tuple[int, int] | None,
    question: int,
) -> Iterator[dict[str, Any]]:
    """Yield the windows of one question, as fields of `AnswerWindows`."""
    before = np.concatenate([[special.cls], query, [special.sep] * special.separators])
    if (room := lengths.sequence - len(before) - 1) < 1:
        raise RelmError(
            f"sequence_length: {lengths.sequence} tokens are too few for {len(query)} tokens of a question, "
            f"{special.separators + 2} special ones and a paragraph; raise it, or lower max_query_length"
        )
    spans = window_spans(len(context.ids), room, lengths.doc_stride)
    best = window_with_most_context(len(context.ids), spans)
    for number, (first, length) in enumerate(spans):
        row = np.full(lengths.sequence, special.pad, dtype=np.int64)
        size = len(before) + length + 1
        row[:size] = np.concatenate([before, context.ids[first : first + length], [special.sep]])
        most = np.zeros(lengths.sequence, dtype=np.bool_)
        most[len(before) : size - 1] = best[first : first + length] == number
        inside = label is not None and label[0] >= first and label[1] < first + length
        start, end = (token - first + len(before) for token in label) if label is not None and inside else (0, 0)
        yield {
            "input_ids": row,
            "lengths": size,
            "context_starts": len(before),
            "first_tokens": first,
            "questions": question,
            "has_most_context": most,
            "starts": start,
            "ends": end,
        }
