"""A baseline without a model: each word's most frequent form with diacritics in the training text."""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from relm.corpus.workers import ordered_map
from relm.evaluation.diacritics.diacritics_scoring import WORD, letters_of, plain
from relm.evaluation.diacritics.table_texts import Texts
from relm.examples.diacritics import without_diacritics
from relm.examples.sharded_tables import ExampleTables
from relm.examples.tokenization.tokenizer_files import loaded_as
from relm.limits import usable_cores
from relm.progress import ProgressBar

# With fewer blocks each, workers take longer to start than to count.
BLOCKS_A_WORKER = 64


@dataclass
class Forms:
    """Counts of each form of some words in a training text, whatever the case."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """A word reduced by `plain` -> its forms, in lower case, with their counts."""
    words: int = 0
    """Number of all words of the training text."""

    @functools.cached_property
    def ambiguous(self) -> frozenset[str]:
        """Words without diacritics that have more than one form."""
        return frozenset(word for word, forms in self.counts.items() if len(forms) > 1)

    @functools.cached_property
    def likeliest(self) -> dict[str, str]:
        """The most frequent form of each word, of equally frequent ones the first by code points."""
        return {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in self.counts.items()}

    def restore(self, text: str) -> str:
        """Replace each word of a text without diacritics by its most frequent form in training, if any, in the same case."""
        return WORD.sub(self._restore_word, text)

    def _restore_word(self, found: re.Match[str]) -> str:
        word = found[0]
        form = self.likeliest.get(plain(word))
        if form is None:
            return word
        letters = zip(letters_of(word), letters_of(form), strict=True)
        return "".join(_in_the_same_case(letter, restored) for letter, restored in letters)


def _in_the_same_case(letter: str, restored: str) -> str:
    if restored == letter.lower():
        return letter
    return restored.upper() if letter.isupper() else restored


def count_forms(texts: Iterable[str]) -> Counter[str]:
    """Count each word, in lower case, of texts in standard letters."""
    return Counter(WORD.findall("\n".join(texts).lower()))


def collect_forms(counted: Iterable[Counter[str]], wanted: Set[str]) -> Forms:
    """Return the forms of the wanted words, reduced by `plain`, from the counts of each part of the training text."""
    forms = Forms()
    for counts in counted:
        forms.words += counts.total()
        for form, count in counts.items():
            if (word := without_diacritics(form)) in wanted:
                forms.counts.setdefault(word, Counter())[form] += count
    return forms


class Training(NamedTuple):
    """Paths and checksums of the training text, for every worker."""

    manifest: Path
    """Manifest of pairs, whose targets are the text."""
    manifest_sha256: str
    tokenizer: Path
    tokenizer_sha256: str
    language: str


def count_training_forms(training: Training, wanted: Set[str], workers: int | None = None) -> Forms:
    """Return the forms in the training split of the wanted words, reduced by `plain`, for any count of workers."""
    ExampleTables(training.manifest, "train")  # compares all shards with the manifest, so that workers need not
    texts = _texts(training)
    team = min(usable_cores() if workers is None else workers, 1 + texts.blocks // BLOCKS_A_WORKER)
    counted = ordered_map(functools.partial(count_block, training), range(texts.blocks), team, "counting training words")
    with (
        contextlib.closing(counted),
        ProgressBar(counted, total=texts.blocks, unit=" blocks of training text", disable=None) as bar,
    ):
        return collect_forms(bar, wanted)


def count_block(training: Training, number: int) -> Counter[str]:
    """Count the words of one block of the training text."""
    return count_forms(_texts(training).block(number))


@functools.lru_cache(maxsize=1)
def _texts(training: Training) -> Texts:
    loaded = loaded_as(training.tokenizer, training.tokenizer_sha256)
    return Texts(ExampleTables(training.manifest, "train", check_content=False), loaded, training.language)
