"""A pipeline that breaks a rule is rejected while recipes are read, and the shipped pipelines are those of the originals."""

import json
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from relm.artifact import read_json
from relm.errors import RelmError
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.pipeline_memory import pipeline_memory
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.machine.machines import can_place
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.project import Project
from relm.recipes.section import merge
from relm.recipes.smoke import small_pipeline
from relm.training.architecture import configuration
from relm.training.arithmetic import parameter_count
from small_project import CHECKOUT, FINE_TUNED, shipped_project
from twin_keys import changed_keys, may_change

PROJECT = Project(CHECKOUT)
GPT2 = {
    "gpt2_small_pod16": "small",
    "gpt2_medium_pod16": "medium",
    "gpt2_large_512_pod16": "large512",
    "gpt2_large_1024_pod16": "large1024",
    "gpt2_large_poprun_pod64": "large_poprun_POD64",
}
BERT = ("bert_tiny_ipu", "bert_base_pod16", "bert_large_pod16", "bert_large_pod64")
PIPELINED = [*GPT2, *(f"{name}_generated" for name in GPT2), *BERT]


@pytest.fixture(scope="module")
def originals() -> Mapping[str, Any]:
    """The originals' runs as data, from the folder next to the checkout."""
    path = CHECKOUT.parent / "shared" / "ipu_runs.json"
    if not path.is_file():
        pytest.skip(f"{path} does not exist; it has the originals' runs")
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def pipeline_of(name: str) -> Pipeline:
    pipeline = PROJECT.plan(name).recipe.run.pipeline
    assert pipeline is not None
    return pipeline


def refusal(folder: Path, base: str, machine: str, pipeline: dict[str, Any], **keys: Any) -> str:
    """Return the error of a recipe that extends another one with other keys of its pipeline."""
    content = merge({"extends": base, "on": {machine: {"pipeline": pipeline}}}, keys)
    (folder / "recipes" / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(RelmError) as caught:
        Project(folder).plan("mine")
    return str(caught.value)


def main_phase(**keys: Any) -> dict[str, Any]:
    return {"pretrain": {"main": keys}}


@pytest.mark.parametrize(
    ("pipeline", "keys", "words"),
    [
        ({"layers_per_ipu": [0, 4, 4, 5]}, {}, "layers_per_ipu: 13 layers, but model.layers is 12"),
        ({"layers_per_ipu": [4, 4, 4], "available_memory_proportion": None}, {}, "layers_per_ipu: the number of IPUs must be"),
        (
            {"layers_per_ipu": [4, "4", 4, 0]},
            {},
            "on.pod16.pipeline.layers_per_ipu.1: expected a number, without quotes",
        ),
        (
            {"layers_per_ipu": [4, True, 4, 3]},
            {},
            "layers_per_ipu.1: expected a number (YAML reads yes, no, on and off as true and false); found True",
        ),
        (
            {"available_memory_proportion": [0.1, True, 0.1, 0.1]},
            {},
            "available_memory_proportion.1: expected a number (YAML",
        ),
        ({"head": 4}, {}, "head: expected an IPU from 0 to 3, as layers_per_ipu has 4; found 4"),
        ({"position_embedding": 7}, {}, "position_embedding: expected an IPU from 0 to 3"),
        ({"head": 3}, {}, "head: on IPU 3, but its weights are the token embedding's, on IPU 0"),
        ({"gradient_accumulation": 8}, main_phase(global_batch_size=32), "5 forward stages need at least 2 * 5 - 1 = 9"),
        ({"gradient_accumulation": 511}, {}, "micro_batch_size 1 x gradient_accumulation 511 x replicas 4 = 2,044 sequences"),
        ({"instances": 3}, {}, "instances (3) must divide replicas (4)"),
        ({"replicas": 8, "gradient_accumulation": 256}, {}, "on.pod16.pipeline.replicas: 8 replicas of 4 IPUs are 32, but"),
        ({"replicas": 1, "gradient_accumulation": 2048}, {}, "replicated_tensor_sharding: shares the"),
        ({"device_iterations": 16}, main_phase(schedule={"updates_per_step": 16}), "device_iterations: 16 updates of one call"),
        (
            {"device_iterations": 10**30},
            {},
            f"device_iterations: {10**30} updates of one call must divide pretrain.main.steps (1128)",
        ),
        ({}, {"run": {"checkpoint_interval": 100}}, "on.pod16.pipeline.device_iterations: 8 updates of one call must divide"),
        ({}, main_phase(schedule={"updates_per_step": 12}), "pretrain.main.schedule.updates_per_step must be a multiple of 8"),
        ({"available_memory_proportion": [0.1, 0.2]}, {}, "available_memory_proportion: expected a value for each of the 4"),
        ({"loss_chunk": 100}, {}, "loss_chunk: 100 tokens must divide pretrain.main.sequence_length (1024)"),
        ({"vocabulary_serialisation": 5}, {}, "vocabulary_serialisation: 5 slices must divide model.vocabulary_size, found"),
        ({}, {"model": {"vocabulary_size": None}}, "4 slices must divide model.vocabulary_size, found null, the tokenizer's"),
        ({"phases": {"second": {"micro_batch_size": 2}}}, {}, "phases.second: there is no such phase; the recipe has main"),
        (
            {},
            main_phase(optimizer={"name": "sgd", "betas": [0.9, 0.999], "epsilon": 1e-8}),
            "pretrain.main.optimizer.name: on.pod16.pipeline needs adamw, adam or lamb; found sgd",
        ),
        (
            {},
            main_phase(optimizer={"gradient_clipping": 1.0}),
            "pretrain.main.optimizer.gradient_clipping: on.pod16.pipeline needs null, or with adamw first_moment_precision: "
            "float32 and replicated_tensor_sharding: false; found 1.0",
        ),
        (
            {"first_moment_precision": "float32"},
            main_phase(optimizer={"gradient_clipping": 1.0}),
            "pretrain.main.optimizer.gradient_clipping: on.pod16.pipeline needs null, or with adamw",
        ),
        (
            {"first_moment_precision": "float32", "replicated_tensor_sharding": False},
            main_phase(optimizer={"name": "lamb", "gradient_clipping": 1.0}),
            "main.optimizer.gradient_clipping: on.pod16.pipeline needs null, or with adamw",
        ),
        (
            {},
            main_phase(optimizer={"name": "lamb", "lamb": {"normalise_gradient": True}}),
            "main.optimizer.lamb.normalise_gradient: on.pod16.pipeline needs false; found True",
        ),
        ({}, main_phase(optimizer={"form": "transformers"}), "main.optimizer.form: on.pod16.pipeline needs pytorch; found"),
        ({}, main_phase(optimizer={"bias_correction": False}), "main.optimizer.bias_correction: on.pod16.pipeline needs true"),
        ({}, main_phase(precision="float16"), "pretrain.main.precision: on.pod16.pipeline needs float32 or bfloat16, beside"),
        ({}, main_phase(loss_scaling={"scale": 8}), "main.loss_scaling.scale: on.pod16.pipeline needs 1, beside its own"),
        ({"gradient_acumulation": 4}, {}, "gradient_acumulation: unknown key; did you mean gradient_accumulation?"),
    ],
)
def test_a_pipeline_that_breaks_a_rule_is_refused_with_the_rule(
    pipeline: dict[str, Any], keys: dict[str, Any], words: str, copied: Path
) -> None:
    assert words in refusal(copied, "gpt2_small_pod16", "pod16", pipeline, **keys)


@pytest.mark.parametrize(
    ("pipeline", "keys", "words"),
    [
        ({"gradient_accumulation": 2052}, {}, "gradient_accumulation: must be a multiple of 10, twice stages_of_original, as"),
        ({"phases": {"phase_2": {"gradient_accumulation": 2051}}}, {}, "phases.phase_2.gradient_accumulation: must be a"),
        ({"phases": {"phase_2": {"micro_batch_size": 4}}}, {}, "micro_batch_size 4 x gradient_accumulation 2050 x replicas 4"),
        ({}, {"pretrain": {"phase_1": {"loss_shares": 4100}}}, "8200 micro-batches of all replicas, but"),
        ({"loss_chunk": 64}, {}, "loss_chunk: needs objective causal, found masked in pretrain.phase_1"),
        ({"phases": {"phase_2": {"available_memory_proportion": [0.5]}}}, {}, "phases.phase_2.available_memory_proportion"),
    ],
)
def test_each_phase_of_a_pipeline_keeps_the_rules(
    pipeline: dict[str, Any], keys: dict[str, Any], words: str, copied: Path
) -> None:
    assert words in refusal(copied, "bert_large_pod16", "pod16", pipeline, **keys)


def test_a_billion_layers_are_refused_by_their_sum_without_a_list_of_them(copied: Path) -> None:
    layers = {"layers_per_ipu": [0, 10**9, 10**9, 0]}
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (1 << 28), limits[1]))
    try:
        assert "layers_per_ipu: 2000000000 layers, but model.layers is 12" in refusal(
            copied, "gpt2_small_pod16", "pod16", layers
        )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_one_ipu_needs_no_more_than_one_micro_batch() -> None:
    assert Pipeline(layers_per_ipu=[2], gradient_accumulation=1).stages == 1


def test_a_machine_with_ipus_needs_a_pipeline_and_names_the_keys() -> None:
    with pytest.raises(RelmError) as caught:
        PROJECT.plan("quickstart@pod16")
    words = str(caught.value)
    assert "quickstart.yaml: on.pod16.pipeline: missing, and pod16 (device ipu) needs one." in words
    assert "Give layers_per_ipu (the number of layers on each IPU) and gradient_accumulation" in words


def test_a_pipeline_on_another_machine_or_device_is_refused(copied: Path) -> None:
    words = refusal(copied, "gpt2_small_pod16", "h100", {"layers_per_ipu": [12], "gradient_accumulation": 2048})
    assert "on.h100.pipeline: h100 has device cuda, which runs no pipeline; leave it out" in words
    (copied / "recipes" / "mine.yaml").write_text(
        "extends: quickstart\nrun: {pipeline: {layers_per_ipu: [3], gradient_accumulation: 16}}\n"
    )
    with pytest.raises(RelmError, match=r"run.pipeline: needs device: ipu or ipu_simulator, found cpu; .* under on.MACHINE"):
        Project(copied).plan("mine")


def test_a_device_without_a_machine_has_its_pipeline_in_run(copied: Path) -> None:
    path = copied / "recipes" / "mine.yaml"
    path.write_text("extends: quickstart\nrun: {machine: null, device: ipu_simulator}\n")
    with pytest.raises(RelmError, match=r"run.pipeline: missing, and device: ipu_simulator needs one; give layers_per_ipu"):
        Project(copied).plan("mine")
    pipeline = "pipeline: {layers_per_ipu: [1, 2], gradient_accumulation: 16}"
    keys = "pretrain: {main: {optimizer: {gradient_clipping: null}}}"
    path.write_text(f"extends: quickstart\n{keys}\nrun: {{machine: null, device: ipu_simulator, {pipeline}}}\n")
    assert Project(copied).plan("mine").recipe.run.pipeline == Pipeline(layers_per_ipu=[1, 2], gradient_accumulation=16)


def test_an_architecture_without_segments_is_refused(copied: Path) -> None:
    words = refusal(
        copied, "mt5_base_romanian_diacritics_v3-8", "pod16", {"layers_per_ipu": [6, 6], "gradient_accumulation": 64}
    )
    assert "a mt5 cannot be split over IPUs; gpt2, llama and bert can" in words


def test_the_micro_batch_follows_from_the_pipeline(copied: Path) -> None:
    content = {"extends": "gpt2_small_pod16", "on": {"pod16": {"micro_batch_size": 2}}}
    (copied / "recipes" / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(RelmError, match=r"micro_batch_size \(2\): follows from pipeline.micro_batch_size \(1\); remove it"):
        Project(copied).plan("mine")
    sizes = {name: PROJECT.plan(name).recipe.run.micro_batch_size for name in BERT}
    assert sizes == {"bert_tiny_ipu": 1, "bert_base_pod16": 8, "bert_large_pod16": 2, "bert_large_pod64": 2}


def test_a_phase_has_the_keys_that_it_gives_and_those_of_the_first() -> None:
    pipeline = pipeline_of("bert_large_pod16")
    first, second = pipeline.of_phase("phase_1"), pipeline.of_phase("phase_2")
    assert (first.micro_batch_size, first.loss_scaling.scale, first.phases) == (8, 32768, {})
    assert (second.micro_batch_size, second.loss_scaling.scale) == (2, 128)
    assert second.available_memory_proportion == [0.15, 0.40, 0.40, 0.40]
    assert (second.layers_per_ipu, second.gradient_accumulation, second.replicas) == ([3, 7, 7, 7], 2050, 4)


@pytest.mark.parametrize("name", PIPELINED)
def test_the_pipeline_is_no_part_of_the_fingerprint_and_stays_on_its_machine(name: str) -> None:
    own, elsewhere = PROJECT.plan(name), PROJECT.plan(f"{name}@h100")
    assert elsewhere.fingerprint == own.fingerprint == PROJECT.plan(f"{name}@cpu").fingerprint
    assert elsewhere.recipe.run.pipeline is None
    assert elsewhere.recipe.run.micro_batch_size is None
    assert own.recipe.run.device == "ipu"


def test_a_recipe_runs_on_the_machines_with_ipus_for_which_it_has_a_pipeline() -> None:
    recipe = PROJECT.plan("bert_large_pod64").recipe
    able = [name for name in ("ipu", "pod16", "pod64", "h100", "cpu") if can_place(recipe, name, PROJECT.machine(name, ""))]
    assert able == ["pod16", "pod64", "h100", "cpu"]
    there = PROJECT.plan("bert_large_pod64@pod16").recipe.run.pipeline
    assert there is not None
    assert there.global_batch_size == pipeline_of("bert_large_pod64").global_batch_size == 66_560


@pytest.mark.parametrize(("name", "run"), GPT2.items())
def test_a_generated_gpt2_run_has_the_numbers_of_its_script(name: str, run: str, originals: Mapping[str, Any]) -> None:
    original, common = originals[run], originals["gpt2_common"]
    recipe, pipeline = PROJECT.plan(f"{name}_generated").recipe, pipeline_of(f"{name}_generated")
    phase = recipe.pretrain["main"]
    assert (phase.sequence_length, recipe.model.longest_sequence) == (original["seq"], original["seq"])
    assert pipeline.layers_per_ipu == original["layers_per_ipu"]
    assert pipeline.available_memory_proportion == original["matmul_proportion"]
    assert (pipeline.ipus_per_replica, pipeline.ipus) == (original["ipus_per_replica"], original["ipus_total"])
    assert (pipeline.instances, pipeline.replicas // pipeline.instances) == (original["instances"], original["local_replicas"])
    assert pipeline.gradient_accumulation == original["gradient_accumulation"]
    assert pipeline.vocabulary_serialisation == original["embedding_serialization_factor"]
    assert pipeline.replicated_tensor_sharding == original["replicated_tensor_sharding"]
    assert (pipeline.stages, 2 * pipeline.stages - 1) == (original["forward_stages"], original["min_gradient_accumulation"])
    assert pipeline.global_batch_size == phase.global_batch_size == original["global_batch_sequences"]
    assert phase.global_batch_size * phase.sequence_length == original["tokens_per_update"]
    assert pipeline.device_iterations == original["updates_per_host_call"] == common["device_iterations"]
    assert phase.steps == original["epochs"] * 4 * pipeline.device_iterations
    assert phase.as_published is not None
    assert phase.as_published.examples == 4 * original["samples_per_host_call"]
    if "placement" in original:
        named = {"wte": pipeline.token_embedding, "wpe": pipeline.position_embedding, "lm_head": pipeline.head}
        assert {**named, "ln_f": original["placement"]["ln_f"]} == original["placement"]


@pytest.mark.parametrize("name", [name for name in GPT2 if name != "gpt2_large_poprun_pod64"])
def test_each_ipu_of_a_gpt2_run_has_the_parameters_of_the_original(name: str, originals: Mapping[str, Any]) -> None:
    plan, original = PROJECT.plan(f"{name}_generated"), originals[GPT2[name]]
    config = configuration(plan.recipe, vocabulary(plan)[0])
    ipus = pipeline_memory(config, plan.recipe.pretrain["main"], pipeline_of(plan.name))
    # The original counts the causal mask of each layer too.
    masks = [layers * original["seq"] ** 2 for layers in original["layers_per_ipu"]]
    found = {str(ipu): each.parameters + mask for ipu, (each, mask) in enumerate(zip(ipus, masks, strict=True))}
    assert found == original["params_per_ipu"]


@pytest.mark.parametrize("name", [*GPT2, *(f"{name}_generated" for name in GPT2)])
def test_a_gpt2_run_has_the_options_of_all_scripts(name: str, originals: Mapping[str, Any]) -> None:
    common, recipe, pipeline = originals["gpt2_common"], PROJECT.plan(name).recipe, pipeline_of(name)
    phase, model = recipe.pretrain["main"], recipe.model.model_dump()
    optimizer = phase.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.epsilon) == ("adamw", common["lr"], common["eps"])
    assert (list(optimizer.betas), optimizer.weight_decay, optimizer.bias_correction) == (common["betas"], 0.0, True)
    assert (phase.schedule.name, phase.schedule.warmup_share) == (common["schedule"], common["warmup_fraction"])
    assert (pipeline.loss_scaling.scale, pipeline.loss_chunk) == (common["loss_scaling"], common["serialised_seq_len"])
    assert (pipeline.accumulation_precision, pipeline.first_moment_precision) == (common["accum_type"], common["first_order"])
    assert (model["dropout"], model["vocabulary_size"], recipe.seed) == (common["dropout"], common["vocab"], common["seed"])
    assert (model["layer_norm_epsilon"], model["initializer_range"]) == (common["layer_norm_eps"], common["init_std"])
    assert model["activation"] == "gelu_tanh"
    assert (pipeline.micro_batch_size, pipeline.half_partials, pipeline.stochastic_rounding) == (1, True, True)
    assert pipeline.recompute_layers
    assert pipeline.optimizer_state_off_chip


@pytest.mark.parametrize("name", GPT2)
def test_a_gpt2_run_on_text_has_the_accumulation_that_the_readme_advises(name: str) -> None:
    pipeline, phase = pipeline_of(name), PROJECT.plan(name).recipe.pretrain["main"]
    assert pipeline.gradient_accumulation == 512
    # 118,634,000 tokens an epoch; one sample of the stream is dropped at most.
    assert phase.as_published is not None
    samples = 118_634_000 * phase.as_published.epochs // phase.sequence_length
    calls = samples // (phase.global_batch_size * pipeline.device_iterations)
    assert phase.steps == calls * pipeline.device_iterations
    assert phase.schedule.decay_end == calls // phase.as_published.epochs * phase.as_published.epochs


BERT_PHASES = {
    ("bert_large_pod16", "phase_1"): ("bert_large_phase1", None),
    ("bert_large_pod16", "phase_2"): ("bert_large_phase2", None),
    ("bert_large_pod64", "phase_1"): ("bert_large_phase1", "POD64"),
    ("bert_large_pod64", "phase_2"): ("bert_large_phase2", "POD64"),
    ("bert_tiny_ipu", "phase_1"): ("bert_tiny", None),
}


@pytest.mark.parametrize(("run", "original"), BERT_PHASES.items())
def test_a_bert_run_has_the_numbers_of_its_configuration(
    run: tuple[str, str], original: tuple[str, str | None], originals: Mapping[str, Any]
) -> None:
    name, part = original
    published = {**originals[name], **(originals[name][part] if part else {})}
    recipe, pipeline = PROJECT.plan(run[0]).recipe, pipeline_of(run[0]).of_phase(run[1])
    phase, model = recipe.pretrain[run[1]], recipe.model.model_dump()
    assert pipeline.layers_per_ipu == published["poptorch_layers_per_ipu"]
    assert pipeline.stages_of_original == len(published["pipeline"])
    assert (pipeline.micro_batch_size, pipeline.gradient_accumulation, pipeline.replicas) == (
        published["micro_batch"],
        published["gradient_accumulation"],
        published["replicas"],
    )
    assert pipeline.global_batch_size == phase.global_batch_size == published["global_batch"]
    assert phase.loss_shares == pipeline.gradient_accumulation * pipeline.replicas
    shares = published["available_memory_proportion"]
    assert pipeline.available_memory_proportion == (shares if isinstance(shares, list) else [shares])
    assert pipeline.loss_scaling.scale == published["loss_scaling"]
    assert (phase.steps, phase.optimizer.learning_rate) == (published["steps"], published["lr"])
    assert phase.schedule.warmup_steps == published["warmup_steps"]
    assert (phase.sequence_length, phase.masked.max_predictions) == (published["seq"], published.get("max_predictions", 20))
    assert (model["hidden_size"], model["layers"], model["heads"]) == tuple(
        published[key] for key in ("hidden", "layers", "heads")
    )
    assert phase.schedule.floor * phase.optimizer.learning_rate == pytest.approx(1e-7, rel=1e-12)


def test_bert_base_has_the_numbers_of_its_configurations() -> None:
    recipe, pipeline = PROJECT.plan("bert_base_pod16").recipe, pipeline_of("bert_base_pod16")
    assert (pipeline.layers_per_ipu, pipeline.stages, pipeline.gradient_accumulation) == ([0, 4, 4, 4], 5, 510)
    found = {
        name: (phase.global_batch_size, phase.steps, phase.schedule.warmup_steps) for name, phase in recipe.pretrain.items()
    }
    assert found == {"phase_1": (65_280, 7032, 2000), "phase_2": (16_320, 2142, 277)}
    assert recipe.pretrain["phase_2"].optimizer_state == "kept"


@pytest.mark.parametrize("name", BERT)
def test_a_bert_run_has_the_switches_of_the_original(name: str) -> None:
    model = PROJECT.plan(name).recipe.model.model_dump()
    switches = ("query_key_value_bias", "attention_projection_bias", "transform_layer")
    assert [model[switch] for switch in switches] == [False, False, False]
    assert model["prediction_bias"] == (name != "bert_tiny_ipu")
    assert (model["layer_norm_epsilon"], model["activation"]) == (1e-3, "gelu_tanh")
    assert model["attention_dropout"] == (0.1 if name == "bert_base_pod16" else 0.0)
    for phase in PROJECT.plan(name).recipe.pretrain.values():
        optimizer = phase.optimizer
        assert (optimizer.name, optimizer.bias_correction, optimizer.decayed) == ("lamb", False, "all_but_biases")
        assert (optimizer.weight_decay, optimizer.epsilon, optimizer.lamb.adapted) == (0.01, 1e-6, "matrices")
        assert phase.loss_normalisation == "per_micro_batch"


# The architectures of config/*.json of Graphcore's GPT-2, and the parameters that a GPT-2 of these sizes has.
SIZES = {
    "gpt2-test": (768, 4, 4, 20_256, 1024, 44_696_064),
    "gpt2": (768, 12, 12, 50_272, 1024, 124_451_328),
    "gpt2-medium": (1024, 24, 16, 50_272, 1024, 354_838_528),
    "gpt2-large": (1280, 36, 20, 50_272, 1024, 774_049_280),
    "gpt2-xl": (1600, 48, 25, 50_272, 1024, 1_557_635_200),
}


@pytest.mark.parametrize("name", SIZES)
def test_every_configuration_of_the_original_has_as_many_parameters(name: str) -> None:
    width, layers, heads, vocabulary, positions, parameters = SIZES[name]
    config = Gpt2Config(
        vocabulary_size=vocabulary, layers=layers, heads=heads, hidden_size=width, positions=positions, dropout=0.1
    )
    # 12 d^2 + 13 d in a layer, and the embeddings and the last normalisation.
    by_hand = layers * (12 * width**2 + 13 * width) + (vocabulary + positions + 2) * width
    assert by_hand == parameters
    assert parameter_count(config) == parameters


@pytest.mark.parametrize("name", PIPELINED)
def test_a_twin_has_a_small_pipeline_of_the_same_shape(name: str) -> None:
    pipeline, twin = pipeline_of(name), PROJECT.plan(f"smoke/{name}").recipe
    small = pipeline_of(f"smoke/{name}")
    assert small == small_pipeline(pipeline)
    assert (twin.run.device, twin.run.machine) == ("ipu_simulator", None)
    assert small.ipus_per_replica == min(pipeline.ipus_per_replica, 4)
    assert [count == 0 for count in small.layers_per_ipu] == [count == 0 for count in pipeline.layers_per_ipu[:4]]
    assert sum(small.layers_per_ipu) == twin.model.layers <= 4
    assert small.position_embedding == min(pipeline.position_embedding, small.ipus_per_replica - 1)
    assert small.replicas == min(pipeline.replicas, 2)
    assert small.gradient_accumulation < 2 * small.stages + 10
    for phase, settings in twin.pretrain.items():
        assert small.of_phase(phase).global_batch_size == settings.global_batch_size <= 60
        assert settings.loss_shares in (1, small.gradient_accumulation * small.replicas)
        assert settings.steps % small.device_iterations == 0
    changed = changed_keys(PROJECT.plan(name).recipe.model_dump(), twin.model_dump())
    assert [path for path in changed if not may_change(path)] == []


def test_a_twin_runs_on_the_ipus_of_the_recipes_machine_as_well() -> None:
    here, there = PROJECT.plan("smoke/gpt2_small_pod16"), PROJECT.plan("smoke/gpt2_small_pod16@pod16")
    assert (there.recipe.run.device, there.recipe.run.pipeline) == ("ipu", here.recipe.run.pipeline)
    assert there.fingerprint == here.fingerprint
    assert PROJECT.plan("smoke/gpt2_small_pod16@h100").recipe.run.pipeline is None


def test_a_dry_run_of_all_runs_on_ipus_shows_the_graph_from_the_downloads_to_the_verdict(tmp_path: Path) -> None:
    jobs = shipped_project(tmp_path).jobs(*(f"results/{name}" for name in (*GPT2, *BERT)))
    assert jobs["pretrain"] == len(GPT2) + 1 + 2 * (len(BERT) - 1)
    assert jobs["evaluate"] == 3 * len(GPT2) + 2 * len(BERT) + len({"SQuAD of bert_large_pod16", "and of bert_large_pod64"})
    assert jobs["download_data"] == len({"wiki.train.raw", "wiki.valid.raw"}) * len({"WikiText-103", "WikiText-2"})
    assert jobs["download_test"] == len({"wikitext103", "lambada", "train-v1.1.json", "dev-v1.1.json"})
    assert jobs["verify"] == jobs["report"] == jobs["publish"] == len(GPT2) + len(BERT)


@pytest.mark.full
@pytest.mark.parametrize("name", [*GPT2, "gpt2_small_pod16_generated", *BERT])
def test_a_twin_trains_through_its_small_pipeline_to_its_published_model(name: str, tmp_path: Path, shared_data: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    project = shipped_project(tmp_path, without=FINE_TUNED)
    done = project.snakemake(f"results/smoke/{name}", RELM_MIRROR=str(shared_data), http_proxy=nowhere, https_proxy=nowhere)
    assert done.returncode == 0, done.stdout
    results = tmp_path / "results" / "smoke" / name
    assert read_json(results / "recipe.json")["recipe"]["run"]["device"] == "ipu_simulator"
    assert (results / "model.safetensors").stat().st_size > 10_000
