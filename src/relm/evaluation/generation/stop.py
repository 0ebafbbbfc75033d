"""The end of a text that a language model writes: at an end of text, at a given text or token, or at its length."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

Ending = Literal["length", "end_of_text", "stop"]
"""length: the text has the requested length; end_of_text: the model ended it; stop: it reached the text or token to stop at."""


class EndedText(NamedTuple):
    """A text that a model wrote after a prompt, up to its end."""

    text: str
    tokens: int
    """Number of its tokens, with those of the text to stop at."""
    ended: Ending


class Stop:
    """The rule that ends a text before its length."""

    def __init__(self, loaded: LoadedTokenizer, text: str | None, ends: Collection[int]) -> None:
        """Stop at `text`, or at the special token of that name, and always at the ids that end a text."""
        special = {token.content: number for number, token in loaded.tokenizer.get_added_tokens_decoder().items()}
        self._tokenizer = loaded.tokenizer
        self.endings: dict[int, Ending] = dict.fromkeys(ends, "end_of_text")
        """Id that ends a text, and is left out -> the reason."""
        if text in special:
            self.endings[special[text]] = "stop"
        self.text = None if text in special else text

    def cut(self, prompt: Sequence[int], ids: Sequence[int]) -> EndedText:
        """Return the text of ids after a prompt, up to its end."""
        count = next((number for number, token in enumerate(ids) if token in self.endings), len(ids))
        text = self._decode(prompt, ids[:count])
        if self.text is not None and self.text in text:
            text = text.partition(self.text)[0]
            return EndedText(text, bisect_left(range(count), True, key=lambda n: self.is_reached(prompt, ids[:n])), "stop")
        return EndedText(text, count, self.endings[ids[count]] if count < len(ids) else "length")

    def has_ended(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Return whether ids after a prompt include an end."""
        return not self.endings.keys().isdisjoint(ids) or self.is_reached(prompt, ids)

    def is_reached(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Return whether ids after a prompt include the text to stop at."""
        return self.text is not None and self.text in self._decode(prompt, ids)

    def _decode(self, prompt: Sequence[int], ids: Sequence[int]) -> str:
        """Return the text of ids after a prompt, with any space between the two."""
        before = self._tokenizer.decode(list(prompt), skip_special_tokens=False)
        whole = self._tokenizer.decode([*prompt, *ids], skip_special_tokens=False)
        if whole.startswith(before):
            return whole[len(before) :]
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)
