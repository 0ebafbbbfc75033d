"""Wikipedia dumps that are damaged or made to harm: a plain error with the line, or the page is skipped and counted."""

import resource
from pathlib import Path

import pytest

from relm.corpus.documents import Skipped
from relm.corpus.extract import extract
from relm.corpus.wikipedia import dump as wikipedia
from relm.corpus.wikipedia.dump import Page, SeenPages
from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from small_dumps import Dump

SURFACE = "Wikipedia dumps"


def page(number: int | str, title: str = "T", text: str = "Some text of an article.") -> str:
    return f"<page><title>{title} {number}</title><ns>0</ns><id>{number}</id><revision><text>{text}</text></revision></page>\n"


def dump(pages: str, namespaces: str = "") -> str:
    return f"<mediawiki><siteinfo><namespaces>{namespaces}</namespaces></siteinfo>\n{pages}</mediawiki>\n"


# Content -> a part of the error.
REFUSED = {
    "key of a namespace is text": (
        dump("", '<namespace key="x">Talk</namespace>'),
        "<namespace>: key: expected a whole number, found 'x'",
    ),
    "key of a namespace is empty": (
        dump("", '<namespace key="">Talk</namespace>'),
        "<namespace>: key: expected a whole number, found ''",
    ),
    "key of 5,000 digits": (dump("", f'<namespace key="{"9" * 5000}">T</namespace>'), "expected a whole number"),
    "no title": (dump("<page><ns>0</ns><id>1</id></page>"), "a <page> without <title> or <id> ends here"),
    "no id": (dump("<page><title>T</title><ns>0</ns></page>"), "a <page> without <title> or <id> ends here"),
    "absurd nesting": (dump("<a>" * 10_000), "<a> is 50 elements deep"),
    "entities that grow": ('<!DOCTYPE a [<!ENTITY b "cc">]>' + dump(page(1)), "expected a MediaWiki dump"),
    "another root": ("<html><body/></html>", "expected a MediaWiki dump"),
    "page never ends": (dump(page(1))[:-40], "ends too early"),
    "text of gigabytes": (dump(page(1, text="x" * 5000)), "<text> has more than 1,000 characters"),
    "tag that never ends": (dump("")[:-14] + f'<page name="{"x" * 5000}', "a tag or a comment never ends"),
    "comment that never ends": (dump("")[:-14] + f"<!-- {'x' * 5000}", "a tag or a comment never ends"),
    "page in a page": (dump(f"<page><title>T 1</title><id>1</id>{page(2)}</page>"), "a <page> begins inside another"),
    "closed twice": (dump("</page></page>"), "not well-formed XML"),
    "characters that are none": (dump(page(1, text="&#0;")), "not well-formed XML"),
}
# Content -> the entries that are read from it.
SURVIVED = {
    "doubled page": (dump(page(1) + page(2) + page(1)), ["T 1", "T 2", "doubled"]),
    "doubled page under another title": (dump(page(1) + page(1, "Other")), ["T 1", "doubled"]),
    "ids that are no numbers": (dump(page("x") + page("y") + page("x")), ["T x", "T y", "doubled"]),
    "negative and huge ids": (dump(page(-1) + page(10**17) + page("9" * 30) + page(-1)), ["T -", "T 1", "T 9", "doubled"]),
    "namespace without a key": (dump(page(1), "<namespace>Talk</namespace>"), ["T 1"]),
    "unknown elements": (dump("<x><y/></x>" + page(1)), ["T 1"]),
}


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of a test's size in place of some MiB."""
    monkeypatch.setattr(wikipedia, "LONGEST_TEXT", 1000)
    monkeypatch.setattr(wikipedia, "LONGEST_TAG", 2000)


def written(folder: Path, content: str) -> Path:
    (folder / "dump.xml").write_text(content)
    return folder / "dump.xml"


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_dump_is_refused_by_a_plain_error(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError) as refused:
        list(Dump(written(tmp_path, content)))
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/dump.xml: ")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(("content", "expected"), SURVIVED.values(), ids=SURVIVED)
def test_the_rest_of_a_strange_dump_is_read(content: str, expected: list[str], tmp_path: Path) -> None:
    entries = list(Dump(written(tmp_path, content)))
    assert [entry.title[:3] if isinstance(entry, Page) else entry.reason for entry in entries] == expected


def test_a_doubled_page_is_counted_apart_from_the_documents(tmp_path: Path) -> None:
    source = written(tmp_path, dump("".join(map(page, range(1, 40))) + page(7)))
    remote = {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org/a"}]}
    content = {"title": "t", "licence": "l", "language": "en", "format": "mediawiki_xml", "held_out_one_in": 2}
    dataset = Dataset.model_validate({**content, "files": {"dump.xml": remote}})
    sentence = extract(dataset, source, {"train": tmp_path / "a", "held_out": tmp_path / "b"}, None, workers=1)
    assert "39 " in sentence
    assert "doubled 1" in sentence


def test_ids_of_articles_take_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = SeenPages()
    assert all(seen.add(str(number)) for number in (1, 80_000_000, (1 << 30) - 1, 1 << 30, 1 << 62))
    assert not any(seen.add(str(number)) for number in (80_000_000, 1 << 62))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    assert Skipped("doubled").reason == "doubled"
