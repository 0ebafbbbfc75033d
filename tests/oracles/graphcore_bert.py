"""Compare Graphcore's BERT for TensorFlow 1 with `bert_tiny_ipu`, by its formulas: its program runs only on IPUs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from golden_files import Weights
from made_text import make_documents, wordpieces
from our_runs import Oracle, twin_of, write_table

from relm.models.bert_configuration import bert_configuration
from relm.training.architecture import unset_model
from small_tokenizers import save_uncased_wordpieces
from tensorflow_formula import as_variable, variables_of

DOCUMENTS, TEXT_SEED, LENGTH, PREDICTIONS, STEPS = 60, 0, 48, 8, 100
BATCH_SIZE, MICRO_BATCHES = 8, 2
HEADS = 4


def write_examples(folder: Path) -> Path:
    """Build the examples by the recipe's builder, and return their manifest."""
    tokenizer = save_uncased_wordpieces(folder / "tokenizer.json", wordpieces())
    texts = ["\n".join(sentences) for sentences in make_documents(DOCUMENTS, TEXT_SEED)]
    return write_table(GRAPHCORE_BERT, folder, texts, tokenizer)


def variables() -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return parameter -> the original's variable and its shape."""
    recipe = twin_of(GRAPHCORE_BERT)
    wanted = {**recipe.model.model_dump(), "vocabulary_size": len(wordpieces())}
    model = unset_model(bert_configuration(wanted, {"pad": 0}, recipe.pretrain["phase_1"].classes))
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    return {
        own: (name, shapes[own][::-1] if name.endswith("/kernel") else shapes[own]) for own, name in variables_of(model).items()
    }


def convert(weights: Weights) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return the variables as relm's parameters."""
    return {own: as_variable(name, weights[name]) for own, (name, _) in variables().items()}


GRAPHCORE_BERT = Oracle(
    name="graphcore_bert",
    original="graphcore/examples v3.0.0, BERT for TensorFlow 1",
    recipes=("bert_tiny_ipu",),
    twin={
        "model": {
            "layers": 2, "heads": HEADS, "hidden_size": 32, "intermediate_size": 64, "positions": LENGTH,
            "vocabulary_size": None, "hidden_dropout": 0.0, "unlearnt_input": "none",
        },
        "pretrain": {
            "phase_1": {
                "sequence_length": LENGTH,
                "masked": {"max_predictions": PREDICTIONS, "sentences": "lines"},
                "global_batch_size": BATCH_SIZE,
                "steps": STEPS,
                "precision": "float32",
                "loss_shares": MICRO_BATCHES,
            }
        },
    },
    run={"micro_batch_size": BATCH_SIZE // MICRO_BATCHES},
    write_examples=write_examples,
    convert=convert,
    arrays=("input_ids", "attention_mask", "token_type_ids", "masked_positions", "masked_labels", "next_sentence_labels"),
    phase="phase_1",
    also_changes=("model.unlearnt_input",),
    note=(
        "The program runs only on IPUs: its formulas stand in for it, in float64. The batches are relm's, and [PAD] learns "
        "where it was drawn as an input (unlearnt_input: none)."
    ),
)  # fmt: skip
