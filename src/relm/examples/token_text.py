"""Show token ids as text, with word boundaries, and masked tokens with their labels."""

import textwrap
from collections.abc import Mapping, Sequence

from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

WIDTH = 78
# Separates the tokens of one word; a space would look like a new word.
WITHIN_A_WORD = "·"
LINE_BREAK = "⏎"
SPACE_OF_SENTENCEPIECE = "▁"
CONTINUATION = "##"


class TokenTexts:
    """The text of each token id; without a tokenizer, the id itself."""

    def __init__(self, loaded: LoadedTokenizer | None) -> None:
        self._loaded = loaded
        self._special = set() if loaded is None else set(loaded.tokenizer.get_added_tokens_decoder())
        self._bytes = _byte_alphabet() if loaded is not None and loaded.kind == "byte_level_bpe" else {}

    def shown(self, token: int) -> tuple[str, bool]:
        """Return the text of a token without the tokenizer's marks, and True if it begins a word."""
        if self._loaded is None:
            return str(token), True
        text = self._loaded.tokenizer.id_to_token(token)
        if text is None or token in self._special:
            return text or f"<{token}>", True
        if self._bytes:
            decoded = bytes(self._bytes[character] for character in text).decode("utf-8", "backslashreplace")
            return decoded.strip(" ").replace("\n", LINE_BREAK) or "␣", decoded[:1].isspace()
        if text.startswith(CONTINUATION) and len(text) > len(CONTINUATION):
            return text[len(CONTINUATION) :], False
        begins = text.startswith(SPACE_OF_SENTENCEPIECE)
        marked = self._loaded.kind == "sentencepiece"
        return text.lstrip(SPACE_OF_SENTENCEPIECE) or "␣", begins if marked else True

    def line(self, tokens: Sequence[int], starts: Sequence[bool] | None = None, labels: Mapping[int, int] | None = None) -> str:
        """Return tokens as one line, with spaces between words and ``[input→label]`` for masked tokens.

        `starts` is True for tokens that begin a word (None: decided by the tokenizer's marks); `labels` map a position to the
        token to predict there.
        """
        pieces = []
        for position, token in enumerate(tokens):
            text, begins = self.shown(token)
            if labels and position in labels:
                label, begins = self.shown(labels[position])
                text = f"[{text.removeprefix('[').removesuffix(']')}→{label}]"
            if starts is not None:
                begins = starts[position]
            pieces.append(f" {text}" if begins or not position else WITHIN_A_WORD + text)
        return "".join(pieces).strip()


def paragraph(text: str, indent: str = "  ") -> str:
    """Return text wrapped to the width of a terminal."""
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    )


def _byte_alphabet() -> dict[str, int]:
    """Return character -> byte in byte-level BPE: printable bytes stand for themselves, the others are U+0100 and above."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + number): byte for number, byte in enumerate(others)}}
