"""Activation checkpointing on XLA devices: the same step, in which each layer's matrix products occur once more."""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from small_phases import cases, model_and_batch
from xla_runs import XlaRun, assert_same_bytes, assert_same_figures

from relm.devices.contract import open_device
from relm.devices.xla import XlaDevice
from relm.recipes.run import Run
from relm.recipes.section import merge

Runs = Callable[..., XlaRun]
DEVICES = 4
FULL = pytest.mark.full
ON = {"run": {"activation_checkpointing": True, "validation_interval": 2, "validation_batches": 2}}
OFF = merge(ON, {"run": {"activation_checkpointing": False}})
# Case -> layers, and matrix products in them that the backward pass computes again: all but a last one whose result is only
# added to the layer's output.
RECOMPUTED = {
    "gpt2": (3, 3 * 5),  # queries with keys and values; logits and mixing; output; the first of two in the feed-forward part
    "bert, sentence pairs": (3, 3 * 8),  # queries, keys and values apart, and a normalisation reads what comes last
    "t5, tied, short targets": (4, 2 * 7 + 2 * 13),
}


@pytest.fixture(scope="module")
def device() -> XlaDevice:
    os.environ["CPU_NUM_DEVICES"] = str(DEVICES)
    opened = open_device(Run(device="tpu", threads=1))
    assert isinstance(opened, XlaDevice)
    return opened


def gradients_and_program(case: str, recomputed: bool, device: XlaDevice) -> tuple[dict[str, torch.Tensor], str]:
    """Return the gradients of four sequences with dropout, by parameter, and the text of the program that computes them."""
    import torch_xla
    import torch_xla.debug.metrics as metrics

    model, batch = model_and_batch(*cases(dropout=0.2)[case])
    model = device.place(model)
    model.activation_checkpointing, model.recomputed = recomputed, device.recomputed
    device.materialise(model.parameters())
    fed = device.stage({name: torch.cat([tensor, tensor[:1]]).numpy() for name, tensor in batch.items()})
    device.seed(5)
    executions, fetched = device.figures()["executions"], metrics.counter_value("aten::_local_scalar_dense")
    sum(term.nats for term in model.terms(fed).values()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    program = torch_xla._XLAC._get_xla_tensors_hlo(list(gradients.values()))
    assert device.figures()["executions"] == executions, "the step is no longer one program"
    assert metrics.counter_value("aten::_local_scalar_dense") == fetched, "something was fetched from the device"
    device.launch()
    return {name: gradient.cpu() for name, gradient in gradients.items()}, program


@pytest.mark.parametrize("case", RECOMPUTED)
def test_the_products_of_each_layer_are_computed_again_behind_a_barrier(case: str, device: XlaDevice) -> None:
    (kept, once), (again, twice) = (gradients_and_program(case, recomputed, device) for recomputed in (False, True))
    layers, products = RECOMPUTED[case]
    assert (once.count(" opt-barrier("), twice.count(" opt-barrier(")) == (0, layers)
    assert twice.count(" dot(") - once.count(" dot(") == products
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-5, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("objective", ["causal", pytest.param("masked", marks=FULL), pytest.param("seq2seq", marks=FULL)])
def test_a_run_that_keeps_no_activations_is_the_run_that_keeps_them(objective: str, runs: Runs) -> None:
    kept = runs("kept", objective, dropout=True, changes=OFF).trained()
    again = runs("recomputed", objective, dropout=True, changes=ON).trained()
    assert_same_figures(again, kept)
    assert again.programs == kept.programs == 4, "the initial state, the step, the first held-out batch, the later ones"
    if objective == "causal":
        without = runs("cpu", objective, devices=0, changes=OFF).trained()
        assert np.abs(kept.columns("loss") / without.columns("loss") - 1).max() > 1e-4, "dropout is off"


@FULL
def test_a_killed_run_that_keeps_no_activations_ends_with_the_same_bytes(runs: Runs) -> None:
    accumulating = merge(ON, {"pretrain": {"main": {"global_batch_size": 32}}, "run": {"micro_batch_size": 8}})
    whole = runs("whole, recomputed", "causal", dropout=True, changes=accumulating).trained()
    killed = runs("killed, recomputed", "causal", dropout=True, changes=accumulating).trained("checkpoint-saved:1")
    assert_same_bytes(killed.trained(), whole)
