"""The small committed text as the originals read it: one sentence a line, blank lines between documents."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prose_sample import DATA, blocks_of, save_byte_level, save_wordpiece, words_of

from relm.examples.as_published.pairs import Corpus
from relm.examples.as_published.tables import read_documents
from small_project import CHECKOUT

MakeCorpus = Callable[[Path, Path], Corpus]


@pytest.fixture(scope="session")
def blocks() -> list[str]:
    """The documents of the committed text."""
    return blocks_of((DATA / "prose-sample.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def words() -> list[str]:
    """The tokens of the committed vocabulary, by id."""
    return words_of(DATA / "prose-vocabulary.txt")


@pytest.fixture
def wordpiece(tmp_path: Path, words: list[str]) -> Path:
    """A tokenizer with the committed vocabulary."""
    return save_wordpiece(words, tmp_path / "wordpiece" / "tokenizer.json")


@pytest.fixture
def byte_level(tmp_path: Path) -> Path:
    """A tokenizer like RoBERTa's."""
    return save_byte_level(tmp_path / "byte_level" / "tokenizer.json")


@pytest.fixture
def goldens() -> Path:
    """Instances that the originals' own functions made, where they are present."""
    folder = CHECKOUT.parent / "shared" / "goldens"
    if not folder.is_dir():
        pytest.skip("the goldens of ../shared/goldens are not on this machine")
    return folder


@pytest.fixture
def make_corpus() -> Iterator[MakeCorpus]:
    """Tokenizes a file of documents, a sentence a line, as the steps do."""
    with contextlib.ExitStack() as stack:

        def make(documents: Path, tokenizer: Path) -> Corpus:
            return stack.enter_context(read_documents(documents, tokenizer, "lines", "en", 1)).corpus

        yield make
