"""The compiled passes over text give the result of the Python code that they stand in for."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sanitized import run_sanitized

from relm.corpus import compiled
from relm.corpus.documents import count_words
from relm.corpus.wikipedia.dump import Page
from relm.corpus.wikipedia.lines import collect_lines
from relm.corpus.wikipedia.links import replace_links
from relm.corpus.wikipedia.markup import extract_plain_text
from relm.corpus.wikipedia.names import names_of
from relm.corpus.wikipedia.quotes import remove_quotes
from relm.corpus.wikipedia.spaces import tidy_spaces
from small_dumps import Dump
from small_project import CHECKOUT

pytestmark = pytest.mark.skipif(compiled.tidy_spaces is None, reason="no C compiler was there when the environment was made")

SOURCE = CHECKOUT / "src" / "relm" / "corpus" / "text_passes.c"
SAMPLE = CHECKOUT / "tests" / "data" / "enwiki-sample.xml.bz2"
NAMES = names_of("en")
PASSES: dict[str, Callable[[str], object]] = {
    "count_words": count_words,
    "remove_quotes": remove_quotes,
    "replace_links": lambda text: replace_links(text, NAMES.hidden),
    "collect_lines": lambda text: collect_lines(text, NAMES.sections),
    "tidy_spaces": tidy_spaces,
}
COMMON = ["a", "word", "7", "é", "漢", " ", " ", "\n", "\n"]
PIECES = {
    "count_words": ["\t", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u202f", "\u205f", "\u3000", "\ufeff"],
    "remove_quotes": ["'", "''", "'''", "''''", "'''''", "''''''", " b", "x "],
    "replace_links": [
        "[", "[[", "[[[", "]", "]]", "]]]", "|", "||", ":", "fr:", "File:a.png", "Category:", "wikt:", " (b)",
        "\n ", "\n[[#", "[[//a b", "[[http://a",
    ],
    "collect_lines": [
        "\n", "\n\n", "* ", "*", "# ", ": ", "; ", "== ", " ==", "=", "=== B ===\n", "== C ==\n", "\n== See also ==\n",
        "\n==== D: ====\n", "\n====== E ======\n", "\n======= F =======\n", "\n= References: =\n", "----", "-", "|", "{|", "{{",
        "! ", "   ", "\t", "___", "\xa0", "\x00", "\x1f", "\n\x1f", "\n ", "----a", "|}", "}}",
    ],
    "tidy_spaces": [
        "(", ")", " )", "( ", "(,", "(; ", ",", ";", ":", ".", " ,", " .", " , ", "/", "|", "-", "–", "—", "\t", "\r", "\xa0",
        "\u2009", "\u202f", "\u3000", "\u2010", "\xa3", "  ", "\n ", " \n", "\x0b", "\x00",
    ],
}  # fmt: skip
TEXTS = 1500


def in_python(function: Callable[[str], object], text: str, monkeypatch: pytest.MonkeyPatch) -> object:
    """Return the result of only the Python code."""
    with monkeypatch.context() as patch:
        for name in PASSES:
            patch.setattr(compiled, name, None)
        return function(text)


def random_texts(pieces: list[str], chance: random.Random) -> Iterator[str]:
    for _ in range(TEXTS):
        yield "".join(chance.choices([*COMMON, *pieces, *pieces], k=chance.randrange(40)))


@pytest.mark.parametrize("name", PASSES)
def test_any_text_has_the_result_of_the_python_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = PASSES[name]
    for text in random_texts(PIECES[name], random.Random(name)):
        assert apply(text) == in_python(apply, text, monkeypatch), ascii(text)


def test_every_character_is_a_space_or_none_as_for_str_split() -> None:
    characters = [chr(code) for code in range(0x3100)]
    assert [one for one in characters if count_words(f"a{one}b") != len(f"a{one}b".split())] == []


def test_pages_of_a_wikipedia_have_the_same_text_whole_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(8)
    pages = [page.wikitext for page in Dump(SAMPLE, ends_mid_page=True) if isinstance(page, Page)]
    for page in pages[:60]:
        for text in (page, page[chance.randrange(len(page)) :]):
            assert extract_plain_text(text) == in_python(extract_plain_text, text, monkeypatch)


def test_errors_of_the_python_code_and_texts_that_are_none_arrive() -> None:
    def fail(*_: str) -> str:
        raise KeyError("mine")

    def answer_five(*_: str) -> int:
        return 5

    for name, arguments in (
        ("replace_links", ("[[a:b]]", fail)),
        ("remove_quotes", ("''a '''b", fail)),
        ("collect_lines", ("== a ==", fail, fail)),
        ("collect_lines", ("-é", fail, fail)),
    ):
        with pytest.raises(KeyError, match="mine"):
            getattr(compiled, name)(*arguments)
    for name, arguments in (
        ("replace_links", ("[[a:b]]", answer_five)),
        ("remove_quotes", ("''a '''b", answer_five)),
        ("tidy_spaces", (b"a",)),
    ):
        with pytest.raises(TypeError):
            getattr(compiled, name)(*arguments)
    with pytest.raises(UnicodeEncodeError):
        tidy_spaces("\ud800")


FUZZ = """
import random, sys
import relm_text_passes as passes
chance = random.Random(6)
pieces = sys.argv[2:] + ["\\x00"]
heading = lambda line: (min(len(line), 6), line, len(line) % 3 == 0) if len(line) % 2 else None
for _ in range(int(sys.argv[1])):
    text = "".join(chance.choices(pieces, k=chance.randrange(80)))
    passes.count_words(text)
    passes.remove_quotes(text, str.upper)
    passes.replace_links(text, lambda target, bar, label: label + "[[x]]" * chance.randrange(3))
    passes.collect_lines(text, heading, lambda line: len(line) % 2)
    passes.tidy_spaces(text)
print("sound")
"""


def test_no_text_makes_them_read_or_write_outside_their_memory(tmp_path: Path) -> None:
    pieces = {piece for some in (*PIECES.values(), COMMON) for piece in some if piece != "\x00"}
    run_sanitized(SOURCE, FUZZ, tmp_path, "8000", *sorted(pieces))
