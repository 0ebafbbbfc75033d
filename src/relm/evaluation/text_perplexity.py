"""Perplexity of a text by token, word and byte, by the protocols that published figures follow.

`relm.recipes.evaluations.TextPerplexity` has their options. `relm.evaluation.windows` cuts windows, and `scoring` scores them.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.evaluation.beginning import Beginning, beginning_of, put_before_each
from relm.evaluation.detokenisers import DETOKENISERS
from relm.evaluation.evaluated_text import encoded, read_text
from relm.evaluation.models import CausalModel, Execution, load_causal, require_context
from relm.evaluation.result import Result, perplexity
from relm.evaluation.scoring import ScoredSequences, Scores, score
from relm.evaluation.windows import Windows, windows_of_documents
from relm.examples.tokenizers import SPECIAL_TOKENS, LoadedTokenizer, load_tokenizer
from relm.recipes.evaluations import TextPerplexity

# exp of more is no number, and the figure is left out: where hardly anything is written with spaces, a word is an article.


def evaluate_text(
    model_folder: Path,
    tokenizer: Path,
    file: Path,
    output: Path,
    task: str,
    options: TextPerplexity,
    file_sha256: str | None = None,
    limit: int | None = None,
    execution: Execution | None = None,
) -> str:
    """Score a text and write `eval/TASK.json`.

    Text and tokens are held in memory, some 16 times the file's size, since the rules of a detokeniser know no end of a piece:
    test files have a megabyte or two. What the model needs is bounded by `execution.batch_tokens`.

    Args:
        model_folder: any causal language model that `load_causal` reads.
        tokenizer: its `tokenizer.json`.
        file: UTF-8.
        output: the JSON file.
        task: its name in it.
        options: the protocol.
        file_sha256: what the file must be; None: anything.
        limit: only the first so many windows, or documents where the file is divided into several; None: all.

    Raises:
        RelmError: the file is another one, empty or not UTF-8; it, the tokenizer, the context and the model do not belong
            together; the loss is not finite.
    """
    started = perf_counter()
    execution = execution or Execution()
    text, sha256 = read_text(file, file_sha256)
    loaded = load_tokenizer(tokenizer)
    beginning = beginning_of(options.begin, loaded, model_folder, options.first_token == "scored")
    prepared = prepared_text(text, loaded, options, limit, beginning)
    if prepared.targets < 1 or prepared.words < 1:
        raise RelmError(
            f"{file}: {prepared.tokens:,} tokens and {prepared.words:,} words leave nothing to score; give a longer text, or "
            "first_token: scored"
        )
    model = load_causal(model_folder, loaded.vocabulary_size, execution)
    context, stride = _reach(model, options)
    windows = windows_of_documents(options.windows, prepared.sizes, context, stride)
    windows = windows.first(limit) if options.documents != "level_1_headings" else windows
    sequences = ScoredSequences(prepared.array, windows.starts, windows.ends, windows.scored, beginning.every_window)
    found = figures(mean_nats(score(model, sequences, execution.batch_tokens), sequences, windows), prepared, windows)
    if options.documents == "level_1_headings":
        found["documents"] = len(prepared.sizes)
    names = {"tokenizer_sha256": loaded.sha256, "file": file.name, "file_sha256": sha256}
    told = _protocol(options, context, stride, names, beginning) | {"precision": execution.precision}
    told |= {} if limit is None else {"limit": limit}
    Result(task=task, protocol=told, figures=found, model_sha256=model.sha256).write(output)
    seconds = perf_counter() - started
    return (
        f"scored {found['tokens_scored']:,} tokens of {file.name}: {found['nats_per_token']:.4f} nats per token, "
        f"{found['bits_per_byte']:.4f} bits per byte; {found['tokens_scored'] / seconds:,.0f} tokens/s"
    )


# --- the text --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreparedText:
    """Documents as tokens, and what their text counts."""

    array: npt.NDArray[np.int32]
    """(n,) tokens of all documents, each after those that begin it."""
    sizes: npt.NDArray[np.int64]
    """(documents,) how many of these are each document's."""
    tokens: int
    """Of all documents, without those that were put before them."""
    words: int
    bytes: int

    @property
    def targets(self) -> int:
        """Tokens that have another one before them in their document."""
        return int(np.maximum(self.sizes - 1, 0).sum())


def prepared_text(
    text: str, tokenizer: LoadedTokenizer, options: TextPerplexity, limit: int | None, beginning: Beginning | None = None
) -> PreparedText:
    """The documents of a text, detokenised and encoded; what precedes the detokeniser is what words and bytes are counted in.

    Args:
        limit: only the first so many documents, where there are several.
        beginning: what is put before each document; None: what the options say of the tokenizer by itself.

    Raises:
        RelmError: as of `beginning_of`.
    """
    beginning = beginning or beginning_of(options.begin, tokenizer, None, options.first_token == "scored")
    texts = pages(text)[:limit] if options.documents == "level_1_headings" else [text]
    shown = [joined_rows(text)] if options.documents == "joined_rows" else texts
    ragged = encoded(tokenizer, [DETOKENISERS[options.detokeniser](document) for document in shown])
    array, sizes = put_before_each(beginning.ids, ragged.tokens, ragged.sizes.astype(np.int64))
    words = sum(map(WORDS[options.words], texts))
    return PreparedText(array, sizes, len(ragged.tokens), words, sum(len(document.encode()) for document in texts))


def pages(text: str) -> list[str]:
    """WikiText's pages, as the data set divides it that lm_eval reads, EleutherAI/wikitext_document_level.

    A page begins with a line that is a heading of the first level by its equals signs alone, wherever it stands: in the test
    file two lines of formulas are such, so that its 60 articles are 62 pages. White space before the first heading is no page.
    Between two pages a line end is lost.
    """
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        if _is_heading(line):
            found.append([])
        found[-1].append(line)
    joined = ["\n".join(lines) for lines in found]
    return [page for page in joined[:-1] if page.strip()] + joined[-1:]


def _is_heading(line: str) -> bool:
    """Whether a line is ` = Title = `, and not of another level, whose signs stand side by side: ` = = Title = = `."""
    marked = line.replace("= = =", "===").replace("= =", "==").strip()
    return marked.startswith("= ") and marked.endswith(" =")


def joined_rows(text: str) -> str:
    r"""The text as Hugging Face's page on perplexity makes it of the rows of its WikiText: `"\n\n".join(test["text"])`.

    A row is a line with its end, or nothing where the line is blank; so three line ends follow each line of text, and two each
    blank one.
    """
    lines = text.removesuffix("\n").split("\n")
    return "\n\n".join(f"{line}\n" if line.strip() else "" for line in lines)


def parts_between_single_spaces(text: str) -> int:
    """How often one space stands in the stripped text, as Megatron-LM counts words: their parts, minus one."""
    return len(text.strip().split(" ")) - 1


def parts_between_whitespace(text: str) -> int:
    """Parts between runs of white space, as lm_eval counts words: one more for each end of the text that has some."""
    return len(re.split(r"\s+", text))


WORDS: dict[str, Callable[[str], int]] = {
    "single_spaces": parts_between_single_spaces,
    "whitespace": parts_between_whitespace,
}


# --- the figures -----------------------------------------------------------------------------------------------------------


def _reach(model: CausalModel, options: TextPerplexity) -> tuple[int, int]:
    """Context and stride of the windows, for this model.

    Raises:
        RelmError: the model has fewer positions than the context, or any number of them and no context is given.
    """
    context = options.context or model.positions
    if context is None:
        raise RelmError(f"{model.folder}: takes texts of any length; say with context how many tokens it is to see")
    require_context(model, context)
    longest = options.longest_stride(context)
    return context, min(options.stride or longest, longest)


def mean_nats(scores: Scores, sequences: ScoredSequences, windows: Windows) -> float:
    """Mean of -ln P: of the windows' means, each with its weight."""
    sums = np.add.reduceat(scores.nats, sequences.offsets[:-1])
    return math.fsum(sums / windows.scored * windows.weights) / float(windows.weights.sum())


def figures(nats: float, text: PreparedText, windows: Windows) -> dict[str, float | int]:
    """All figures, from the mean over scored tokens; by word and by byte it stands for all tokens that could be scored.

    Where every such token is scored, and counts as much, that is the sum of their losses over words or bytes.
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


# --- in words --------------------------------------------------------------------------------------------------------------

COUNTED = {
    "perplexity": "e to the mean of nats; Megatron-LM and Graphcore's GPT-2 print none above e^20, here there is no bound",
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
    """How it was measured, in words and values."""
    reach = {"context": context, "stride": None if options.windows == "rolling" else stride}
    words = in_words(options, context, stride, beginning)
    return {"in_words": words, **names, **options.model_dump(), **beginning.record(), **reach, **COUNTED}


def _first(options: TextPerplexity, beginning: Beginning) -> str:
    """Return a sentence, without its full stop, on what is put before a document and which of its tokens are scored."""
    if beginning.every_window is not None:
        return f"Every window begins with {beginning.names[0]}, which counts in its length and is not scored"
    if options.first_token == "given":
        which = "of which the first" if len(beginning.names) > 1 else "which"
        put = f"Each document begins with {' '.join(beginning.names)}, {which}" if beginning.names else "The first token"
        return f"{put} is not scored"
    prefix, *added = beginning.names
    after = "an end of text" if prefix in SPECIAL_TOKENS["end_of_text"] else prefix
    return f"The first token is scored, after {after}" + (f"; it is {added[0]}, which the tokenizer adds" if added else "")


def in_words(options: TextPerplexity, context: int, stride: int, beginning: Beginning) -> str:
    """The protocol in two sentences."""
    text = "The text as it is" if options.detokeniser == "none" else "The text, detokenised as Megatron-LM and lm_eval do"
    windows = _WINDOWS[options.windows].format(context=context, stride=stride)
    return f"{text}, {_DOCUMENTS[options.documents]}: {windows}. {_first(options, beginning)}; {_WORDS[options.words]}."
