"""Tokens that are put before a text when a causal model scores it.

Many tokenizers put a token that begins a text (bos) before everything they encode, and their models were trained that way.
lm_eval 0.4.13 leaves that to the tokenizer. Before a text whose first token is scored it puts one more, `prefix_token_id`: the
tokenizer's bos, or else its end of text.
"""

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.evaluation.special_tokens import has_only_named_tokens, named_tokens
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.examples.tokenization.tokenizer_models import END_OF_TEXT
from relm.recipes.evaluation.protocol_options import Begin

Integers = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
# Special tokens that begin a text if no setting names one.
BOS_TOKENS = ("<s>", "<|begin_of_text|>", "<bos>", END_OF_TEXT)


@dataclass(frozen=True)
class Beginning:
    """Tokens to put before every text."""

    begin: Begin
    """The choice that was made."""
    ids: tuple[int, ...] = ()
    """Ids to put before every text. The first is never scored."""
    names: tuple[str, ...] = ()
    """The text of each id."""

    def record(self) -> dict[str, Any]:
        """Return the keys of a result that record it."""
        return {"begin": self.begin, "begin_tokens": [{"id": i, "token": n} for i, n in zip(self.ids, self.names, strict=True)]}


def choose_beginning(
    begin: Begin, tokenizer: LoadedTokenizer, model_folder: Path | None = None, scores_first_token: bool = False
) -> Beginning:
    """Return the tokens before every text, with one more where the first token is scored.

    The model folder's tokenizer_config.json counts if its tokenizer is the same.
    """
    prefix = (prefix_token(tokenizer, model_folder),) if scores_first_token else ()
    ids = (*prefix, *(added_tokens(tokenizer) if begin == "tokenizer" else ()))
    return Beginning(begin, ids, tuple(str(tokenizer.tokenizer.id_to_token(number)) for number in ids))


def added_tokens(tokenizer: LoadedTokenizer) -> tuple[int, ...]:
    """Return the ids that a tokenizer puts before a text when it encodes one with special tokens."""
    if not tokenizer.tokenizer.num_special_tokens_to_add(False):
        return ()
    # Some text must have a token: try the letter a, and then the text of each token.
    decoded = (tokenizer.tokenizer.decode([number]) for number in sorted(tokenizer.tokenizer.get_vocab().values()))
    for text in itertools.chain("a", decoded):
        with contextlib.suppress(Exception):  # the library raises bare ones where a text has no token
            encoded = tokenizer.tokenizer.encode(text, add_special_tokens=True)
            mask = encoded.special_tokens_mask
            if 0 in mask:
                return tuple(encoded.ids[: mask.index(0)])
    return ()


def prefix_token(tokenizer: LoadedTokenizer, model_folder: Path | None = None) -> int:
    """Return the id that lm_eval puts before a text whose first token is scored: bos, or else the end of text."""
    found = bos_token(tokenizer, model_folder)
    found = named_tokens(tokenizer, model_folder).get("eos_token") if found is None else found
    found = tokenizer.special.end_of_text if found is None else found
    if found is None:
        raise RelmError(
            f"{tokenizer.path}: has no token that begins (bos) or ends (eos) a text, so a text's first token cannot be scored. "
            "Name bos_token in tokenizer_config.json in the same folder, or set first_token: given"
        )
    return found


def bos_token(tokenizer: LoadedTokenizer, model_folder: Path | None = None) -> int | None:
    """Return the id of the token that begins a text: named in the settings, or the first one added, or known by its name.

    A `bos_token` of null in the settings means that the tokenizer has none.
    """
    named = named_tokens(tokenizer, model_folder)
    if "bos_token" in named or has_only_named_tokens(tokenizer, model_folder):
        return named.get("bos_token")
    if added := added_tokens(tokenizer):
        return added[0]
    special = {
        token.content: number for number, token in tokenizer.tokenizer.get_added_tokens_decoder().items() if token.special
    }
    return next((special[name] for name in BOS_TOKENS if name in special), None)


def prepend_to_each(ids: Sequence[int], tokens: Tokens, sizes: Integers) -> tuple[Tokens, Integers]:
    """Put the same ids before each of the sequences concatenated in one array; return array and sizes.

    >>> prepend_to_each([7, 8], np.array([1, 2, 3], np.int32), np.array([2, 1]))
    (array([7, 8, 1, 2, 7, 8, 3], dtype=int32), array([4, 3]))
    """
    first = np.repeat(np.cumsum(sizes) - sizes, len(ids))
    return np.insert(tokens, first, np.tile(np.array(ids, dtype=tokens.dtype), len(sizes))), sizes + len(ids)
