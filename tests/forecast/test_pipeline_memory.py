"""The memory of each IPU of a pipeline: figures that one can compute by hand, and the originals' own counts of parameters."""

import json

import pytest
from pipelines import bert_tiny, gpt2_case, gpt2_small

from relm.forecast.pipeline_memory import bubble_share, pipeline_memory
from small_project import CHECKOUT

RUNS = CHECKOUT.parent / "shared" / "ipu_runs.json"
SIZES = {"small": (12, 12, 768), "medium": (24, 16, 1024), "large512": (36, 20, 1280), "large1024": (36, 20, 1280)}


@pytest.mark.parametrize(("batches", "share"), [(2048, 4 / 2052), (9, 4 / 13)])
def test_the_bubble_is_what_fills_and_empties_the_pipeline(batches: int, share: float) -> None:
    assert bubble_share(gpt2_small(gradient_accumulation=batches).pipeline) == share


def test_one_ipu_has_no_bubble() -> None:
    assert bubble_share(bert_tiny().pipeline) == 0


@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_those_that_the_originals_placed_on_each_ipu(name: str) -> None:
    """The originals' counts include a buffer with the causal mask, length x length values, in each layer."""
    if not RUNS.is_file():
        pytest.skip("ipu_runs.json, with the originals' counts of parameters, is not in ../shared")
    run = json.loads(RUNS.read_text())[name]
    length, layers = run["seq"], run["layers_per_ipu"]
    config, phase, pipeline = gpt2_case(
        *SIZES[name],
        length,
        layers_per_ipu=layers,
        replicas=run["local_replicas"],
        gradient_accumulation=run["gradient_accumulation"],
    )
    counted = [
        ipu.parameters + length**2 * count for ipu, count in zip(pipeline_memory(config, phase, pipeline), layers, strict=True)
    ]
    assert counted == list(run["params_per_ipu"].values())
    assert pipeline.stages == run["forward_stages"]
    assert 2 * pipeline.stages - 1 == run["min_gradient_accumulation"]


def test_every_parameter_lies_on_one_ipu() -> None:
    """768 x (50,272 + 1,024) embeddings, 12 layers of 7,087,872, a last normalisation of 2 x 768."""
    config, phase, pipeline = gpt2_small()
    ipus = pipeline_memory(config, phase, pipeline)
    assert [ipu.parameters for ipu in ipus] == [768 * 50272, 768 * 1024 + 4 * 7_087_872, 4 * 7_087_872, 4 * 7_087_872 + 1536]


def test_weights_and_gradients_have_the_pipelines_precisions() -> None:
    half, full = (
        pipeline_memory(*gpt2_small(precision=weights, accumulation_precision=gradients))[0]
        for weights, gradients in (("float16", "float32"), ("float32", "float16"))
    )
    assert (half.weights, half.accumulators) == (2 * 768 * 50272, 4 * 768 * 50272)
    assert (full.weights, full.accumulators) == (4 * 768 * 50272, 2 * 768 * 50272)


@pytest.mark.parametrize(
    ("changes", "bytes_of_a_parameter"),
    [
        ({}, 6 / 4),  # a first moment in float16 and a second in float32, shared by four replicas
        ({"replicated_tensor_sharding": False}, 6),
        ({"first_moment_precision": "float32"}, 8 / 4),
    ],
)
def test_the_optimizers_state_is_on_chip_or_off_and_shared_by_replicas_or_not(
    changes: dict[str, object], bytes_of_a_parameter: float
) -> None:
    for off_chip in (True, False):
        ipu = pipeline_memory(*gpt2_small(optimizer_state_off_chip=off_chip, **changes))[0]
        expected = int(bytes_of_a_parameter * 768 * 50272)
        assert (ipu.optimizer, ipu.off_chip) == ((0, expected) if off_chip else (expected, 0))


def test_the_state_of_small_tensors_stays_on_chip_whole() -> None:
    """IPU 3 has four layers of eight vectors each, which have 768 to 3,072 values, and two vectors after them."""
    changed = {"smallest_remote_tensor": 4 * 3073}
    ipu, whole = (pipeline_memory(*gpt2_small(**each))[3] for each in (changed, {}))
    assert ipu.optimizer == 6 * (4 * (2304 + 768 + 3072 + 768 + 4 * 768) + 2 * 768)
    assert ipu.optimizer + 4 * ipu.off_chip == 4 * whole.off_chip
    assert whole.optimizer == 0


def test_hidden_states_wait_once_for_each_segment_and_micro_batch() -> None:
    """IPU 0 has the head's input, of one micro-batch; IPU 3 four layers' inputs, of three, and one layer computed again.

    A layer keeps two inputs of normalisations in float32 with their statistics, ten times the width of other inputs, scores
    with a mask of a byte, queries, keys and values, the output of attention, and two masks.
    """
    config, phase, pipeline = gpt2_small()
    ipus = pipeline_memory(config, phase, pipeline)
    hidden, scores = 2 * 1024 * 768, 12 * 1024 * 1024
    layer = 2 * (2 * hidden + 8 * 1024) + 10 * hidden + (2 + 1) * scores + 3 * hidden + hidden + 2 * 1024 * 768
    assert ipus[0].activations == hidden
    assert ipus[3].activations == 3 * 4 * hidden + layer
    twice = pipeline_memory(*gpt2_small(micro_batch_size=2, gradient_accumulation=1024))
    assert [ipu.activations for ipu in twice] == [2 * ipu.activations for ipu in ipus]


def test_without_recomputation_every_layer_is_kept_for_each_waiting_micro_batch() -> None:
    again, kept = (pipeline_memory(*gpt2_small(recompute_layers=recompute)) for recompute in (True, False))
    hidden = 2 * 1024 * 768
    layer = again[3].activations - 12 * hidden
    assert kept[3].activations == 12 * hidden + 3 * 4 * layer
    assert kept[0] == again[0]


def test_logits_are_those_of_all_scored_positions_with_one_chunk_in_float32() -> None:
    assert pipeline_memory(*gpt2_small())[0].logits == 2 * (2 * 1024 + 4 * 128) * 50272
    assert pipeline_memory(*gpt2_small(loss_chunk=None))[0].logits == 2 * (2 + 4) * 1024 * 50272
    # 15 % of 128 tokens without the three special ones are 19 masked tokens.
    assert pipeline_memory(*bert_tiny(loss_chunk=512))[0].logits == 2 * (2 + 4) * 19 * 30400
