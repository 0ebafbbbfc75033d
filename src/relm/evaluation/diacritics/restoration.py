"""Outputs of a model for the sources of texts of any length."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from relm.evaluation.diacritics.text_to_text import TextToTextModel, write_texts
from relm.examples.causal import with_end_of_text
from relm.examples.columns import Ragged
from relm.examples.diacritics import with_standard_letters, without_diacritics
from relm.examples.seq2seq import Seq2SeqExamples
from relm.examples.tokenization.encoder import TextEncoder
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.progress import ProgressBar


@dataclass
class Restored:
    """The output of a model for one text."""

    parts: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of a part of the text and the model's output for its source."""
    truncated: bool = False
    """True if the model did not end its output for a part."""

    @property
    def output(self) -> str:
        """Return the outputs of all parts."""
        return " ".join(text for _, text in self.parts)


@dataclass(frozen=True)
class Restorer:
    """A model that restores texts from their sources."""

    model: TextToTextModel
    loaded: LoadedTokenizer
    examples: Seq2SeqExamples
    """Examples with the lengths of source and target."""
    language: str
    batch_tokens: int

    def restore(self, texts: Sequence[str], bar: "ProgressBar | None" = None) -> list[Restored]:
        """Return the model's output for each text, which is its expected output.

        A text whose source or target does not fit is divided into parts, and the progress bar's total grows.
        """
        numbers, parts, sources = self._divide_to_fit(texts)
        if bar is not None and bar.total is not None:
            bar.total += len(parts) - len(texts)
        written, ended = write_texts(
            self.model,
            sources,
            self.examples.source_length,
            self.examples.target_length,
            self.examples.end_of_text_id,
            self.batch_tokens,
            int if bar is None else bar.update,
        )
        outputs = self.loaded.tokenizer.decode_batch([tokens.tolist() for tokens in written], skip_special_tokens=True)
        found = [Restored() for _ in texts]
        for number, part, output, has_ended in zip(numbers, parts, outputs, ended.tolist(), strict=True):
            found[number].parts.append((part, with_standard_letters(output, self.language)))
            found[number].truncated |= not has_ended
        return found

    def _divide_to_fit(self, texts: Sequence[str]) -> tuple[list[int], list[str], Ragged]:
        """Return the index of each part's text, the parts of the texts that fit, and their sources."""
        parts = list(enumerate(texts))
        while True:
            sources, fits = self._encode([text for _, text in parts])
            pieces = [[text] if fit else halves(text) for (_, text), fit in zip(parts, fits, strict=True)]
            if len(parts) == sum(map(len, pieces)):
                return [number for number, _ in parts], [text for _, text in parts], sources
            parts = [(number, text) for (number, _), cut in zip(parts, pieces, strict=True) for text in cut]

    def _encode(self, texts: Sequence[str]) -> tuple[Ragged, list[bool]]:
        """Return the sources, each with its end of text, and whether source and target fit."""
        tokens, sizes = TextEncoder(self.loaded.tokenizer, fast=False).encoded([*map(without_diacritics, texts), *texts])
        source_sizes, target_sizes = np.split(sizes, 2)
        fits = (source_sizes < self.examples.source_length) & (target_sizes < self.examples.target_length)
        tokens, sizes = with_end_of_text(tokens[: source_sizes.sum()], source_sizes, self.examples.end_of_text_id)
        return Ragged(tokens, sizes.astype(np.int64)), fits.tolist()


def halves(text: str) -> list[str]:
    """Divide a text at the white space nearest to its middle, or at its middle; a single character stays undivided.

    >>> halves("one two three")
    ['one two', 'three']
    """
    middle = len(text) / 2
    spaces = [found.span() for found in re.finditer(r"(?<=\S)\s+(?=\S)", text)]
    start, end = min(spaces, key=lambda span: abs(sum(span) / 2 - middle), default=(len(text) // 2,) * 2)
    return [text[:start], text[end:]] if start else [text]
