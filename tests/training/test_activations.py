"""What the estimate says a forward pass keeps is what it keeps."""

import pytest
import torch
from small_phases import BATCH, CASES, LENGTH, cases, model_and_batch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from relm.recipes.recipe import Phase, Run
from relm.training.activations import activations
from relm.training.architecture import Config


def kept_by_torch(config: Config, settings: Phase) -> tuple[int, int]:
    """Bytes of casts of weights, and of all else that is kept and is neither a parameter nor of the batch."""
    model, batch = model_and_batch(config, settings)
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *batch.values())}
    shapes = {tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    half = settings.precision != "float32"
    with saved_tensors_hooks(pack, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16, enabled=half):
        terms = model(batch)  # kept until the measure is taken
    sizes = {place: tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in known}
    casts = [
        place
        for place in sizes
        if kept[place].dtype == torch.bfloat16 and {tuple(kept[place].shape), tuple(kept[place].shape[::-1])} & shapes
    ]
    assert terms
    return sum(sizes[place] for place in casts), sum(size for place, size in sizes.items() if place not in casts)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_is_what_torch_keeps(case: str, dropout: float, precision: str) -> None:
    config, settings = cases(dropout, precision=precision)[case]
    found = activations(config, settings, Run(), BATCH)
    casts, rest = kept_by_torch(config, settings)
    assert sum(found.casts) == casts
    assert (casts > 0) == (precision == "bfloat16")
    # Not counted: masks of padding, and what a T5 keeps once for all sequences, the buckets of its distances.
    once = 2 * 9 * LENGTH**2 if case.startswith("t5") else 0
    assert 0 <= rest - sum(found.layers) - sum(found.rest) <= once + 0.01 * rest


@pytest.mark.parametrize("case", CASES)
def test_with_checkpointing_one_layer_is_kept_and_what_goes_into_the_others(case: str) -> None:
    config, settings = cases()[case]
    whole, little = (activations(config, settings, Run(activation_checkpointing=on), 1) for on in (False, True))
    assert little.rest == whole.rest
    width = 4 * config.hidden_size
    depth = config.layers + (getattr(config, "decoder_layers", None) or (config.layers if case.startswith("t5") else 0))
    assert sum(little.layers) <= sum(whole.layers) + depth * LENGTH * width
    assert len(little.layers) <= len(whole.layers) + depth


def test_an_accelerators_attention_keeps_no_matrix_of_all_pairs() -> None:
    config, settings = cases()["gpt2"]
    here, there = (max(activations(config, settings, Run(device=device), 1).layers) for device in ("cpu", "cuda"))
    assert here == 4 * config.heads * LENGTH**2
    assert there == 4 * LENGTH * 4 * config.hidden_size
