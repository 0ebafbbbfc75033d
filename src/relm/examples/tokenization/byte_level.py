"""Byte-level BPE by gigatoken (https://github.com/marcelroed/gigatoken), some fifty times faster than `tokenizers`.

The two give the same ids except for characters that only one of them knows, because they are built with different versions of
Unicode: what is a letter to one is a symbol to the other, which then splits the text elsewhere. So each block of characters is
tried with both when it first occurs, and `tokenizers` encodes texts with a disputed character.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import psutil
from tokenizers import Tokenizer, pre_tokenizers

from relm.corpus.utf8_texts import Utf8Texts

if TYPE_CHECKING:
    from gigatoken.gigatoken_rs import BPETokenizer

Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

# gigatoken caches every piece of text without limit; it is loaded again when the process has grown by this many bytes.
MEMORY = 2**26
# Bytes of text between two measurements of memory, since one takes as long as encoding a long document.
MEASURED = 2**21
# UTF-8: the first byte of a character of two, of three and of four bytes, and the continuation bytes.
_TWO, _THREE, _FOUR = 0xC2, 0xE0, 0xF0
_CONTINUATIONS = range(0x80, 0xC0)
# A letter shares a piece with letters, a digit with digits, a mark with marks; a space with none of them.
_MATES = "a1!"


class ByteLevel:
    """Encodes with gigatoken for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Mapping[str, int], content: str) -> None:
        self.tokenizer = tokenizer
        self._content = content
        self._process = psutil.Process()
        self._token_bytes = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
        for token, number in vocabulary.items():
            self._token_bytes[number] = len(token)  # each byte is one character of the token
        self._compared = np.zeros(2**16, dtype=np.bool_)
        self._with_disputed = np.zeros(2**16, dtype=np.bool_)
        self.disputed: set[str] = set()
        self._unmeasured = self._loaded_rss = 0
        self._renew()

    @classmethod
    def fitting(cls, tokenizer: Tokenizer, content: str, parts: Mapping[str, Any]) -> Self | None:
        """Return the encoder for this tokenizer; None if gigatoken does not support it."""
        if not cuts_like_gpt2(parts):
            return None
        try:
            return cls(tokenizer, parts["model"]["vocab"], without_added_tokens(content))
        except Exception:  # gigatoken is absent or rejects the file; the library gives the same ids
            return None

    def encoded(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text."""
        return self.utf8_encoded(Utf8Texts.of([text.encode() for text in texts]))

    def utf8_encoded(self, texts: Utf8Texts) -> list[Tokens]:
        """Return the ids of each text, given in UTF-8."""
        left = self._left_to_library(texts)
        encode = self._gigatoken.encode
        rows = [
            np.array(self.tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)[0].ids, dtype=np.int32)
            if number in left
            else encode(text).view(np.int32)
            for number, text in enumerate(texts.texts)
        ]
        self._unmeasured += len(texts.joined)
        if self._unmeasured > MEASURED:
            self._unmeasured = 0
            if self._process.memory_info().rss > self._loaded_rss + MEMORY:
                self._renew()
        return rows

    def word_starts(self, texts: Sequence[str], rows: Sequence[Tokens]) -> Flags:
        """Return True for each id that begins a piece of GPT-2's pattern."""
        encoded = [text.encode() for text in texts]
        left = self._left_to_library(Utf8Texts.of(encoded))
        sizes = chain.from_iterable(
            self._sizes_by_library(texts[number]) if number in left else _sizes(text) for number, text in enumerate(encoded)
        )
        ends = np.cumsum(np.fromiter(sizes, dtype=np.int64))
        begins = np.zeros(int(ends[-1]) + 1 if len(ends) else 1, dtype=np.bool_)
        begins[ends] = True
        begins[0] = True
        tokens = np.concatenate([np.zeros(0, dtype=np.int32), *rows])
        bytes_of_tokens = self._token_bytes[tokens]
        starts = np.cumsum(bytes_of_tokens) - bytes_of_tokens
        found: Flags = begins[starts]
        return found

    def _renew(self) -> None:
        from gigatoken.gigatoken_rs import load_hf_json

        self._gigatoken: BPETokenizer = load_hf_json(self._content)  # type: ignore[assignment]
        self._unmeasured = 0
        self._loaded_rss = self._process.memory_info().rss

    def _sizes_by_library(self, text: str) -> list[int]:
        """Return the bytes of each piece, by the library."""
        assert self.tokenizer.pre_tokenizer is not None
        return [len(piece) for piece, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def _left_to_library(self, texts: Utf8Texts) -> set[int]:
        """Return the indices of texts with a disputed character."""
        data, leads = texts.data, texts.leads
        blocks = data[leads].astype(np.uint16) << 8 | data[leads + 1]
        blocks[blocks < _THREE << 8] = _TWO << 8
        for block in np.unique(blocks[~self._compared[blocks]]).tolist():
            self._compare(block)
        suspects = leads[self._with_disputed[blocks]].tolist()
        found = [at for at in suspects if texts.joined[at : at + 4].decode("utf-8", "ignore")[0] in self.disputed]
        return texts.indices_at(found) if found else set()

    def _compare(self, block: int) -> None:
        """Try both encoders on all characters of a block, and note the disputed ones."""
        left = characters_of(block)
        size = len(left[0].encode()) + 1
        disputed: set[str] = set()
        for mate in _MATES:
            disputed |= self._cut_otherwise(left, mate)
            begins = set(accumulate(_sizes((mate + "".join(character + mate for character in left)).encode())))
            left = [character for position, character in enumerate(left) if position * size + 1 in begins]
        self.disputed |= disputed
        self._with_disputed[block] = bool(disputed)
        self._compared[block] = True

    def _cut_otherwise(self, characters: list[str], mate: str) -> set[str]:
        """Return the characters that only one encoder puts into a piece with the mate before or after them."""
        text = mate + "".join(character + mate for character in characters)
        if _sizes(text.encode()) == self._sizes_by_library(text):
            return set()
        if len(characters) == 1:
            return set(characters)
        half = len(characters) // 2
        return self._cut_otherwise(characters[:half], mate) | self._cut_otherwise(characters[half:], mate)


def _sizes(text: bytes) -> list[int]:
    """Return the bytes of each piece of a text in UTF-8, by gigatoken."""
    from gigatoken.gigatoken_rs import pretokenizer

    return list(map(len, pretokenizer(text)))


def characters_of(block: int) -> list[str]:
    """Return the characters whose UTF-8 begins with two given bytes, 64 of three bytes or 4096 of four; or all of two bytes.

    >>> characters_of(0xE282)[44], len(characters_of(0xC200)), len(characters_of(0xF09F))
    ('€', 1920, 4096)
    """
    if block < _THREE << 8:
        return [chr(code) for code in range(0x80, 0x800)]
    start = block.to_bytes(2, "big")
    tails = [bytes([byte]) for byte in _CONTINUATIONS]
    if block >= _FOUR << 8:
        tails = [tail + last for tail in tails for last in tails]
    return [(start + tail).decode() for tail in tails]


def without_added_tokens(content: str) -> str:
    """Return a `tokenizer.json` without its added tokens; gigatoken would encode their names in a text as these tokens."""
    key = '"added_tokens":'  # inside a string its quotes would be escaped
    start = content.index(key) + len(key)
    _, end = json.JSONDecoder().raw_decode(content, start)
    return f"{content[:start]}[]{content[end:]}"


def cuts_like_gpt2(parts: Mapping[str, Any]) -> bool:
    """Return True for a deterministic BPE over all bytes that splits raw text by GPT-2's pattern."""
    model, cutter = parts["model"], parts["pre_tokenizer"] or {}
    unused = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    return (
        parts["normalizer"] is None
        and (cutter.get("type"), cutter.get("add_prefix_space"), cutter.get("use_regex")) == ("ByteLevel", False, True)
        and model.get("type") == "BPE"
        and not any(model.get(option) for option in unused)
        and all(byte in model["vocab"] for byte in pre_tokenizers.ByteLevel.alphabet())
        and all(token["special"] for token in parts["added_tokens"])
    )
