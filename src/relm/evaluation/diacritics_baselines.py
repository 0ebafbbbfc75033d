"""What can be had without a model: for each word the form with diacritics that the training text has most often."""

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from relm.corpus.workers import ordered_map
from relm.evaluation.diacritics_scoring import WORD, letters_of, plain
from relm.evaluation.table_texts import Texts
from relm.examples.diacritics import without_diacritics
from relm.examples.table import ExampleTables
from relm.examples.tokenizers import loaded_as
from relm.limits import usable_cores

# With less for each, workers take longer to start than to count.
BLOCKS_A_WORKER = 64


@dataclass
class Forms:
    """How often a training text has each form of some words, upper and lower case taken together."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """A word as `plain` gives it -> its forms, in lower case, with their counts."""
    words: int = 0
    """All words of the training text."""

    @functools.cached_property
    def ambiguous(self) -> frozenset[str]:
        """Words without diacritics that have more than one form."""
        return frozenset(word for word, forms in self.counts.items() if len(forms) > 1)

    @functools.cached_property
    def likeliest(self) -> dict[str, str]:
        """The most frequent form of each word; of equally frequent ones the first in the order of code points."""
        return {word: min(forms, key=lambda form: (-forms[form], form)) for word, forms in self.counts.items()}

    def restored(self, text: str) -> str:
        """A text without diacritics, each word in its most frequent form; words that training never had stay as they are.

        What is upper case stays so.
        """
        return WORD.sub(self._restored_word, text)

    def _restored_word(self, found: re.Match[str]) -> str:
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


def form_counts(texts: Iterable[str]) -> Counter[str]:
    """How often texts in standard letters have each word, in lower case."""
    return Counter(WORD.findall("\n".join(texts).lower()))


def forms_of(counted: Iterable[Counter[str]], wanted: Set[str]) -> Forms:
    """The forms of some words; of all others nothing is kept, so that memory is bounded by these words' forms.

    Args:
        counted: as `form_counts` counts parts of the training text.
        wanted: words as `plain` gives them.
    """
    forms = Forms()
    for counts in counted:
        forms.words += counts.total()
        for form, count in counts.items():
            if (word := without_diacritics(form)) in wanted:
                forms.counts.setdefault(word, Counter())[form] += count
    return forms


class Training(NamedTuple):
    """Where the training text is: what a worker is told."""

    manifest: Path
    """Of pairs, whose targets are the text."""
    manifest_sha256: str
    tokenizer: Path
    tokenizer_sha256: str
    language: str


def training_forms(training: Training, wanted: Set[str], workers: int | None = None) -> Forms:
    """The forms that the training split has of some words.

    Args:
        wanted: words as `plain` gives them.
        workers: processes; None: as many as there are cores. They change nothing.

    Raises:
        RelmError: there is no training split, a shard is not the manifest's, or a worker was killed.
    """
    ExampleTables(training.manifest, "train")  # compares all of it with the manifest, which workers need not
    texts = _texts(training)
    team = min(usable_cores() if workers is None else workers, 1 + texts.blocks // BLOCKS_A_WORKER)
    counted = ordered_map(functools.partial(block_counts, training), range(texts.blocks), team, "counting training words")
    with (
        contextlib.closing(counted),  # type: ignore[type-var]
        tqdm(counted, total=texts.blocks, unit=" blocks of training text", disable=None) as bar,
    ):
        return forms_of(bar, wanted)


def block_counts(training: Training, number: int) -> Counter[str]:
    """The words of one block of the training text."""
    return form_counts(_texts(training).block(number))


@functools.lru_cache(maxsize=1)
def _texts(training: Training) -> Texts:
    loaded = loaded_as(training.tokenizer, training.tokenizer_sha256)
    return Texts(ExampleTables(training.manifest, "train", check_content=False), loaded, training.language)
