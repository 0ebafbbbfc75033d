"""Plain lines are read as the JSON parser reads them, and every other line is left to the parser."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relm.corpus.documents import Document, encode_document, parse_document
from relm.corpus.plain_lines import read_plain_texts
from relm.corpus.utf8_texts import Utf8Texts, valid_leads
from relm.errors import RelmError


def parsed(content: bytes) -> list[bytes] | None:
    """Return the texts as the parser reads them, line by line; None where it refuses a line."""
    lines = content.split(b"\n")
    try:
        return [parse_document(line, "here").text.encode() for line in (lines if lines[-1] else lines[:-1])]
    except RelmError:
        return None


def plain(content: bytes) -> list[bytes] | None:
    """Return the texts of plain lines, after a check of what else is known of them."""
    found = read_plain_texts(content)
    if found is None:
        return None
    assert found.joined == b"\n".join(found.texts)
    again = Utf8Texts.of(found.texts)
    assert found.count() == again.count()
    assert found.leads.tolist() == again.leads.tolist()
    return list(found.texts)


def line_of(text: str, title: str = "t") -> bytes:
    return encode_document(Document("1", title, text)).line


def raw(text: bytes, title: bytes = b"t") -> bytes:
    return b'{"id":"1","title":"' + title + b'","text":"' + text + b'"}\n'


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", []),
        (raw(b""), [b""]),
        (raw(b"a") + raw(b"") + raw(b"b"), [b"a", b"", b"b"]),
        (raw(b"a")[:-1], [b"a"]),
        (raw(rb"a\nb\tc\"\/\b\f\r"), [b'a\nb\tc"/\b\f\r']),
        (raw(rb"\\n\\\n\\\\n\\"), [b"\\n\\\n\\\\n\\"]),
        (raw(rb"\\\\") + raw(rb"\"\\"), [b"\\\\", b'"\\']),
        (raw(b"a", title=rb"\"\\"), [b"a"]),
        (raw("é中🙂".encode(), title="é".encode()), ["é中🙂".encode()]),
        (b'{"id": "1", "title": "", "text": "with spaces"}\n', [b"with spaces"]),
    ],
)
def test_plain_lines_are_read_without_the_parser(content: bytes, texts: list[bytes]) -> None:
    assert plain(content) == texts == parsed(content)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[" * 50 + b"]" * 50 + b"\n",
        raw(b"a")[:-1] + b"\r\n",
        raw(b"a")[:-1] + b" \n",
        b"\xef\xbb\xbf" + raw(b"a"),
        raw(b"a").decode().encode("utf-16"),
        raw(b"a").decode().encode("utf-16-le"),
        raw(rb"\u00e9"),
        raw(rb"\ud83d\ude42"),
        raw(rb"\ud83d"),
        raw(b"a", title=rb"\ud83d"),
        raw(b"\xed\xa0\xbd"),
        raw(b"\xff"),
        raw(b"a", title=b"\xff"),
        raw(b"\xc3"),
        raw(b"\0"),
        raw(rb"\u0000"),
        raw(b"\t"),
        raw(b"a", title=b"\x1f"),
        raw(rb"\x"),
        raw(b"\\"),
        raw(b"\\\\\\"),
        raw(b'"'),
        raw(b'a","text":"b'),
        raw(b'a","more":{"text":"b"},"x":"'),
        raw(b'a"}{"text":"b'),
        b'{"id":"1","title":"t","text":"a"}}\n',
        b'{"id":1,"title":"t","text":"a"}\n',
        b'{"id":"1","title":"t","text":null}\n',
        b'{"id":"1","title":"t","text":["a"]}\n',
        b'{"title":"t","id":"1","text":"a"}\n',
        b'{"id":"1","id":"2","title":"t","text":"a"}\n',
        b'{"id":"1","title":"t","text":"a","text":"b"}\n',
        b'{"text":"a"}\n',
    ],
)
def test_other_lines_are_left_to_the_parser(line: bytes) -> None:
    for content in (line, raw(b"a") + line, line + raw(b"a")):
        assert plain(content) is None


def test_a_missing_and_an_excess_quote_of_two_lines_do_not_cancel() -> None:
    assert plain(raw(b"a\\") + raw(b'b"')) is None
    assert plain(raw(b'b"') + raw(b"a\\")) is None


# Pieces of JSON that together make escapes, ends of strings and ends of lines.
PIECES = st.sampled_from([*rb'\ " n u 00e9 d83d } { a ,'.split(), b"\n", b"\r", b"\0", b" ", b"\xc3", b"\xa9", b"\xed\xa0\xbd"])
STRINGS = st.lists(PIECES, max_size=8).map(b"".join)
LINES = st.one_of(
    st.builds(raw, STRINGS, st.one_of(st.just(b"t"), STRINGS)),
    st.builds(line_of, st.text(max_size=20), st.text(max_size=5)).filter(lambda line: b"\xed" not in line),
    st.builds(lambda text: json.dumps({"id": "1", "title": "t", "text": text}).encode() + b"\n", st.text(max_size=20)),
)


@given(st.lists(LINES, max_size=4).map(b"".join), st.data())
@example(raw(rb"\\") + raw(rb"\n"), None)
def test_what_is_read_without_the_parser_is_what_the_parser_reads(content: bytes, data: st.DataObject | None) -> None:
    if data is not None and data.draw(st.booleans()) and content:
        position = data.draw(st.integers(0, len(content) - 1))
        content = content[:position] + data.draw(PIECES) + content[position + data.draw(st.integers(0, 2)) :]
    texts = plain(content)
    assert texts is None or texts == parsed(content)


# Without controls and surrogates every document that relm writes is plain.
PLAIN = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters='\\"\n\t'), max_size=40)


@given(st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=5))
def test_documents_are_read_without_the_parser(documents: list[tuple[str, str]]) -> None:
    content = b"".join(line_of(text, title) for text, title in documents)
    assert plain(content) == [text.encode() for text, _ in documents]


def leads_by_the_decoder(content: bytes) -> list[int] | None:
    try:
        characters = content.decode()
    except UnicodeDecodeError:
        return None
    starts = itertools.accumulate((len(character.encode()) for character in characters), initial=0)
    return [start for start, character in zip(starts, characters, strict=False) if character > "\x7f"]


# The bytes at which the rules of UTF-8 change.
BOUNDS = b"\x00a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xec\xed\xee\xef\xf0\xf1\xf3\xf4\xf5\xff"


@pytest.mark.parametrize("padding", [0, 100], ids=["dense", "sparse"])
def test_bytes_are_utf8_if_the_decoder_takes_them(padding: int) -> None:
    for length in (1, 2, 3):
        for some in itertools.product(BOUNDS, repeat=length):
            for content in (b" " * padding + bytes(some), bytes(some) + b"\x80" + b" " * padding):
                found = valid_leads(np.frombuffer(content, dtype=np.uint8))
                assert (None if found is None else found.tolist()) == leads_by_the_decoder(content), content
