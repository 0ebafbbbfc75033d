"""Facts on a recipe's tokenizer before anything is downloaded or trained."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.recipes.plan import Plan

ASSUMED_CHARACTERS, ASSUMED_TOKENS = 256, 32_000
"""Assumed vocabulary sizes while the size is unknown: of characters, and of other tokenizers."""


class Expected(NamedTuple):
    """The size and special tokens that every tokenizer of a kind has, trained here or published."""

    vocabulary_size: int | None
    """The count of tokens; None: it differs between tokenizers of the kind."""
    special: Mapping[str, int]
    """Maps a name, as in `SpecialIds`, to its id."""


_BERT = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
KINDS = {
    "byte_level_bpe": Expected(None, {"end_of_text": 0}),
    "roberta_byte_level_bpe": Expected(None, {"cls": 0, "pad": 1, "sep": 2, "end_of_text": 2, "unk": 3, "mask": 4}),
    "wordpiece": Expected(None, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}),
    "characters": Expected(None, {"end_of_text": 0, "unk": 1}),
    "gpt2_bpe": Expected(50_257, {"end_of_text": 50_256}),
    "roberta_bpe": Expected(50_265, {"cls": 0, "pad": 1, "sep": 2, "end_of_text": 2, "unk": 3, "mask": 50_264}),
    "bert_wordpiece_uncased": Expected(30_522, _BERT),
    "bert_wordpiece_cased": Expected(28_996, _BERT),
    "t5_sentencepiece": Expected(None, {"pad": 0, "end_of_text": 1, "sep": 1, "unk": 2}),
    "llama2_c": Expected(None, {"unk": 0, "end_of_text": 1, "cls": 1}),
    "tokenizers_json": Expected(None, {"pad": 0, "end_of_text": 1, "sep": 1, "unk": 2, "cls": 3, "mask": 4}),
}

# Maps the sha256 of a published sentencepiece model to its count of tokens, T5's sentinels included; other kinds have one size.
SENTENCEPIECES = {
    "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86": 32_100,  # T5
    "ef78f86560d809067d12bac6c09f19a462cb3af3f54d2b8acbba26e1433125d6": 250_100,  # mT5
    "037cb335abb25d1fa9e8ecae30ed2a3a8ace9302862ebcdc05d51a6bbb10c312": 512,  # stories260K
}


def tokenizer_of(plan: Plan) -> tuple[TokenizerFacts, str]:
    """Return facts on a recipe's tokenizer, and a phrase that states their source.

    They come from the tokenizer if it exists, else from the recipe and the kind of tokenizer.
    """
    if (made := made_tokenizer(plan)) is not None:
        from relm.examples.tokenization.tokenizer_files import load_tokenizer

        loaded = load_tokenizer(made)
        special = dataclasses.asdict(loaded.special)
        facts = TokenizerFacts(loaded.sha256, loaded.vocabulary_size, loaded.special.end_of_text, special)
        return facts, f"{facts.vocabulary_size:,} tokens, of {made}"
    facts, source = expected_tokenizer(plan)
    return facts, f"{facts.vocabulary_size:,} tokens, taken from {source}; it is not made yet"


def expected_tokenizer(plan: Plan) -> tuple[TokenizerFacts, str]:
    """Return the facts that follow from the recipe and its kind of tokenizer, and the key or kind that states its size."""
    choice, kind = plan.recipe.tokenizer, tokenizer_kind(plan)
    expected = KINDS[kind]
    sizes = {
        "tokenizer.vocabulary_size": choice.vocabulary_size,
        f"what every {kind} has": expected.vocabulary_size,
        f"what {choice.from_model} has": _published_sentencepiece(plan),
        "model.vocabulary_size": plan.recipe.model.vocabulary_size,
    }
    source, size = next(((source, size) for source, size in sizes.items() if size), ("", None))
    if size is None:
        raise RelmError(
            f"recipe {plan.name}: the size of its {kind} tokenizer is unknown; make the tokenizer first "
            f"(`snakemake {plan.tokenizer}`), or set model.vocabulary_size"
        )
    special: dict[str, int | None] = {**expected.special}
    return TokenizerFacts("", size, special.get("end_of_text"), special), source


def tokenizer_kind(plan: Plan) -> str:
    """Return the kind of tokenizer that a recipe trains or takes."""
    return plan.recipe.tokenizer.train or (plan.tokenizer_model and plan.tokenizer_model.tokenizer) or "tokenizers_json"


def _published_sentencepiece(plan: Plan) -> int | None:
    files = plan.tokenizer_model.files.values() if plan.tokenizer_model else ()
    return next((SENTENCEPIECES[file.sha256] for file in files if file.sha256 in SENTENCEPIECES), None)


def made_tokenizer(plan: Plan) -> Path | None:
    """Return the path of the recipe's tokenizer, None if it does not exist yet."""
    try:
        return plan.tokenizer if plan.tokenizer.exists() else None
    except RelmError:  # its source is a folder that this machine lacks
        return None


def vocabulary(plan: Plan) -> tuple[TokenizerFacts, str]:
    """Return the known or assumed facts of a recipe's tokenizer before there are data, and a phrase on their source."""
    try:
        return tokenizer_of(plan)
    except RelmError:
        if made_tokenizer(plan) is not None:  # and it is damaged
            raise
        size, why = ASSUMED_TOKENS, f"{plan.recipe.tokenizer.from_model} is not here yet"
        if plan.tokenizer_model is None:
            size, why = ASSUMED_CHARACTERS, "the text's characters are not counted yet"
        special: dict[str, int | None] = {**KINDS[tokenizer_kind(plan)].special}
        return TokenizerFacts("", size, special.get("end_of_text"), special), f"{size:,} tokens are ASSUMED: {why}"
