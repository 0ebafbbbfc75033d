"""The keys in which a smoke twin may differ from its recipe."""

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.smoke import list_option_lengths

# Patterns of dotted paths of all keys that may differ in a twin, beside those that declarations name.
MAY_CHANGE = (
    "data.dataset",  # replaced by the small dataset that the dataset names in its key `smoke`
    "data.documents",
    "tokenizer.vocabulary_size",
    "tokenizer.training_bytes",
    "model.layers",
    "model.heads",
    "model.hidden_size",
    "model.positions",
    "model.vocabulary_size",
    "init_from",  # removed: random weights
    "expect_reference",  # removed
    "pretrain.*.sequence_length",
    "pretrain.*.global_batch_size",
    "pretrain.*.steps",
    "pretrain.*.schedule.warmup_steps",
    "pretrain.*.schedule.updates_per_step",
    "pretrain.*.schedule.decay_end",
    "pretrain.*.loss_shares",
    "pretrain.*.as_published.ranks",
    "pretrain.*.as_published.batch",
    "seeds",
    "run.*",
    "on",  # emptied, because the twin fits any machine
    "on.*",  # the own machine's pipeline, made small
    "expect",  # emptied: a twin's figures are not comparable
    "expect_curve",  # removed
    "title",
    "deviations",  # the sentence about `original_corpus` names the dataset of the twin
)


def changed_keys(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths at which two resolved recipes differ."""
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changed_keys(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}"


def may_change(path: str) -> bool:
    """Return True if the key at a dotted path may differ in a twin."""
    sizes = (f"model.{key}" for architecture in ARCHITECTURES for key in architecture.twin_sizes)
    patterns = (*MAY_CHANGE, *sizes, *(f"pretrain.*.{name}.{key}" for name, key in list_option_lengths()))
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
