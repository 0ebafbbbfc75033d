import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from relm.corpus.documents import Skipped
from relm.corpus.wikipedia.dump import Page
from relm.corpus.wikipedia.names import names_of
from relm.errors import RelmError
from small_dumps import Dump, articles, dump, page, written


def read(tmp_path: Path, content: str | bytes, ends_mid_page: bool = False) -> list[Page | Skipped]:
    return list(Dump(written(tmp_path, content), ends_mid_page))


def read_until_fault(path: Path) -> tuple[list[Page | Skipped], str]:
    found: list[Page | Skipped] = []
    with pytest.raises(RelmError) as raised:
        found.extend(Dump(path))
    return found, str(raised.value)


def test_articles_are_read_in_order_with_their_entities_decoded(tmp_path: Path) -> None:
    content = dump(page("AT&T", "a < b &amp;nbsp; &lt;br&gt;", 5), page("Ö", "zwei\nZeilen", 6))
    assert read(tmp_path, content) == [Page("5", "AT&T", "a < b &amp;nbsp; &lt;br&gt;"), Page("6", "Ö", "zwei\nZeilen")]


def test_redirects_other_namespaces_and_empty_pages_are_skipped_by_reason(tmp_path: Path) -> None:
    content = dump(
        page("A", "#Redirect [[B]]"),
        page("B", "#REDIRECT: [[C]]"),
        page("C", "#ПРЕНАСОЧВАНЕ [[D]]", extra='<redirect title="D" />'),
        page("Talk:A", "hello", ns=1),
        page("D", " \n"),
        page("E", "text"),
        page("F", "# redirects are not meant by this list item"),
    )
    reasons = [entry.reason if isinstance(entry, Skipped) else entry.title for entry in read(tmp_path, content)]
    assert reasons == ["redirects", "redirects", "redirects", "other_namespaces", "empty", "E", "F"]


def test_without_ns_the_title_gives_the_namespace(tmp_path: Path) -> None:
    others = [
        "Talk:A",
        "User talk:B",
        "Wikipedia:C",
        "Image:D",
        "MediaWiki talk:E",
        "template:F",
        "Portal_talk:G",
        "WP:H",
        "Foo:I",
    ]
    kept = ["2001: A Space Odyssey", "Userland:X", ":x", "Talk", "Café: il caffè"]
    content = dump(*(page(title, "x", ns=None) for title in others + kept), namespaces='<namespace key="104">Foo</namespace>')
    found = read(tmp_path, content)
    assert found[: len(others)] == [Skipped("other_namespaces")] * len(others)
    assert [entry.title for entry in found[len(others) :] if isinstance(entry, Page)] == kept


def test_with_ns_the_title_does_not_matter(tmp_path: Path) -> None:
    assert read(tmp_path, dump(page("Portal: Still Alive", "x", 1))) == [Page("1", "Portal: Still Alive", "x")]


def test_the_header_names_the_namespaces_whose_links_show_nothing(tmp_path: Path) -> None:
    names = '<namespace key="0" /><namespace key="6">Файл</namespace><namespace key="14">Категория</namespace>'
    reader = Dump(written(tmp_path, dump(page("A", "x"), namespaces=names)))
    next(iter(reader))
    assert reader.wiki.names.hidden == {"file", "image", "media", "category", "файл", "категория"}


def test_redirects_and_names_are_those_of_the_language_that_the_dump_states(tmp_path: Path) -> None:
    content = dump(page("A", "#RINVIA [[B]]"), page("B", "#REDIRECT [[C]]"), page("C", "#RINVIATO [[D]]"))
    reader = Dump(written(tmp_path, content.replace('xml:lang="en"', 'xml:lang="it"')))
    assert [type(entry) for entry in reader] == [Skipped, Skipped, Page]
    assert reader.wiki.names.language == "it"
    assert len([entry for entry in read(tmp_path, content) if isinstance(entry, Page)]) == 2
    assert names_of("xx-unknown")._replace(language="en") == names_of("en")


def test_only_the_latest_revision_counts(tmp_path: Path) -> None:
    def revision(day: int, text: str) -> str:
        return (
            f"<revision><id>{day}</id><timestamp>2020-01-0{day}T00:00:00Z</timestamp><contributor><id>77</id></contributor>"
            f"<text>{text}</text></revision>"
        )

    history = revision(2, "second") + revision(5, "last") + revision(3, "third")
    content = dump(f"<page><title>A</title><ns>0</ns><id>4</id>{history}</page>")
    assert read(tmp_path, content) == [Page("4", "A", "last")]
    deleted = revision(1, "old") + "<revision><timestamp>2020-01-09T00:00:00Z</timestamp><text deleted='deleted'/></revision>"
    assert read(tmp_path, dump(f"<page><title>A</title><id>4</id>{deleted}</page>")) == [Skipped("empty")]


def test_scripts_and_tables_of_data_are_no_articles(tmp_path: Path) -> None:
    def revision(model: str) -> str:
        return f"<revision><model>{model}</model><format>text/x</format><text>{model} x</text></revision>"

    pages = [f"<page><title>{n}</title><ns>0</ns><id>{n}</id>{revision(m)}</page>" for n, m in enumerate(MODELS)]
    assert read(tmp_path, dump(*pages)) == [Page("0", "0", "wikitext x"), *[Skipped("not_wikitext")] * 3]


MODELS = ("wikitext", "javascript", "json", "Scribunto")


def test_text_of_other_slots_is_not_the_article(tmp_path: Path) -> None:
    slot = "<content><role>meta</role><text>{}</text></content>"
    content = dump(f"<page><title>A</title><id>4</id><revision><text>main</text>{slot}</revision></page>")
    assert read(tmp_path, content) == [Page("4", "A", "main")]


@pytest.mark.parametrize(
    "compress",
    [
        bz2.compress,
        gzip.compress,
        lzma.compress,
        lambda data: b"".join(bz2.compress(data[i : i + 500]) for i in range(0, len(data), 500)),
    ],
    ids=["bzip2", "gzip", "xz", "many bzip2 streams"],
)
def test_compression_is_recognised_by_content_not_by_name(tmp_path: Path, compress) -> None:  # type: ignore[no-untyped-def]
    plain = articles(40).encode()
    assert read(tmp_path, compress(plain)) == read(tmp_path, plain)


# --- damage ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-30, -60, -14])
def test_a_cut_dump_is_an_error_that_names_the_byte(tmp_path: Path, length: int) -> None:
    content = articles(3).encode()[:length]
    pages, message = read_until_fault(written(tmp_path, content))
    assert [entry.title for entry in pages if isinstance(entry, Page)] == [
        f"Title {i}" for i in range(2 if length < -14 else 3)
    ]
    assert f"dump.xml: ends too early, {'inside' if length < -14 else 'before </mediawiki>'}" in message
    assert f"after byte {len(content)} of its XML" in message
    assert "ends_mid_page" in message


@pytest.mark.parametrize("cut", ["</tex", "<id>9</id><te", "é", "Title 2 &amp"])
def test_a_dump_that_is_meant_to_end_early_loses_its_last_page(tmp_path: Path, cut: str) -> None:
    content = dump(page("A", "x", 1), page("B", "Title 2 & café"))
    end = content.rindex(cut) if cut in content else len(content)
    data = content[:end].encode() + cut.encode()[:-1]
    assert read(tmp_path, data, ends_mid_page=True) == [Page("1", "A", "x"), Skipped("cut")]


def test_a_dump_that_ends_between_pages_loses_none(tmp_path: Path) -> None:
    content = articles(2).removesuffix("</mediawiki>\n")
    assert [type(entry) for entry in read(tmp_path, content, ends_mid_page=True)] == [Page, Page]


def test_ends_mid_page_forgives_no_other_damage(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="not well-formed"):
        read(tmp_path, articles(2).replace("</page>", "</pag>", 1), ends_mid_page=True)


def test_junk_after_the_end_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"line 7, byte .*junk after document element"):
        read(tmp_path, articles(3) + "<mediawiki>")


def test_broken_xml_is_an_error_with_line_and_byte(tmp_path: Path) -> None:
    content = articles(3)
    offset = content.index("Title 2") + 3
    broken = content[:offset] + "<" + content[offset:]
    pages, message = read_until_fault(written(tmp_path, broken))
    assert len(pages) == 2
    assert "dump.xml: line 5, byte " in message
    assert "not well-formed XML" in message


@pytest.mark.parametrize("before", [0, 1 << 20, (1 << 20) - 150])
def test_invalid_utf8_is_an_error_that_names_the_byte(tmp_path: Path, before: int) -> None:
    content = dump(page("A", "x" * before), page("B", "bad byte: @")).encode()
    offset = content.index(b"@")
    _, message = read_until_fault(written(tmp_path, content.replace(b"@", b"\xe9")))
    assert f"byte {offset} of its XML: not valid UTF-8 (found b'\\xe9')" in message


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress], ids=["bzip2", "gzip", "xz"])
def test_a_truncated_compressed_file_is_an_error(tmp_path: Path, compress) -> None:  # type: ignore[no-untyped-def]
    path = written(tmp_path, compress(articles(300).encode())[:-20])
    with pytest.raises(RelmError, match=r"dump\.xml: the compressed file is truncated after \d+ bytes"):
        list(Dump(path, ends_mid_page=True))


@pytest.mark.parametrize("compress", [bz2.compress, gzip.compress, lzma.compress], ids=["bzip2", "gzip", "xz"])
def test_a_damaged_compressed_file_is_an_error(tmp_path: Path, compress) -> None:  # type: ignore[no-untyped-def]
    data = bytearray(compress(articles(300).encode()))
    data[len(data) // 2] ^= 255
    data[len(data) // 2 + 1] ^= 255
    with pytest.raises(RelmError, match=r"dump\.xml: .*damaged"):
        list(Dump(written(tmp_path, bytes(data))))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "nothing"),
        ("  \n", "nothing"),
        ("<html><body>Not found</body></html>", "<html>"),
        ("404 Not Found", "b'404 Not Found'"),
        ("<!DOCTYPE x [<!ENTITY e 'e'>]><mediawiki></mediawiki>", "<!DOCTYPE x>"),
    ],
)
def test_another_kind_of_file_is_refused(tmp_path: Path, content: str, found: str) -> None:
    _, message = read_until_fault(written(tmp_path, content))
    assert f"dump.xml: expected a MediaWiki dump, which begins with <mediawiki>, found {found};" in message


def test_a_page_without_a_title_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="line 3: damaged: a <page> without <title> or <id> ends here"):
        read(tmp_path, dump("<page><id>1</id></page>"))
