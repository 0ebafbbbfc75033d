"""Check a recipe's keys against an original's options: a key without an option is an error, never ignored."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.examples.as_published.pairs import SHORTEST
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Masked, Objective


class Original(NamedTuple):
    """An original's name, and its options by the recipe's keys."""

    name: str
    masked: Mapping[str, tuple[Any, ...] | None]
    """Key of `masked` -> the values that the original can take, the first named in messages; None: any."""


# Every original replaces four of five masked tokens by the mask and one of ten by a random one.
SHARES = {"mask_share": (0.8,), "random_share": (0.1,)}


def require_options(original: Original, objective: Objective) -> AsPublished:
    """Return the recipe's `as_published` section, which names this builder, if it has an option for every key of `masked`."""
    assert objective.as_published is not None, "the builder is named there"
    for key, allowed in {**original.masked, **SHARES}.items():
        found = getattr(objective.masked, key)
        if allowed is not None and found not in allowed:
            known = " or ".join(_format_value(value) for value in allowed)
            raise RelmError(f"masked.{key}: {original.name} has no option for {_format_value(found)}; set it to {known}")
    return objective.as_published


def require_length(original: str, objective: Objective) -> int:
    """Return the sequence length."""
    if objective.sequence_length < SHORTEST:
        raise RelmError(f"sequence_length: {objective.sequence_length}, but {original} needs {SHORTEST} or more")
    return objective.sequence_length


def require_predictions(original: str, masked: Masked) -> int:
    """Return the most masked tokens of a sequence, a limit that the originals with static masks always have."""
    if masked.max_predictions is None:
        raise RelmError(f"masked.max_predictions: {original} always has a limit (20 by default); set it")
    return masked.max_predictions


def read_model_vocabulary(loaded: LoadedTokenizer, original: str) -> list[str]:
    """Return the tokens of the tokenizer's model by id; the originals draw random tokens from these."""
    ids = loaded.tokenizer.get_vocab(with_added_tokens=False)
    tokens = sorted(ids, key=lambda token: ids[token])
    if not tokens or ids[tokens[-1]] != len(tokens) - 1:
        raise RelmError(
            f"{loaded.path}: {len(tokens):,} tokens do not have the ids 0 to {len(tokens) - 1:,}, but {original} draws random "
            "tokens from its vocabulary by number; use the tokenizer that it was published with"
        )
    return tokens


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
