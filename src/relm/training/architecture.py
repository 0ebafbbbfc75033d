"""Build a recipe's model from its section, by the code that the architecture's declaration names.

Torch is imported only where a model is made.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.models.configuration import Configuration
from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.declaration import load
from relm.recipes.recipe import Recipe

if TYPE_CHECKING:
    from relm.models.contract import LanguageModel


def configuration(recipe: Recipe, tokenizer: TokenizerFacts) -> Configuration:
    """Return the configuration of a recipe's model for the tokens of a tokenizer."""
    wanted: dict[str, Any] = recipe.model.model_dump()
    wanted["vocabulary_size"] = wanted["vocabulary_size"] or tokenizer.vocabulary_size
    if wanted["vocabulary_size"] < tokenizer.vocabulary_size:
        raise RelmError(
            f"model.vocabulary_size is {wanted['vocabulary_size']}, but the tokenizer has {tokenizer.vocabulary_size} tokens; "
            "raise it, or leave it out"
        )
    terms = {term: classes for phase in recipe.pretrain.values() for term, classes in phase.classes.items()}
    try:
        config: Configuration = load(recipe.model.declaration.configuration)(wanted, tokenizer.special, terms)
    except ValueError as error:
        raise RelmError(f"model: {error}; correct it in the recipe") from None
    return config


def model_class(config: Configuration) -> Any:
    """Return the class of the model that a configuration describes."""
    declaration = ARCHITECTURES[config.architecture]
    return load(declaration.heads.get(getattr(config, "head", ""), declaration.model))


def unset_model(config: Configuration) -> "LanguageModel":
    """Return a model with uninitialised weights."""
    model: LanguageModel = model_class(config)(config)
    return model


def initial_model(config: Configuration, seed: int, init_from: Path | None) -> "LanguageModel":
    """Return a model with the weights of a Hugging Face folder, or with random weights, drawn on the CPU from a seed."""
    from torch import Generator

    if init_from is not None:
        try:
            published: LanguageModel = model_class(config).from_folder(init_from, expected=config)
            return published
        except (ValueError, OSError, SafetensorError) as error:
            raise RelmError(f"init_from: {init_from} does not have the weights that the recipe needs: {error}") from error
    model = unset_model(config)
    model.initialise(Generator().manual_seed(seed))
    return model
