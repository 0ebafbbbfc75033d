"""The options and optimizers of the shipped recipes, compared with those of the original runs."""

from typing import Any

import expected_options as expected
import pytest

from relm.devices.ipu.options import Surroundings, optimizer_table, options_table
from relm.devices.ipu.partition import build_model
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.optimization import Optimizer
from relm.recipes.project import Project
from small_project import CHECKOUT

PROJECT = Project(CHECKOUT)
# Run of an original -> recipe, phase, its options, its optimizer.
RUNS = {
    "gpt2_small": ("gpt2_small_pod16_generated", "main", "gpt2_small", "gpt2_small"),
    "gpt2_medium": ("gpt2_medium_pod16_generated", "main", "gpt2_medium", "gpt2_medium"),
    "gpt2_large_512": ("gpt2_large_512_pod16_generated", "main", "gpt2_large_512", "gpt2_large_512"),
    "gpt2_large_1024": ("gpt2_large_1024_pod16_generated", "main", "gpt2_large_1024", "gpt2_large_1024"),
    "gpt2_large_poprun": ("gpt2_large_poprun_pod64_generated", "main", "gpt2_large_poprun", "gpt2_large_poprun"),
    "bert_tiny": ("bert_tiny_ipu", "phase_1", "bert_tiny", "bert_tiny"),
    "bert_base_phase_1": ("bert_base_pod16", "phase_1", "bert_base", "bert_base_phase_1"),
    "bert_base_phase_2": ("bert_base_pod16", "phase_2", "bert_base", "bert_base_phase_2"),
    "bert_large_phase_1": ("bert_large_pod16", "phase_1", "bert_large_phase_1", "bert_large_phase_1"),
    "bert_large_phase_2": ("bert_large_pod16", "phase_2", "bert_large_phase_2", "bert_large_phase_2"),
    "bert_large_pod64_phase_1": ("bert_large_pod64", "phase_1", "bert_large_pod64_phase_1", "bert_large_pod64_phase_1"),
    "bert_large_pod64_phase_2": ("bert_large_pod64", "phase_2", "bert_large_pod64_phase_2", "bert_large_pod64_phase_2"),
}
# A recipe has one seed for all phases, that of the first; its deviations say so.
OTHER_OPTIONS = {"bert_large_phase_2": {"randomSeed": 1994}}


def pipeline_of(recipe: str, phase: str) -> dict[str, Any]:
    found = PROJECT.plan(recipe).recipe.run.pipeline
    assert found is not None
    return found.of_phase(phase).model_dump(mode="json")


def parameters(recipe: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the parameters of a small model with the names of the recipe's."""
    model = PROJECT.plan(recipe).recipe.model
    assert model is not None
    if model.architecture == "gpt2":
        sizes = {"layers": 1, "heads": 2, "hidden_size": 8, "positions": 4, "vocabulary_size": 16}
    else:
        switches = ("query_key_value_bias", "attention_projection_bias", "transform_layer", "prediction_bias")
        sizes = {
            "layers": 1, "heads": 2, "hidden_size": 8, "intermediate_size": 8, "positions": 4, "vocabulary_size": 16,
            "type_vocabulary_size": 2, "next_sentence": True, **{name: getattr(model, name) for name in switches},
        }  # fmt: skip
    return [(name, tuple(weight.shape)) for name, weight in build_model(model.architecture, sizes).named_parameters()]


@pytest.mark.parametrize("run", RUNS)
def test_options_are_those_of_the_original(run: str) -> None:
    recipe, phase, options, _ = RUNS[run]
    resolved = PROJECT.plan(recipe).recipe
    around = Surroundings(seed=resolved.seed, popdist=run == "gpt2_large_poprun")
    found = options_table(resolved.model.architecture, pipeline_of(recipe, phase), around)
    assert found == {**expected.OPTIONS[options], **OTHER_OPTIONS.get(options, {})}
    assert list(found) == list(expected.OPTIONS[options]), "in the original's order"


@pytest.mark.parametrize("run", RUNS)
def test_the_optimizer_is_that_of_the_original(run: str) -> None:
    recipe, phase, _, name = RUNS[run]
    pipeline, settings = pipeline_of(recipe, phase), PROJECT.plan(recipe).recipe.pretrain[phase].optimizer
    scale = pipeline["loss_scaling"]["scale"]
    table = optimizer_table(settings.model_dump(mode="json"), pipeline, parameters(recipe), scale)
    own = [{key: value for key, value in group.items() if key != "params"} for group in table.groups]
    assert {"name": table.name, "arguments": table.arguments, "groups": own} == expected.OPTIMIZERS[name]


def test_gpt2s_groups_are_its_matrices_and_its_vectors() -> None:
    table = optimizer_table(
        Optimizer(learning_rate=1e-3).model_dump(mode="json"),
        Pipeline(layers_per_ipu=[1], gradient_accumulation=1).model_dump(mode="json"),
        [
            ("transformer.wte.weight", (16, 8)),
            ("transformer.h.0.ln_1.weight", (8,)),
            ("transformer.h.0.attn.c_attn.bias", (24,)),
        ],
        1.0,
    )
    assert [group["params"] for group in table.groups] == [
        ["transformer.wte.weight"],
        ["transformer.h.0.ln_1.weight", "transformer.h.0.attn.c_attn.bias"],
    ]


def test_berts_scales_decay_and_its_biases_do_not() -> None:
    recipe, phase, _, _ = RUNS["bert_large_phase_1"]
    settings = PROJECT.plan(recipe).recipe.pretrain[phase].optimizer.model_dump(mode="json")
    names = [
        ("bert.embeddings.word_embeddings.weight", (16, 8)),
        ("bert.embeddings.LayerNorm.weight", (8,)),
        ("bert.embeddings.LayerNorm.bias", (8,)),
        ("bert.encoder.layer.0.output.dense.bias", (8,)),
    ]
    groups = optimizer_table(settings, pipeline_of(recipe, phase), names, 1.0).groups
    assert groups == [
        {"params": ["bert.embeddings.word_embeddings.weight"], "weight_decay": 0.01},
        {"params": ["bert.embeddings.LayerNorm.weight"], "weight_decay": 0.01, "max_weight_norm": 0.0},
        {
            "params": ["bert.embeddings.LayerNorm.bias", "bert.encoder.layer.0.output.dense.bias"],
            "weight_decay": 0.0,
            "max_weight_norm": 0.0,
        },
    ]


def test_arguments_that_differ_from_poptorchs_defaults_are_given() -> None:
    settings = Optimizer.model_validate(
        {"name": "lamb", "learning_rate": 1e-3, "betas": [0.8, 0.9], "lamb": {"adapted": "all", "weight_norm_clip": 10.0}}
    )
    table = optimizer_table(
        settings.model_dump(mode="json"),
        Pipeline(layers_per_ipu=[1], gradient_accumulation=1).model_dump(mode="json"),
        [("a.weight", (2, 2)), ("a.bias", (2,))],
        1.0,
    )
    assert table.arguments["betas"] == (0.8, 0.9)
    assert table.arguments["max_weight_norm"] == 10.0
    assert [set(group) for group in table.groups] == [{"params", "weight_decay"}] * 2, "all are adapted"


def test_on_chip_state_single_partials_and_automatic_scaling_are_options() -> None:
    pipeline = Pipeline.model_validate(
        {
            "layers_per_ipu": [1],
            "gradient_accumulation": 1,
            "optimizer_state_off_chip": False,
            "half_partials": False,
            "stochastic_rounding": False,
            "loss_scaling": {"name": "automatic"},
        }
    )
    around = Surroundings(seed=1, offline=True, executable_cache="cache")
    table = options_table("bert", pipeline.model_dump(mode="json"), around)
    assert "_Popart.set" not in table, "the options of Graphcore's GPT-2 are no BERT's"
    assert table["TensorLocations.setOptimizerLocation"]["useOnChipStorage"] is True
    assert "Precision.setPartialsType" not in table
    assert table["Precision.enableStochasticRounding"] is False
    assert table["Training.setAutomaticLossScaling"] is True
    assert "setAvailableMemoryProportion" not in table
    assert table["useOfflineIpuTarget"] is None
    assert table["enableExecutableCaching"] == "cache"
