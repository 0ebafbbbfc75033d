"""Operations and parameters by arithmetic equal those of the real models."""

import subprocess
import sys
from collections import Counter

import pytest
import torch
from small_phases import BATCH, LENGTH, VOCABULARY, cases, model_and_batch, phase
from torch.utils.flop_counter import FlopCounterMode

from relm.models.bert_configuration import BertConfig
from relm.models.configuration import Configuration
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.t5_configuration import T5Config
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.architecture import unset_model
from relm.training.arithmetic import lengths, model_weights, operations, parameters, tensors

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
PAIRS: list[int] = []


def counted_cases(dropout: float = 0.1) -> dict[str, tuple[Configuration, Phase]]:
    """Return the small phases, and one of each family that shares its configuration with another."""
    dropouts = {"hidden_dropout": dropout, "attention_dropout": dropout}
    roberta = BertConfig(2, 4, 32, 80, 64, VOCABULARY, family="roberta", padding_id=1, type_vocabulary_size=1, **dropouts)
    bare = BertConfig(
        2,
        4,
        32,
        80,
        64,
        VOCABULARY,
        query_key_value_bias=False,
        attention_projection_bias=False,
        prediction_bias=False,
        **dropouts,
    )
    mt5 = T5Config(2, 4, 12, 32, 48, VOCABULARY, family="mt5", dropout=dropout)
    return cases(dropout) | {
        "roberta": (roberta, phase("masked", masked={"selection": "bernoulli"})),
        "bert, few biases": (bare, phase("masked")),
        "mt5": (mt5, phase("seq2seq")),
    }


CASES = list(counted_cases())


def attention(query, key, value, *others, out_shape=None, **options) -> int:
    """Return the operations of scores and values, which torch counts on a GPU but not on a CPU."""
    batch, heads, queries, size = query
    PAIRS.append(2 * batch * heads * queries * key[2] * size)
    return 2 * PAIRS[-1]


def attention_backward(gradient, query, key, *others, out_shape=None, **options) -> int:
    """Return the operations of the gradients of query, key, value and weights, and of recomputing the scores."""
    batch, heads, queries, size = query
    return 5 * 2 * batch * heads * queries * key[2] * size


def counted(config: Configuration, settings, run: Run) -> tuple[int, int, int]:
    """Return the operations of the forward pass, of the backward pass, and of scores that the latter computes again."""
    model, batch = model_and_batch(config, settings)
    model.activation_checkpointing = run.activation_checkpointing
    PAIRS.clear()
    mapping = {ATTENTION: attention, ATTENTION_BACKWARD: attention_backward}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        loss = sum(term.nats for term in model(batch).values())
        forward, again = counter.get_total_flops(), sum(PAIRS)
        loss.backward()
        return forward, counter.get_total_flops() - forward, again


@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_operations_equal_torchs_count_of_a_real_step(case: str, checkpointing: bool, dropout: float) -> None:
    config, settings = counted_cases(dropout)[case]
    run = Run(activation_checkpointing=checkpointing)
    forward, backward, scores_again = counted(config, settings, run)
    found = operations(config, settings, run)
    assert found.forward == forward
    assert found.backward + found.recomputed == backward - scores_again
    assert (found.recomputed > 0) == checkpointing
    # With dropout a CPU computes attention by plain products, which keep what the backward pass needs.
    assert (scores_again > 0) == (dropout == 0)
    assert found.model == 3 * forward


def test_a_gpt2_takes_the_operations_of_palms_and_megatrons_formulas() -> None:
    layers, width, vocabulary = 3, 32, VOCABULARY
    config, settings = cases()["gpt2"]
    weights = layers * 12 * width**2 + vocabulary * width
    palm = BATCH * LENGTH * (6 * weights + 12 * layers * width * LENGTH)
    megatron = 72 * BATCH * LENGTH * layers * width**2 * (1 + LENGTH / (6 * width) + vocabulary / (12 * layers * width))
    assert operations(config, settings, Run()).model == palm == pytest.approx(megatron)


def test_gpt2_124m_at_1024_tokens() -> None:
    config = Gpt2Config(12, 12, 768, 1024, 50_257)
    settings = phase("causal", sequence_length=1024, global_batch_size=1)
    # 6 * 123,532,032 weights of matrices + 12 * 12 * 768 * 1024 for attention, by token.
    assert operations(config, settings, Run()).model / 1024 == 741_192_192 + 113_246_208


def test_a_berts_head_and_last_layer_run_at_scored_positions_only() -> None:
    config = BertConfig(2, 2, 4, 16, 8, 100)
    settings = phase("masked", sequence_length=8, masked={"max_predictions": 1})
    multiplied = [each for each in tensors(config, lengths(settings)) if each.rows]
    assert [each.operations for each in multiplied if not each.recomputed] == [2 * 1 * 4 * 4, 2 * 1 * 4 * 100]
    assert [each.rows for each in multiplied if each.shape == (16, 4)] == [8, 1]


@pytest.mark.parametrize("case", CASES)
def test_weights_have_the_shapes_of_the_real_models_parameters(case: str) -> None:
    config, _ = counted_cases()[case]
    shapes = Counter(tuple(parameter.shape) for parameter in unset_model(config).parameters())
    counted = Counter[tuple[int, ...]]()
    for weights in model_weights(config):
        counted[weights.shape] += weights.times
    assert counted == shapes
    assert parameters(config).total == unset_model(config).parameter_count()


def test_arithmetic_and_estimate_need_no_torch() -> None:
    modules = "relm.training.arithmetic", "relm.forecast.estimate", "relm.graph"
    code = f"import sys, importlib; [importlib.import_module(name) for name in {modules}]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parameters_of_each_kind_in_a_t5_with_an_untied_head() -> None:
    found = parameters(T5Config(1, 2, 3, 4, 5, 7, relative_attention_buckets=8))
    assert found.token_embedding == found.head == 7 * 4
    assert found.position_embeddings == 2 * 8 * 2
    assert found.vectors == 4 * (2 + 3 + 2)
    assert found.matrices == 3 * 4 * (4 * 6) + 2 * 3 * 4 * 5
