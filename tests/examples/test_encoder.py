import itertools
import lzma
import subprocess
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from relm.corpus.utf8_texts import Utf8Texts
from relm.examples.tokenization import encoder as module
from relm.examples.tokenization.byte_level import ByteLevel, characters_of, without_added_tokens
from relm.examples.tokenization.encoder import Disagreement, TextEncoder, ids_by_library
from relm.examples.tokenization.spaced_words import Characters, SpacedWords
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.examples.tokenization.tokenizer_models import characters, wordpiece

# Every sort of character that the pattern tells apart, those that other libraries have other opinions on, and ends of text.
ALPHABET = [
    *"abs'DtlréЖ中११२7²½Ⅷ㊿①_-!€🙂\u0301 \u00a0\u3000\t\n\r\x0b\x1c\x85\u200b\ufeff\x00ﬁș\u0327",
    "<|endoftext|>",
    "'ll",
    "  ",
]


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token for each byte, and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("a", "b"), ("s", "s"), ("'", "s"), ("Ġ", "Ġ"), ("Ġa", "b"), ("Ã", "©"), ("©", "!")]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.encode_special_tokens = True
    return tokenizer


def word_tokenizer(lower_case: bool) -> Tokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "ab", "7", "'", "!", "-", "s", "r", "e", "é", "t", "中"]
    vocabulary = {piece: number for number, piece in enumerate([*pieces, *("##" + piece for piece in pieces[5:])])}
    tokenizer = wordpiece(vocabulary, lower_case)
    tokenizer.encode_special_tokens = True
    return tokenizer


def character_tokenizer() -> Tokenizer:
    tokenizer = characters([*"\n ab'é中🙂"])
    tokenizer.encode_special_tokens = True
    return tokenizer


TOKENIZERS = [byte_tokenizer(), word_tokenizer(True), word_tokenizer(False), character_tokenizer()]
FAST = [TextEncoder(tokenizer) for tokenizer in TOKENIZERS]
SLOW = [TextEncoder(tokenizer, fast=False) for tokenizer in TOKENIZERS]


def assert_alike(fast: TextEncoder, slow: TextEncoder, texts: Sequence[str]) -> None:
    """Check that ids, sizes and starts of words are the library's."""
    assert fast.fast is not None
    assert slow.fast is None
    (tokens, sizes), starts = fast.with_word_starts(texts)
    expected = [ids_by_library(slow.tokenizer, text).tolist() for text in texts]
    assert sizes.tolist() == list(map(len, expected))
    assert tokens.tolist() == list(itertools.chain.from_iterable(expected))
    assert (tokens.dtype, sizes.dtype, starts.dtype) == (np.int32, np.int32, np.bool_)
    assert np.array_equal(starts, slow.with_word_starts(texts)[1])
    assert np.array_equal(fast.encoded(texts).tokens, tokens)
    encoded = fast.utf8_encoded(Utf8Texts.of([text.encode() for text in texts]))
    assert np.array_equal(encoded.tokens, tokens)
    assert np.array_equal(encoded.sizes, sizes)


def test_each_kind_has_its_fast_encoder() -> None:
    assert [type(encoder.fast) for encoder in FAST] == [ByteLevel, SpacedWords, SpacedWords, Characters]


ANY_TEXT = st.lists(st.one_of(st.sampled_from(ALPHABET), st.characters(exclude_categories=["Cs"])), max_size=30).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(ANY_TEXT, max_size=4))
def test_every_encoder_gives_the_librarys_ids_and_words(texts: list[str]) -> None:
    for fast, slow in zip(FAST, SLOW, strict=True):
        assert_alike(fast, slow, texts)


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
        "a<|endoftext|>b [MASK] <unk>",
        "\x1c \x1c a\x00\x00",
        "_a_ 1_",
        "a" * 20_000,
        " " * 5_000 + "\n" * 5_000,
        "é" * 3_000 + "\u0301" * 3_000,
        "👩‍👩‍👧‍👦 \U0010ffff\ufffe\ue000",
    ],
)
def test_hard_cases(text: str) -> None:
    for fast, slow in zip(FAST, SLOW, strict=True):
        assert_alike(fast, slow, [text, "a", text + " ab"])


def test_beginnings_of_words_by_hand() -> None:
    # "ab" and " ab" are tokens, and "'s"; " é!" is a space, "é" and "!".
    (_, sizes), starts = FAST[0].with_word_starts(["ab ab's", "", " é!", "é"])
    assert sizes.tolist() == [3, 0, 3, 1]
    assert starts.tolist() == [True, True, True, True, False, True, True]
    (_, sizes), starts = FAST[1].with_word_starts(["abab a!", "zz ab"])
    assert sizes.tolist() == [4, 2]
    assert starts.tolist() == [True, False, True, True, True, True]


def test_the_first_token_of_a_text_begins_a_word_whatever_it_is() -> None:
    encoder = TextEncoder(word_tokenizer(True))
    assert isinstance(encoder.fast, SpacedWords)
    encoder.fast.begins_word[:] = False
    assert encoder.with_word_starts(["abab", "", "a b"])[1].tolist() == [True, False, True, False]


def test_a_character_split_over_tokens_begins_one_word() -> None:
    # "中" is three bytes and three tokens; the space before it belongs to its piece.
    (tokens, _), starts = FAST[0].with_word_starts(["a 中b 中中!"])
    assert len(tokens) == 1 + 5 + 7 + 1
    assert np.flatnonzero(starts).tolist() == [0, 1, 6, 13]


def test_no_character_of_unicode_is_encoded_otherwise() -> None:
    fast, slow = TextEncoder(byte_tokenizer()), SLOW[0]
    assert isinstance(fast.fast, ByteLevel)
    # All of the first two planes but the ideographs and Hangul, which are tens of thousands of letters of one kind.
    for start in (*range(0, 0x3400, 64), *range(0xA000, 0xAC00, 64), *range(0xD800, 0x12800, 64), *range(0x1D000, 0x1FB00, 64)):
        found = [chr(code) for code in range(start, start + 64) if not 0xD800 <= code < 0xE000]
        text = "".join(f"a{c}1{c}!{c} {c}" for c in found)
        assert fast.encoded([text]).tokens.tolist() == ids_by_library(slow.tokenizer, text).tolist()
    assert fast.fast.disputed
    # Whoever made the two libraries, they knew the characters that Python knows.
    assert {unicodedata.category(character) for character in fast.fast.disputed} == {"Cn"}


def test_only_texts_with_a_disputed_character_go_to_the_library() -> None:
    encoder = TextEncoder(byte_tokenizer())
    assert isinstance(encoder.fast, ByteLevel)
    texts = ["plain", "né ț 中 🙂", "a \u088f b", "a \u0890 b"]
    assert encoder.fast._left_to_library(Utf8Texts.of([text.encode() for text in texts])) == {2}
    assert encoder.fast.disputed == {"\u088f"}
    assert_alike(encoder, SLOW[0], texts)


def test_characters_of_a_block_are_all_that_begin_with_its_two_bytes() -> None:
    for block in (0xC200, 0xE0A0, 0xED9F, 0xF090, 0xF48F):
        found = characters_of(block)
        assert len(set(found)) == len(found)
        for character in (found[0], found[-1]):
            encoded = character.encode()
            assert block == 0xC200 or encoded[:2] == block.to_bytes(2, "big")
    assert [characters_of(0xC200)[0], characters_of(0xC200)[-1]] == ["\u0080", "\u07ff"]


def test_names_of_added_tokens_are_taken_out_whatever_they_look_like() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(['],"added_tokens":[{', '"model":', "}]"])
    content = without_added_tokens(tokenizer.to_str())
    assert len(Tokenizer.from_str(content).get_added_tokens_decoder()) == 0
    assert_alike(TextEncoder(tokenizer), TextEncoder(tokenizer, fast=False), ['a],"added_tokens":[{b "model": }]'])


@pytest.mark.parametrize("name", ["gpt2", "roberta", "bert", "t5"])
def test_real_text_is_encoded_as_by_the_library(published, shared_data, name) -> None:
    loaded = load_tokenizer(published(name))
    fast, slow = TextEncoder(loaded.tokenizer), TextEncoder(loaded.tokenizer, fast=False)
    for file in ("wikitext-2-raw/wiki.valid.raw.xz", "romanian/ud-ro-rrt.txt.xz", "romanian/manpages-ro.jsonl.xz"):
        with lzma.open(shared_data / file, "rt", encoding="utf-8") as lines:
            assert_alike(fast, slow, list(itertools.islice(lines, 40)))


def test_the_library_encodes_spaces_in_grapheme_clusters(published) -> None:
    tokenizer = load_tokenizer(published("t5")).tokenizer
    fast, slow = TextEncoder(tokenizer), TextEncoder(tokenizer, fast=False)
    # Marks, a joiner, a Thai vowel, a skin tone: each is in one grapheme cluster with the space before; two, with that after.
    texts = [f"ab {mark}ab ab" for mark in "\u0301\u200d\u0e33\U0001f3fd\u0903\ufe0f"]
    assert_alike(fast, slow, [*texts, "ab\u0600 ab", "\u0d4e ab", "½\u0301 a"])
    # The table drops a joiner with the mark on it, but not when both follow a space.
    assert_alike(fast, slow, ["ab \u200d\u0301"])
    assert slow.encoded(["ab \u200d\u0301"]).sizes[0] > slow.encoded(["ab", "\u200d\u0301"]).sizes.sum()


def test_the_library_encodes_with_any_other_tokenizer() -> None:
    lowercased, prefixed, added, spaced = byte_tokenizer(), byte_tokenizer(), byte_tokenizer(), word_tokenizer(True)
    lowercased.normalizer = normalizers.Lowercase()
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    added.add_tokens(["ab ab"])
    spaced.add_tokens(["ab ab"])
    for tokenizer in (lowercased, prefixed, added, spaced):
        encoder = TextEncoder(tokenizer)
        assert encoder.fast is None
        for text in ("Abs ab ab", "Élan 12"):
            assert encoder.encoded([text]).tokens.tolist() == ids_by_library(tokenizer, text).tolist()


def test_the_library_can_be_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_ENCODER", "library")
    assert TextEncoder(byte_tokenizer()).fast is None


class Wrong(Characters):
    """An encoder that is wrong about one character."""

    def encoded(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [row + (np.array(list(text)) == "b") for row, text in zip(super().encoded(texts), texts, strict=True)]


def test_samples_detect_a_wrong_encoder() -> None:
    encoder = TextEncoder(character_tokenizer())
    assert isinstance(encoder.fast, Characters)
    encoder.fast_encoder = Wrong(encoder.fast.ids)
    encoder.encoded(["b", "a" * 99, "b"])  # the sample is of the text in the middle
    with pytest.raises(Disagreement, match="Wrong and the tokenizers library give different ids for 'aab"):
        encoder.encoded(["a" * 99, "aab", "a"])


def test_samples_of_utf8_are_whole_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = TextEncoder(byte_tokenizer())
    monkeypatch.setattr(ByteLevel, "utf8_encoded", lambda self, texts: [np.zeros(0, dtype=np.int32) for _ in texts.texts])
    with pytest.raises(Disagreement, match=r"ByteLevel and the tokenizers library give different ids for '中{82}'"):
        encoder.utf8_encoded(Utf8Texts.of(["中".encode() * 1001]))


def test_long_texts_are_encoded_in_parts_with_the_same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PART", 10)
    texts = ["ab  ab\n\n ab's ab " * 5, "", "a-!ab é a " * 3, "中" * 40]
    for fast, slow in zip(FAST, SLOW, strict=True):
        assert_alike(fast, slow, texts)
    assert [len(part) for part in module._parts("abcdefghijkl mn op qr st uv wx yz")] == [12, 12, 9]


def test_memory_for_words_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relm.examples.tokenization.spaced_words.REMEMBERED_WORDS", 3)
    encoder = TextEncoder(word_tokenizer(True))
    assert_alike(encoder, SLOW[1], [" ".join("ab" * number for number in range(80))])
    assert isinstance(encoder.fast, SpacedWords)
    assert len(encoder.fast) == 3


MANY_WORDS = """
import random, sys
from pathlib import Path
from relm.examples.tokenization import byte_level
from relm.examples.tokenization.encoder import TextEncoder
from relm.examples.tokenization.tokenizer_files import load_tokenizer
encoder = TextEncoder(load_tokenizer(Path(sys.argv[1])).tokenizer)
first = encoder.fast._gigatoken
generator = random.Random(1)
text = " ".join(str(generator.randrange(10**11, 10**12)) for _ in range(300_000))
encoder.encoded([text])
kept = encoder.fast._gigatoken is first
byte_level.MEMORY = 2**22
encoder.encoded([text.replace("1", "a")])
print(kept, encoder.fast._gigatoken is first)
"""


def test_gigatoken_is_loaded_again_when_its_cache_is_large(tokenizer) -> None:
    done = subprocess.run([sys.executable, "-c", MANY_WORDS, str(tokenizer)], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_ends_are_appended_to_each_text() -> None:
    encoder = TextEncoder(character_tokenizer())
    tokens, sizes = encoder.utf8_encoded(Utf8Texts.of([b"ab", b"", b"b"]), end=[9, 8])
    a, b = encoder.encoded(["ab"]).tokens.tolist()
    assert tokens.tolist() == [a, b, 9, 8, 9, 8, b, 9, 8]
    assert sizes.tolist() == [4, 2, 3]
    assert encoder.utf8_encoded(Utf8Texts.of([]), end=[9]).sizes.tolist() == []
