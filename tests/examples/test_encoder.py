import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from relm.examples.encoder import PIECES, Encoder, cuts_like_gpt2
from relm.examples.tokenizers import load_tokenizer

# Every sort of character that the pattern tells apart, and those on which Python and the library have different opinions.
ALPHABET = "abs'DtlréЖ中१२7²½Ⅷ㊿①_-!€🙂\u0301 \u00a0\u3000\t\n\r\x0b\x1c\x85\u200b\ufeff\x00"


def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and a few merges."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("a", "b"), ("s", "s"), ("'", "s"), ("Ġ", "Ġ"), ("Ġa", "b"), ("Ã", "©")]
    vocabulary = {token: number for number, token in enumerate([*characters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.encode_special_tokens = True
    return tokenizer


TOKENIZER = byte_tokenizer()
ENCODER = Encoder(TOKENIZER)


def library_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def assert_cut_and_encoded_as_by_the_library(encoder: Encoder, text: str) -> None:
    assert encoder.encoded(text).tolist() == library_ids(encoder.tokenizer, text)
    assert encoder.pieces is not None
    if encoder.pieces.can_cut(text):
        pieces = [text[start:end] for _, (start, end) in encoder.tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert PIECES.findall(text) == pieces


@settings(max_examples=600, deadline=None)
@given(st.text(st.one_of(st.sampled_from(ALPHABET), st.characters(exclude_categories=["Cs"])), max_size=30))
def test_pieces_and_ids_are_the_librarys(text: str) -> None:
    assert_cut_and_encoded_as_by_the_library(ENCODER, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a  b",
        "it's we'll we're I've I'm he'd don't 'lllx IT'S ''s 's",
        "a \n\n b\n",
        "x²  y½ Ⅷ①",
        "tab\t\tend  ",
        "a<|endoftext|>b",
        "\x1c \x1c a",
        "_a_ 1_",
    ],
)
def test_hard_cases_are_cut_as_the_library_cuts_them(text: str) -> None:
    assert_cut_and_encoded_as_by_the_library(ENCODER, text)


def test_no_character_of_unicode_is_cut_otherwise() -> None:
    encoder = Encoder(TOKENIZER)
    # All of the first two planes but the ideographs and Hangul, which are tens of thousands of letters of one kind.
    for start in (*range(0, 0x3400, 64), *range(0xA000, 0xAC00, 64), *range(0xD800, 0x20000, 64)):
        characters = [chr(code) for code in range(start, start + 64) if not 0xD800 <= code < 0xE000]
        text = "".join(f"a{c}1{c}!{c} {c}" for c in characters)
        assert_cut_and_encoded_as_by_the_library(encoder, text)


def test_a_character_the_two_disagree_on_goes_to_the_library() -> None:
    encoder = Encoder(TOKENIZER)
    assert encoder.pieces is not None
    assert unicodedata.category("①") == "No"
    assert not encoder.pieces.can_cut("a ① b")
    assert encoder.pieces.can_cut("plain text, 12²³¹¼½¾ H₂O x⁰⁴⁹ Ⅷ")


def test_real_text_is_encoded_as_by_the_library(tokenizer: Path, prose: list[str]) -> None:
    loaded = load_tokenizer(tokenizer).tokenizer
    encoder = Encoder(loaded)
    assert encoder.pieces is not None
    for text in prose:
        assert encoder.encoded(text).tolist() == library_ids(loaded, text)


def test_any_other_tokenizer_is_left_to_the_library() -> None:
    lowercased, prefixed, added = byte_tokenizer(), byte_tokenizer(), byte_tokenizer()
    lowercased.normalizer = normalizers.Lowercase()
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    added.add_tokens(["ab ab"])
    assert cuts_like_gpt2(TOKENIZER)
    for tokenizer in (lowercased, prefixed, added):
        assert not cuts_like_gpt2(tokenizer)
        for text in ("Abs ab ab", "Élan 12"):
            assert Encoder(tokenizer).encoded(text).tolist() == library_ids(tokenizer, text)


def test_memory_for_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relm.examples.encoder.REMEMBERED_PIECES", 3)
    encoder = Encoder(TOKENIZER)
    text = " ".join(f"word{number}" for number in range(50))
    assert encoder.encoded(text).tolist() == library_ids(TOKENIZER, text)
    assert encoder.pieces is not None
    assert len(encoder.pieces) == 3
