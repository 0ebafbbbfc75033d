"""A trained model, read from its folder to be evaluated."""

from pathlib import Path

from safetensors import SafetensorError

from relm.artifact import checked_sidecar, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.models.gpt2 import Gpt2


def load_for_evaluation(folder: Path, vocabulary_size: int) -> tuple[Gpt2, str]:
    """The model of a Hugging Face folder, dropout off, and the sha256 of its weights, compared with their sidecar if it exists.

    Args:
        vocabulary_size: of the tokenizer whose ids it will be given.

    Raises:
        RelmError: the folder is no GPT-2, or is one for a smaller vocabulary.
    """
    weights = folder / "model.safetensors"
    try:
        sha256 = checked_sidecar(weights)["sha256"] if sidecar_of(weights).exists() else sha256_of(weights)
        model = Gpt2.from_folder(folder)
    except (OSError, ValueError, SafetensorError) as error:
        raise RelmError(f"{folder}: cannot be read as a model: {error}; give the folder of a trained GPT-2") from None
    if model.config.vocabulary_size < vocabulary_size:
        raise RelmError(
            f"{folder}: the model knows {model.config.vocabulary_size:,} tokens, the tokenizer has {vocabulary_size:,}; "
            "give the tokenizer it was trained with"
        )
    return model.eval(), sha256


def require_context(folder: Path, model: Gpt2, context: int) -> None:
    """Refuse a context that the model cannot see at once.

    Raises:
        RelmError: it has fewer positions.
    """
    if not 1 <= context <= model.config.positions:
        raise RelmError(f"{folder}: has {model.config.positions} positions; a context of {context} does not fit")
