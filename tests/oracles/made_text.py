"""A small text that both sides of an oracle make by themselves, the same for ever: numpy promises RandomState's draws."""

from typing import List

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
