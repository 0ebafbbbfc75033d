"""Perplexity of a text by token, word and byte, by the protocols of published figures.

`relm.recipes.evaluation.protocol_options.TextPerplexity` has their options. `windows` cuts windows, and `scoring` scores them.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.evaluation.beginning import Beginning, choose_beginning, prepend_to_each
from relm.evaluation.causal_model import CausalModel, require_context
from relm.evaluation.detokenisers import DETOKENISERS
from relm.evaluation.evaluated_text import count_editor_marks, encode_texts, load_matching_tokenizer, read_text
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.models import load_causal
from relm.evaluation.result import perplexity
from relm.evaluation.runner import Scored, evaluation
from relm.evaluation.scoring import ScoredSequences, Scores, score
from relm.evaluation.windows import Windows, cut_documents
from relm.examples.tokenization.tokenizer_files import ENDS_OF_TEXT, LoadedTokenizer
from relm.recipes.evaluation.protocol_options import TextPerplexity


@evaluation
def evaluate_text(
    model_folder: Path,
    tokenizer: Path,
    file: Path,
    options: TextPerplexity,
    file_sha256: str | None = None,
    limit: int | None = None,
    execution: Execution = ON_THE_HOST,
) -> Scored:
    """Score a text in UTF-8; `limit` counts windows, or documents if the file is divided into several.

    Text and tokens are in memory, about 16 times the file's size, since a detokeniser's rule may match across the whole text;
    test files have a megabyte or two. `execution.batch_tokens` bounds the model's memory.
    """
    text, sha256 = read_text(file, file_sha256)
    marks = count_editor_marks(file, text)
    loaded = load_matching_tokenizer(model_folder, tokenizer)
    beginning = choose_beginning(options.begin, loaded, model_folder, options.first_token == "scored")
    prepared = prepare_text(text, loaded, options, limit, beginning)
    if prepared.targets < 1 or prepared.words < 1:
        raise RelmError(
            f"{file}: {prepared.tokens:,} tokens and {prepared.words:,} words leave nothing to score; give a longer text, or "
            "first_token: scored"
        )
    model = load_causal(model_folder, loaded.vocabulary_size, execution)
    context, stride = _reach(model, options)
    windows = cut_documents(options.windows, prepared.sizes, context, stride)
    windows = windows.first(limit) if options.documents != "level_1_headings" else windows
    sequences = ScoredSequences(prepared.array, windows.starts, windows.ends, windows.scored)
    found = figures(mean_nats(score(model, sequences, execution.batch_tokens), sequences, windows), prepared, windows)
    if options.documents == "level_1_headings":
        found["documents"] = len(prepared.sizes)
    names = {"tokenizer_sha256": loaded.sha256, "file": file.name, "file_sha256": sha256}
    described = _protocol(options, context, stride, names, beginning) | {"precision": execution.precision}
    described |= ({} if limit is None else {"limit": limit}) | ({"scored_as_text": marks} if marks else {})
    sentence = (
        f"scored {found['tokens_scored']:,} tokens of {file.name}: "
        f"{found['nats_per_token']:.4f} nats per token, {found['bits_per_byte']:.4f} bits per byte"
    )
    return Scored(found, described, model.sha256, sentence, (found["tokens_scored"], "tokens"))


@dataclass(frozen=True)
class PreparedText:
    """Documents as tokens, with the counts of their text."""

    array: npt.NDArray[np.int32]
    """(n,) tokens of all documents, with those put before each."""
    sizes: npt.NDArray[np.int64]
    """(documents,) number of these tokens in each document."""
    tokens: int
    """Number of tokens of all documents, without those put before them."""
    words: int
    bytes: int

    @property
    def targets(self) -> int:
        """Return the number of tokens with another one before them in their document."""
        return int(np.maximum(self.sizes - 1, 0).sum())


def prepare_text(
    text: str, tokenizer: LoadedTokenizer, options: TextPerplexity, limit: int | None, beginning: Beginning | None = None
) -> PreparedText:
    """Return the first `limit` documents of a text, detokenised and encoded; words and bytes are counted before that.

    Without a `beginning` the options and the tokenizer choose the tokens before each document.
    """
    beginning = beginning or choose_beginning(options.begin, tokenizer, None, options.first_token == "scored")
    texts = split_pages(text)[:limit] if options.documents == "level_1_headings" else [text]
    shown = [join_rows(text)] if options.documents == "joined_rows" else texts
    ragged = encode_texts(tokenizer, [DETOKENISERS[options.detokeniser](document) for document in shown])
    array, sizes = prepend_to_each(beginning.ids, ragged.tokens, ragged.sizes.astype(np.int64))
    words = sum(map(WORDS[options.words], texts))
    return PreparedText(array, sizes, len(ragged.tokens), words, sum(len(document.encode()) for document in texts))


def split_pages(text: str) -> list[str]:
    """Return WikiText's pages, as in EleutherAI/wikitext_document_level, the data set that lm_eval reads.

    A page begins with any line that has the equals signs of a first-level heading. In the test file two lines of formulas do,
    so that its 60 articles are 62 pages. White space before the first heading is not a page. The line end between two pages
    is lost.
    """
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        if _is_heading(line):
            found.append([])
        found[-1].append(line)
    texts = ["\n".join(lines) for lines in found]
    return [page for page in texts[:-1] if page.strip()] + texts[-1:]


def _is_heading(line: str) -> bool:
    """Return whether a line is ` = Title = `, and not of another level, which has adjacent signs: ` = = Title = = `."""
    marked = line.replace("= = =", "===").replace("= =", "==").strip()
    return marked.startswith("= ") and marked.endswith(" =")


def join_rows(text: str) -> str:
    r"""Return the text as Hugging Face's page on perplexity builds it from the rows of WikiText: `"\n\n".join(test["text"])`.

    A row is a line with its end, or empty if the line is blank. So three line ends follow a line of text, and two a blank one.
    """
    lines = text.removesuffix("\n").split("\n")
    return "\n\n".join(f"{line}\n" if line.strip() else "" for line in lines)


def count_parts_between_single_spaces(text: str) -> int:
    """Count single spaces in the stripped text, as Megatron-LM counts words: their parts, minus one."""
    return len(text.strip().split(" ")) - 1


def count_parts_between_whitespace(text: str) -> int:
    """Count parts between runs of white space, as lm_eval counts words: one more for each end with white space."""
    return len(re.split(r"\s+", text))


WORDS: dict[str, Callable[[str], int]] = {
    "single_spaces": count_parts_between_single_spaces,
    "whitespace": count_parts_between_whitespace,
}


def _reach(model: CausalModel, options: TextPerplexity) -> tuple[int, int]:
    """Return context and stride of the windows for this model."""
    context = options.context or model.positions
    if context is None:
        raise RelmError(f"{model.folder}: has no limit of positions; set context, in tokens")
    require_context(model, context)
    return context, min(options.stride or context, context)


def mean_nats(scores: Scores, sequences: ScoredSequences, windows: Windows) -> float:
    """Return the mean of -ln P: the mean of the windows' means, each with its weight."""
    sums = np.add.reduceat(scores.nats, sequences.offsets[:-1])
    return math.fsum(sums / windows.scored * windows.weights) / float(windows.weights.sum())


def figures(nats: float, text: PreparedText, windows: Windows) -> dict[str, float | int]:
    """Return all figures; those by word and byte apply the mean over scored tokens to all tokens that could be scored.

    If all of these are scored with the same weight, that is the sum of their losses over words or bytes.
    """
    ratio = text.targets / text.words
    return {
        "nats_per_token": nats,
        **perplexity("perplexity_per_token", nats),
        **perplexity("perplexity_per_word", nats * ratio),
        "bits_per_byte": nats * text.targets / text.bytes / math.log(2),
        "token_ratio": ratio,
        "tokens": text.tokens,
        "tokens_scored": int(windows.scored.sum()),
        "words": text.words,
        "bytes": text.bytes,
        "windows": windows.published,
    }


COUNTED = {
    "perplexity": "e to the mean of nats, without the limit of e^20 of Megatron-LM and Graphcore's GPT-2",
    "by_word": "e to nats_per_token times token_ratio, which is tokens that have another before them over words",
    "counted_in": "tokens of the text that the model sees, words and bytes of the text before the detokeniser",
    "arithmetic": "losses in float32, summed in float64, natural logarithms; matrix products in the named precision",
}
_DOCUMENTS = {
    "one": "in one piece",
    "joined_rows": "in one piece, its rows joined by blank lines",
    "level_1_headings": "page by page",
}
_WINDOWS = {
    "overlapping": "windows of {context:,} tokens begin every {stride:,}; the first scores all its tokens, each later one its "
    "last {stride:,}",
    "rolling": "windows score up to {context:,} tokens each and overlap by one; the last reaches back as far as it can",
    "strided": "windows of {context:,} tokens begin every {stride:,}, each scores what the one before did not reach, and "
    "counts one token less than are new in it",
}
_WORDS = {
    "single_spaces": "words are the parts between single spaces, minus one",
    "whitespace": "words are the parts between white space",
}


def _protocol(
    options: TextPerplexity, context: int, stride: int, names: dict[str, str], beginning: Beginning
) -> dict[str, Any]:
    """Return the protocol of the result: a description, and the values of all options."""
    text = "The text as it is" if options.detokeniser == "none" else "The text, detokenised as Megatron-LM and lm_eval do"
    windows = _WINDOWS[options.windows].format(context=context, stride=stride)
    words = f"{text}, {_DOCUMENTS[options.documents]}: {windows}. {_first(options, beginning)}; {_WORDS[options.words]}."
    reach = {"context": context, "stride": None if options.windows == "rolling" else stride}
    return {"in_words": words, **names, **options.model_dump(), **beginning.record(), **reach, **COUNTED}


def _first(options: TextPerplexity, beginning: Beginning) -> str:
    """Describe the tokens before a document, and whether the first is scored, without a full stop."""
    if options.first_token == "given":
        which = "of which the first" if len(beginning.names) > 1 else "which"
        put = f"Each document begins with {' '.join(beginning.names)}, {which}" if beginning.names else "The first token"
        return f"{put} is not scored"
    prefix, *added = beginning.names
    after = "an end of text" if prefix in ENDS_OF_TEXT else prefix
    return f"The first token is scored, after {after}" + (f"; it is {added[0]}, which the tokenizer adds" if added else "")
