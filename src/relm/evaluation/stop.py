"""Stop rules: tokens or a text that end the writing of a language model early."""

from collections.abc import Collection, Sequence
from typing import Literal

from relm.examples.tokenizers import LoadedTokenizer

# Tokens before a stop that are decoded with it, for some decoders treat a text's first token differently.
STOP_MARGIN = 4

Ending = Literal["length", "end_of_text", "stop"]
"""length: the text has the requested length; end_of_text: the model ended it; stop: it reached the text or token to stop at."""


class Stop:
    """The rule that ends a text before its length: at an end of text, and optionally at a given text or token."""

    def __init__(self, loaded: LoadedTokenizer, text: str | None, ends: Collection[int] | None = None) -> None:
        """Stop at `text`, if given, or at the special token of that name; and always at an end of text.

        Args:
            ends: ids of the ends of text; None: the end of text that the tokenizer has by name.
        """
        special = {token.content: number for number, token in loaded.tokenizer.get_added_tokens_decoder().items()}
        self._tokenizer = loaded.tokenizer
        self.ends = {loaded.special.end_of_text} if ends is None else ends
        self.id = special.get(text) if text is not None else None
        self.text = None if self.id is not None else text
        self._tail = len((self.text or "").encode()) + STOP_MARGIN  # a token is a byte at least

    def ending(self, token: int) -> Ending | None:
        """Return the reason why a token ends a text, if it does; the token is then left out."""
        if self.id is not None and token == self.id:
            return "stop"
        return "end_of_text" if token in self.ends else None

    def reached(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Return whether ids after a prompt hold the text to stop at, given that those before the last did not."""
        if self.text is None or self.text not in self._tokenizer.decode(ids[-self._tail :], skip_special_tokens=False):
            return False
        return self.text in self.decode(prompt, ids)

    def cut(self, text: str) -> str:
        """Return a text up to the text to stop at."""
        return text if self.text is None else text.partition(self.text)[0]

    def decode(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of ids that were written after a prompt, with the space between them if the tokenizer has one."""
        before = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        whole = self._tokenizer.decode([*prompt, *ids], skip_special_tokens=False)
        if whole.startswith(before):
            return whole[len(before) :]
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
