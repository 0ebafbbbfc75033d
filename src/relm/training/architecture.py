"""From a recipe's section on its model to the model; torch is imported only where a model is made."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.models.bert_configuration import BertConfig
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.t5_configuration import T5Config
from relm.recipes.architectures import BertArchitecture, T5Architecture
from relm.recipes.recipe import Recipe

if TYPE_CHECKING:
    from relm.models.contract import LanguageModel

Config = Gpt2Config | BertConfig | T5Config
# Configuration -> module and class of the model.
MODELS: dict[type, tuple[str, str]] = {
    Gpt2Config: ("relm.models.gpt2", "Gpt2"),
    BertConfig: ("relm.models.bert", "Bert"),
    T5Config: ("relm.models.t5", "T5"),
}


def configuration(recipe: Recipe, tokenizer: TokenizerFacts) -> Config:
    """Return the configuration of a recipe's model for the tokens of a tokenizer.

    Raises:
        RelmError: the recipe asks for fewer rows than there are tokens, or for a model that cannot be.
    """
    try:
        return _configuration(recipe, tokenizer)
    except ValueError as error:
        raise RelmError(f"model: {error}; correct it in the recipe") from None


def _configuration(recipe: Recipe, tokenizer: TokenizerFacts) -> Config:
    wanted: dict[str, Any] = recipe.model.model_dump(exclude={"architecture"})
    wanted["vocabulary_size"] = wanted["vocabulary_size"] or tokenizer.vocabulary_size
    if wanted["vocabulary_size"] < tokenizer.vocabulary_size:
        raise RelmError(
            f"model.vocabulary_size is {wanted['vocabulary_size']}, but the tokenizer has {tokenizer.vocabulary_size} tokens; "
            "raise it, or leave it out"
        )
    if isinstance(recipe.model, BertArchitecture):
        return _bert(recipe, recipe.model, tokenizer, wanted)
    if isinstance(recipe.model, T5Architecture):
        pad = tokenizer.special.get("pad") or 0
        return T5Config(**wanted, family=recipe.model.architecture, pad_token_id=pad, decoder_start_token_id=pad)
    return Gpt2Config(**wanted)


def _bert(recipe: Recipe, section: BertArchitecture, tokenizer: TokenizerFacts, wanted: dict[str, Any]) -> BertConfig:
    packings = [phase.masked.packing for phase in recipe.pretrain.values()]
    return BertConfig(
        **{**wanted, "intermediate_size": section.intermediate_size or 4 * section.hidden_size},
        family=section.architecture,
        next_sentence="sentence_pairs" in packings,
        padding_id=tokenizer.special.get("pad"),
    )


def model_class(config: Config) -> Any:
    """Return the class of the model that a configuration describes."""
    module, name = MODELS[type(config)]
    return getattr(importlib.import_module(module), name)


def unset_model(config: Config) -> "LanguageModel":
    """Return a model whose weights are yet to be set."""
    model: LanguageModel = model_class(config)(config)
    return model


def initial_model(config: Config, seed: int, init_from: Path | None) -> "LanguageModel":
    """Return a model with the weights of a folder, or with random ones, drawn on the CPU.

    Args:
        seed: of the random weights, any integer.

    Raises:
        RelmError: the folder holds a model of another architecture.
    """
    from torch import Generator

    if init_from is not None:
        try:
            published: LanguageModel = model_class(config).from_folder(init_from, expected=config)
            return published
        except (ValueError, OSError, SafetensorError) as error:
            raise RelmError(f"init_from: {init_from} has not the weights that the recipe needs: {error}") from error
    model = unset_model(config)
    model.initialise(Generator().manual_seed(seed))
    return model
