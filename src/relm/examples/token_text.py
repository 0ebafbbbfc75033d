"""Token ids as text for a reader: word boundaries, hidden tokens and what they were."""

import textwrap
from collections.abc import Mapping, Sequence

from relm.examples.tokenizers import LoadedTokenizer

WIDTH = 78
# Between the tokens of one word, where a space would look like a new one.
WITHIN_A_WORD = "·"
LINE_BREAK = "⏎"
SPACE_OF_SENTENCEPIECE = "▁"
CONTINUATION = "##"


class TokenTexts:
    """What each id stands for; without a tokenizer, its number."""

    def __init__(self, loaded: LoadedTokenizer | None) -> None:
        self._loaded = loaded
        self._special = set() if loaded is None else set(loaded.tokenizer.get_added_tokens_decoder())
        self._bytes = _byte_alphabet() if loaded is not None and loaded.kind == "byte_level_bpe" else {}

    def shown(self, token: int) -> tuple[str, bool]:
        """The text of a token, without marks of its tokenizer, and whether it begins a word."""
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

    def line(self, tokens: Sequence[int], starts: Sequence[bool] | None = None, hidden: Mapping[int, int] | None = None) -> str:
        """Tokens as one line: words apart, the tokens of a word joined, ``[shown→hidden]`` where one is hidden.

        Args:
            starts: whether each begins a word; None: what the tokenizer's marks say.
            hidden: place -> the token that is to be predicted there.
        """
        pieces = []
        for place, token in enumerate(tokens):
            text, begins = self.shown(token)
            if hidden and place in hidden:
                label, begins = self.shown(hidden[place])
                text = f"[{text.removeprefix('[').removesuffix(']')}→{label}]"
            if starts is not None:
                begins = starts[place]
            pieces.append(f" {text}" if begins or not place else WITHIN_A_WORD + text)
        return "".join(pieces).strip()


def paragraph(text: str, indent: str = "  ") -> str:
    """Text wrapped to the width of a terminal."""
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
    )


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + place): byte for place, byte in enumerate(others)}}
