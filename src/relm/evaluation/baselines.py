"""Unigram and bigram losses on the scored tokens, which a language model must beat to have learnt anything.

The unigram level is the entropy of the scored tokens themselves: no model of single tokens can do better. The bigram level is
an interpolated Kneser-Ney model (Kneser and Ney 1995; Chen and Goodman 1999, section 4.1) of pairs of training tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relm.examples.storage import TokenStream

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Tokens counted or scored at once; they and the distinct pairs bound the memory.
BLOCK = 2**22
# Pairs are counted in the first tokens of the training stream; more of them move only the third decimal of the level.
LARGEST_TRAINING = 2**26
# Where counts of counts give no estimate (a tiny corpus), any discount between 0 and 1 is a proper model.
FALLBACK_DISCOUNT = 0.5


def blocks(stream: TokenStream, limit: int) -> Iterator[Tokens]:
    """Yield the first `limit` tokens of a stream in blocks; each repeats the last token of the one before."""
    end = min(len(stream), limit)
    for start in range(0, end - 1, BLOCK):
        yield stream.tokens(start, min(start + BLOCK + 1, end))


def unigram_entropy(scored: Iterable[Tokens], vocabulary_size: int) -> float:
    """Return the entropy in nats of the tokens of overlapping blocks, without the first token of the stream."""
    counts = np.zeros(vocabulary_size, dtype=np.int64)
    for block in scored:
        counts += np.bincount(block[1:], minlength=vocabulary_size)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@dataclass(frozen=True)
class BigramModel:
    """An interpolated Kneser-Ney model of pairs of tokens.

    P(w | v) = max(c(v w) - D, 0) / c(v) + D types(v) / c(v) Q(w). Here c counts in training, and types(v) is the count of
    different tokens that follow v. D = n1 / (n1 + 2 n2), where n1 and n2 count the pairs seen once and twice. Q is the same
    construction one order lower: over the counts of different tokens that precede w, interpolated with the uniform
    distribution. After a v that training never saw, P is Q. Every token has a probability above 0, and they sum to 1.
    """

    vocabulary_size: int
    pairs: Tokens
    """v * vocabulary_size + w for every pair seen, sorted."""
    counts: Tokens
    """c(v w) for each of them."""
    context_counts: Tokens
    """c(v), (vocabulary,)."""
    context_types: Tokens
    """types(v), (vocabulary,)."""
    discount: float
    lower: Floats
    """Q, (vocabulary,)."""

    @classmethod
    def estimated(cls, training: Iterable[Tokens], vocabulary_size: int) -> "BigramModel":
        """Return the model estimated on overlapping blocks of training tokens."""
        pairs, counts = _pair_counts(training, vocabulary_size)
        previous, following = np.divmod(pairs, vocabulary_size)
        return cls(
            vocabulary_size,
            pairs,
            counts,
            context_counts=np.bincount(previous, weights=counts, minlength=vocabulary_size).astype(np.int64),
            context_types=np.bincount(previous, minlength=vocabulary_size),
            discount=_discount(counts),
            lower=_interpolated_with_uniform(np.bincount(following, minlength=vocabulary_size)),
        )

    def probabilities(self, previous: Tokens, following: Tokens) -> Floats:
        """Return P(following | previous), elementwise."""
        wanted = previous * self.vocabulary_size + following
        indices = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        counts = np.where(self.pairs[indices] == wanted, self.counts[indices], 0)
        totals = self.context_counts[previous]
        seen = np.maximum(counts - self.discount, 0.0) / np.maximum(totals, 1)
        left_over = np.where(totals > 0, self.discount * self.context_types[previous] / np.maximum(totals, 1), 1.0)
        probabilities: Floats = seen + left_over * self.lower[following]
        return probabilities

    def nats(self, scored: Iterable[Tokens]) -> float:
        """Return the sum of -ln P over the tokens of overlapping blocks, without the first token of the stream."""
        return float(sum(-np.log(self.probabilities(block[:-1], block[1:])).sum() for block in scored))


def _pair_counts(training: Iterable[Tokens], vocabulary_size: int) -> tuple[Tokens, Tokens]:
    pairs = counts = np.empty(0, dtype=np.int64)
    for block in training:
        found, times = np.unique(block[:-1] * vocabulary_size + block[1:], return_counts=True)
        pairs, indices = np.unique(np.concatenate([pairs, found]), return_inverse=True)
        counts = np.bincount(indices, weights=np.concatenate([counts, times])).astype(np.int64)
    return pairs, counts


def _discount(counts: Tokens) -> float:
    """Return n1 / (n1 + 2 n2), after Ney, Essen and Kneser 1994."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once and twice else FALLBACK_DISCOUNT


def _interpolated_with_uniform(counts: Tokens) -> Floats:
    discount, total = _discount(counts), counts.sum()
    left_over = discount * np.count_nonzero(counts) / total
    shares: Floats = np.maximum(counts - discount, 0.0) / total + left_over / len(counts)
    return shares
