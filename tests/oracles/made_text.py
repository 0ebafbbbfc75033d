"""A small text that both sides of an oracle make by themselves, the same for ever: numpy promises RandomState's draws."""

import lzma
from pathlib import Path
from typing import List, Tuple

import numpy as np

WORDS = str.split(
    "ana are mere multe și pere coapte în coșul de pe masă iar vântul bate tare peste câmp când fata cântă nota si "
    "the wind of a night was over all them who had no light in it but stars"
)


def make_documents(count: int, seed: int) -> List[List[str]]:
    """Return documents, each a list of one to five sentences."""
    draws = np.random.RandomState(seed)
    return [[make_sentence(draws) for _ in range(draws.randint(1, 6))] for _ in range(count)]


def make_sentence(draws: np.random.RandomState) -> str:
    """Return a sentence of two to eight words, of which the first are the most frequent."""
    words = [WORDS[number % len(WORDS)] for number in draws.zipf(1.3, draws.randint(2, 9))]
    return " ".join(words).capitalize() + "."


def make_articles(count: int, seed: int) -> List[List[str]]:
    """Return articles as WikiText has them, each a list of lines, of which some are blank and some are headings."""
    draws = np.random.RandomState(seed)
    articles = []
    for number in range(count):
        lines = ["", f" = {WORDS[number % len(WORDS)].capitalize()} = ", ""]
        for _ in range(draws.randint(2, 6)):
            lines += [f" {' '.join(make_sentence(draws) for _ in range(draws.randint(1, 4)))} ", ""]
        articles.append(lines)
    return articles


def make_token_documents(count: int, vocabulary: int, seed: int) -> List[List[int]]:
    """Return documents of token ids from 1 to `vocabulary` - 1, most of them short and some very long or empty."""
    draws = np.random.RandomState(seed)
    sizes = np.minimum(draws.lognormal(3.5, 1.3, count), 5000).astype(int)
    return [draws.randint(1, vocabulary, size).tolist() for size in sizes]


def wikitext_lines(data: Path) -> List[str]:
    """Return the lines of WikiText-2's validation text that are not blank, from the folder of shared data."""
    text = lzma.decompress((data / "wikitext-2-raw" / "wiki.valid.raw.xz").read_bytes()).decode()
    return [line for line in text.split("\n") if line.strip()]


def wordpieces() -> List[str]:
    """Return a vocabulary of WordPiece for the text, by id: special tokens, letters, their continuations, and words."""
    letters = sorted(set("".join(WORDS)) | set("=.0123456789"))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return [*special, *letters, *(f"##{letter}" for letter in letters), *sorted(word for word in set(WORDS) if len(word) > 3)]


def make_lines(count: int, words: int, seed: int) -> List[str]:
    """Return `count` texts of `words` words, without an end."""
    draws = np.random.RandomState(seed)
    return [" ".join(WORDS[number % len(WORDS)] for number in draws.zipf(1.3, words)) for _ in range(count)]


def unigrams() -> List[Tuple[str, float]]:
    """Return a vocabulary of SentencePiece's Unigram for the text, by id: special tokens, pieces of words and letters."""
    letters = sorted(set("".join(WORDS)) | set("aist"))
    words = sorted({f"\u2581{word}" for word in WORDS[:20]})
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return [*special, ("\u2581", -3.0), *((word, -6.0) for word in words), *((letter, -4.0) for letter in letters)]
