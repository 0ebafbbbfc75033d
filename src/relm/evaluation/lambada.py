"""LAMBADA (Paperno et al. 2016, https://arxiv.org/abs/1606.06031): the last word of each passage, by three protocols at once.

They define the last word and its tokens differently:

- last token, the default of Graphcore's and Megatron-LM's evaluations: only the passage's last token, given all others, even
  the first ones of the same word;
- strict, an option of the same evaluations: all tokens of the last word, one space after the stripped rest;
- lambada_openai of lm_eval: all tokens of the passage after those of the text before its last word; their loss is summed too.

Where two protocols have the same tokens, as they nearly always do, these go through the model once.

The original of strict encodes the last word by itself, after a space. A tokenizer that puts a prefix before every text, as
older SentencePiece ones do, would add that prefix. So the word's tokens are here those that follow the beginning's, which are
the same for GPT-2's tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.evaluation.beginning import Beginning, choose_beginning, prepend_to_each
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.evaluated_text import Row, before_last_space, encode_rows, load_matching_tokenizer, read_passages
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.models import load_causal
from relm.evaluation.result import perplexity
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import Flags, Integers, ScoredSequences, Scores, score
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.recipes.evaluation.protocol_options import Lambada

DESCRIPTION = (
    "The last word of each passage by three protocols: only its last token; all its tokens after the stripped beginning "
    "(strict); and lambada_openai of lm_eval, whose perplexity is e to the mean loss of a whole last word. A passage longer "
    "than the model's positions loses its beginning; none is left out."
)


@evaluation
def evaluate_lambada(
    model_folder: Path,
    tokenizer: Path,
    file: Path,
    options: Lambada,
    file_sha256: str | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
) -> Scored:
    """Score the last words of passages, which are in a JSON object on each line of the file."""
    texts, sha256 = read_passages(file, file_sha256, options.text_key, limit)
    loaded = load_matching_tokenizer(model_folder, tokenizer)
    beginning = choose_beginning(options.begin, loaded, model_folder)
    passages = tokenise_passages(texts, loaded, file)
    model = load_causal(model_folder, loaded.vocabulary_size, execution)
    scores = score_passages(model, passages, execution.batch_tokens, beginning)
    found = figures(passages, scores)
    begins = [f"Each passage begins with {' '.join(beginning.names)}, and one that is cut loses it."] if beginning.ids else []
    protocol = {
        "in_words": " ".join([DESCRIPTION, *begins]),
        "tokenizer_sha256": loaded.sha256,
        "file": file.name,
        "file_sha256": sha256,
        **options.model_dump(),
        **beginning.record(),
        "last_word": "strict: what follows the last white space; lambada_openai: what follows the last single space",
        "correct": "every scored token is the likeliest, given the right ones before it; no filter of stop words",
        "precision": execution.precision,
        **({} if limit is None else {"limit": limit}),
    }
    sentence = (
        f"scored {found['examples']:,} last words: accuracy {found['last_token_accuracy']:.4f} by last token, "
        f"{found['strict_accuracy']:.4f} strict, {found['lambada_openai_accuracy']:.4f} as lambada_openai"
    )
    return Scored(found, protocol, model.sha256, sentence, (found["tokens"], "tokens"))


@dataclass(frozen=True)
class Passages:
    """Passages as tokens, for each protocol."""

    whole: list[Row]
    """Each passage in one piece, for the last token and lambada_openai."""
    strict: list[Row]
    """Each passage as its stripped beginning, a space, and its last word."""
    harness: list[Row]
    """Each passage as in lm_eval: the tokens of the context by itself, then those of `whole` from that length on."""
    harness_targets: Integers
    """(passages,) number of last tokens of `harness` that lambada_openai scores."""
    strict_targets: Integers
    """(passages,) number of last tokens of `strict` that are the last word."""
    retokenised: Flags
    """(passages,) True where the tokens of `strict` differ from those of `whole`, or of its beginning by itself."""
    file: Path

    def __len__(self) -> int:
        return len(self.retokenised)


def tokenise_passages(texts: Sequence[str], tokenizer: LoadedTokenizer, file: Path) -> Passages:
    """Return passages, each with at least two words, as tokens."""
    last = [text.split()[-1] for text in texts]
    beginnings = [text[: text.rfind(word)].strip() for text, word in zip(texts, last, strict=True)]
    whole, contexts = encode_rows(tokenizer, texts), encode_rows(tokenizer, beginnings)
    strict = encode_rows(tokenizer, [f"{beginning} {word}" for beginning, word in zip(beginnings, last, strict=True)])
    # lm_eval moves white space at the end of the context to the word that is scored.
    given = encode_rows(tokenizer, [before_last_space(text).rstrip() for text in texts])
    kept = np.array([common_length(*pair) for pair in zip(contexts, strict, strict=True)])
    passages = Passages(
        whole,
        strict,
        harness=[np.concatenate([context, row[len(context) :]]) for context, row in zip(given, whole, strict=True)],
        harness_targets=_sizes(whole) - _sizes(given),
        strict_targets=_sizes(strict) - kept,
        retokenised=_find_different(whole, strict) | (kept < _sizes(contexts)),
        file=file,
    )
    if 2 * (count := int(passages.retokenised.sum())) > len(passages):
        first = int(np.flatnonzero(passages.retokenised)[0])
        raise RelmError(
            f"{file}: {count:,} of {len(passages):,} passages, line {first + 1} first, have other tokens where "
            f"{tokenizer.path} encodes the last word separately, as the strict protocol does. Expected few: the last word must "
            "follow one space, which no token crosses, and end the passage. Use another tokenizer, or correct the white space"
        )
    least = np.min([passages.harness_targets, passages.strict_targets, _sizes(given), kept], axis=0)
    if len(lacking := np.flatnonzero(least < 1)):
        raise RelmError(
            f"{file}, line {lacking[0] + 1}: {tokenizer.path} has no separate token for the last word, or for the text before "
            f"it: {texts[lacking[0]][-80:]!r}; use another tokenizer, or delete the line"
        )
    return passages


def common_length(one: Row, other: Row) -> int:
    """Return the number of equal tokens with which both rows begin.

    >>> common_length(np.array([4, 5, 6]), np.array([4, 5, 7, 8]))
    2
    """
    size = min(len(one), len(other))
    return int(np.append(one[:size] != other[:size], True).argmax())


def _sizes(rows: Sequence[Row]) -> Integers:
    return np.fromiter(map(len, rows), dtype=np.int64)


def _find_different(left: Sequence[Row], right: Sequence[Row]) -> Flags:
    """Return the rows that differ, (rows,) bool."""
    return np.array([not np.array_equal(one, other) for one, other in zip(left, right, strict=True)])


@dataclass(frozen=True)
class LambadaScores:
    """Scores of all passages, in the file's order."""

    last_token: Flags
    """(passages,) True if the last token is the likeliest."""
    strict: Flags
    """(passages,) True if every token of the last word is, after the stripped beginning."""
    harness: Flags
    """(passages,) True if every token that lambada_openai scores is the likeliest: lm_eval's `acc`."""
    harness_nats: npt.NDArray[np.float64]
    """(passages,) sum of -ln P of these tokens; lm_eval's `perplexity` has this negated."""
    truncated: Flags
    """(passages,) True if the beginning was cut off because the model has too few positions."""


def score_passages(
    model: CausalModel, passages: Passages, batch_tokens: int, beginning: Beginning | None = None
) -> LambadaScores:
    """Return the scores of each passage by all three protocols, after the tokens of the beginning."""
    sequences, (strict_rows, harness_rows), truncated = _sequences(passages, model, beginning or Beginning("none"))
    scores = score(model, sequences, batch_tokens)
    ends = sequences.offsets[1:]
    strict, harness = ends[strict_rows], ends[harness_rows]
    return LambadaScores(
        last_token=scores.likeliest[ends[: len(passages)] - 1],
        strict=_all_likeliest(scores, strict, passages.strict_targets),
        harness=_all_likeliest(scores, harness, passages.harness_targets),
        harness_nats=np.array(
            [scores.nats[end - k : end].sum() for end, k in zip(harness, passages.harness_targets, strict=True)]
        ),
        truncated=truncated,
    )


def _sequences(passages: Passages, model: CausalModel, beginning: Beginning) -> tuple[ScoredSequences, list[Integers], Flags]:
    """Return the model's sequences: each passage, then the strict forms and then lm_eval's forms that differ from it.

    Return also the indices of each passage's two forms, and whether its beginning is cut off.
    """
    rows, lines, indices = [*passages.whole], np.arange(len(passages)), []
    for form in (passages.strict, passages.harness):
        again, index = np.flatnonzero(_find_different(passages.whole, form)), np.arange(len(passages))
        index[again] = len(rows) + np.arange(len(again))
        rows += [form[row] for row in again]
        lines = np.concatenate([lines, again])
        indices.append(index)
    scored = np.ones(len(rows), dtype=np.int64)
    for index, targets in zip(indices, (passages.strict_targets, passages.harness_targets), strict=True):
        np.maximum.at(scored, index, targets)
    tokens, sizes = prepend_to_each(beginning.ids, np.concatenate(rows), _sizes(rows))
    longest = int(sizes.max()) if model.positions is None else model.positions + 1
    if len(impossible := np.flatnonzero(scored >= longest)):
        raise RelmError(
            f"{passages.file}, line {lines[impossible[0]] + 1}: the last word has {scored[impossible[0]]:,} tokens, but "
            f"{model.folder} has {model.positions} positions; use a model with more"
        )
    ends = np.cumsum(sizes)
    sequences = ScoredSequences(tokens, ends - np.minimum(sizes, longest), ends, scored)
    truncated = np.maximum(_sizes(passages.whole), _sizes(passages.strict)) + len(beginning.ids) > longest
    return sequences, indices, truncated


def _all_likeliest(scores: Scores, ends: Integers, targets: Integers) -> Flags:
    """Return whether the last `targets` scored tokens before each end are all the likeliest, (passages,) bool."""
    missed = np.concatenate([[0], np.cumsum(~scores.likeliest)])
    found: Flags = missed[ends] == missed[ends - targets]
    return found


def figures(passages: Passages, scores: LambadaScores) -> dict[str, float | int]:
    """Return accuracies over all passages, the harness's perplexity, and counts."""
    mean_nats = float(scores.harness_nats.mean())
    return {
        "last_token_accuracy": float(scores.last_token.mean()),
        "strict_accuracy": float(scores.strict.mean()),
        "lambada_openai_accuracy": float(scores.harness.mean()),
        **perplexity("lambada_openai_perplexity", mean_nats),
        "examples": len(passages),
        "multi_token_words": int((passages.strict_targets > 1).sum()),
        "tokens": sum(map(len, passages.whole)),
        "strict_tokens": sum(map(len, passages.strict)),
        "longest": max(map(len, passages.whole)),
        "retokenised": int(passages.retokenised.sum()),
        "truncated": int(scores.truncated.sum()),
    }
