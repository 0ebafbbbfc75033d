"""Pipelines of Graphcore's originals, with the models and phases that they split."""

from typing import Any, NamedTuple

from relm.models.bert_configuration import BertConfig
from relm.models.configuration import Configuration
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.phase import Phase


class Case(NamedTuple):
    """A pipeline, and the model and phase on which its memory depends."""

    config: Configuration
    phase: Phase
    pipeline: Pipeline


def gpt2_case(layers: int, heads: int, width: int, length: int, **pipeline: Any) -> Case:
    """Return a GPT-2 of Graphcore's vocabulary, with positions for one sequence."""
    config = Gpt2Config(layers=layers, heads=heads, hidden_size=width, positions=length, vocabulary_size=50272)
    split = {"position_embedding": 1, "device_iterations": 8, "loss_chunk": 128, "vocabulary_serialisation": 4}
    placed = Pipeline.model_validate(split | pipeline)
    optimizer = {"name": "adamw", "learning_rate": 1.5e-4, "weight_decay": 0}
    phase = {"objective": "causal", "sequence_length": length, "steps": 100, "precision": "bfloat16", "optimizer": optimizer}
    return Case(config, Phase.model_validate(phase | {"global_batch_size": placed.global_batch_size}), placed)


def gpt2_small(**pipeline: Any) -> Case:
    """Return GPT-2 small on sixteen IPUs."""
    split = {"layers_per_ipu": [0, 4, 4, 4], "replicas": 4, "gradient_accumulation": 2048, "replicated_tensor_sharding": True}
    return gpt2_case(12, 12, 768, 1024, **split | pipeline)


def bert_tiny(**pipeline: Any) -> Case:
    """Return a BERT of two layers on one IPU."""
    config = BertConfig(
        layers=2, heads=2, hidden_size=128, intermediate_size=512, positions=512, vocabulary_size=30400, next_sentence=True,
        query_key_value_bias=False, attention_projection_bias=False, transform_layer=False, prediction_bias=False,
    )  # fmt: skip
    split = {"layers_per_ipu": [2], "gradient_accumulation": 12, "first_moment_precision": "float32"}
    placed = Pipeline.model_validate(split | pipeline)
    phase = {
        "objective": "masked",
        "masked": {"packing": "sentence_pairs", "max_predictions": 20},
        "sequence_length": 128,
        "global_batch_size": placed.global_batch_size,
        "steps": 1000,
        "precision": "bfloat16",
        "optimizer": {"name": "lamb", "learning_rate": 1e-3},
    }
    return Case(config, Phase.model_validate(phase), placed)
