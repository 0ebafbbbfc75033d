"""The arithmetic of activations bounds what a real step allocates, and the TPU compiler's figures, from above."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_phases import BATCH, cases, model_and_batch, phase
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from relm.forecast.expected_tokenizer import vocabulary
from relm.models.configuration import Configuration
from relm.models.contract import LanguageModel
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.phase import Phase
from relm.recipes.project import Project
from relm.recipes.run import Run
from relm.recipes.run_name import RunName
from relm.training.architecture import configuration
from relm.training.arithmetic import activation_bytes, sequences_per_device, state_bytes
from relm.training.machine.compile_record import read_shipped, shipped_compilation

# The layers of this one are one layer at few positions, beside which the bound of a whole layer is large.
CASES = [case for case in cases() if case != "bert, one layer, no transform"]


def taken(case: str, precision: str, dropout: float) -> tuple[Configuration, Phase, LanguageModel, dict[str, Tensor]]:
    config, settings = cases(dropout, precision=precision)[case]
    return config, settings, *model_and_batch(config, settings)


def loss_of(model: LanguageModel, batch: dict[str, Tensor], precision: str) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision != "float32"):
        return torch.stack([term.nats for term in model(batch).values()]).sum()


def kept_bytes(model: LanguageModel, batch: dict[str, Tensor], precision: str) -> int:
    """Return the size of the distinct storages that autograd keeps for the backward pass, without the parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model, batch, precision)
    return sum(storage.nbytes() for storage in storages.values())


def allocations(events: Any) -> Iterator[tuple[int, int]]:
    """Yield the time and the bytes of each allocation and of each release, which is negative."""
    for event in events:
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from allocations(event.children)


def peak_bytes(model: LanguageModel, batch: dict[str, Tensor], precision: str) -> int:
    """Return the most that forward and backward pass allocate in addition to weights and gradients, exactly."""
    loss_of(model, batch, precision).backward()  # now there are gradients
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss_of(model, batch, precision).backward()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    now = most = 0
    for _, size in sorted(allocations(profiler.profiler.kineto_results.experimental_event_tree())):
        now += size
        most = max(most, now)
    assert now == 0
    return most


@pytest.mark.parametrize("checkpointing", [False, True], ids=["all kept", "checkpointing"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("case", CASES)
def test_activations_of_a_real_step_are_bounded_within_three_fifths(
    case: str, dropout: float, precision: str, checkpointing: bool
) -> None:
    config, settings, model, batch = taken(case, precision, dropout)
    model.activation_checkpointing = checkpointing
    bound = activation_bytes(config, settings, Run(activation_checkpointing=checkpointing), BATCH)
    assert bound is not None
    peak = peak_bytes(model, batch, precision)
    assert kept_bytes(model, batch, precision) <= bound
    # Without instructions for bfloat16, a CPU's products of small matrices need less room beside them.
    slack = 1.75 if precision == "bfloat16" and "avx512_bf16" not in Path("/proc/cpuinfo").read_text() else 1.6
    assert peak <= bound <= slack * peak


def test_sequences_add_and_weights_do_not() -> None:
    config, settings = cases(precision="bfloat16")["gpt2"]
    one, two, three = (activation_bytes(config, settings, Run(), count) or 0 for count in (1, 2, 3))
    assert three - two == two - one > 0
    assert one > two - one


def test_a_masks_copies_and_scores_depend_on_the_device() -> None:
    config, settings = cases()["gpt2"]
    tpu = Run(device="tpu", topology="v5e-1")
    sizes = {name: activation_bytes(config, settings, run, 8) or 0 for name, run in (("cpu", Run()), ("tpu", tpu))}
    fused = activation_bytes(config, settings, Run(device="cuda"), 8) or 0
    assert fused < sizes["tpu"] < sizes["cpu"]


def test_a_gpt2_of_124m_in_bfloat16_on_a_gpu_by_hand() -> None:
    config = Gpt2Config(12, 12, 768, 1024, 50_257, dropout=0.0)
    settings = phase("causal", sequence_length=1024, global_batch_size=1, precision="bfloat16")
    run = Run(device="cuda")
    each = (activation_bytes(config, settings, run, 2) or 0) - (activation_bytes(config, settings, run, 1) or 0)
    stream = 1024 * 768
    # Two normalisations in float32; 10 widths of feed-forward and inputs and 4 of attention in bfloat16; statistics.
    layer = 2 * 4 * stream + 14 * 2 * stream + (4 * 1024 + 12 * 1024) * 4
    head = 1024 * 8 + 2 * 4 * stream + 2 * stream + 1024 * (4 * 50_257 + 8)
    # The gradients of the logits in bfloat16 are more than those within a layer.
    assert 2 * 4 * stream + 16 * stream < 2 * 1024 * 50_257
    assert each == 12 * layer + head + 2 * 1024 * 50_257


def compiled_names() -> list[str]:
    project = Project()
    return [name for name in read_shipped().runs if RunName.parse(name).recipe in project.names()]


@pytest.mark.parametrize("name", compiled_names())
def test_state_and_activations_bound_the_compilers_figure_within_half(name: str) -> None:
    plan = Project().plan(name)
    compilation = shipped_compilation(read_shipped(), plan)
    assert compilation is not None
    config, run = configuration(plan.recipe, vocabulary(plan)[0]), plan.recipe.run
    for key, settings in plan.recipe.pretrain.items():
        found = [each.compiled.memory for each in compilation.programs if each.phase == key]
        peak, capacity = max((memory.peak, memory.capacity) for memory in found if memory is not None)
        activations = activation_bytes(config, settings, run, sequences_per_device(settings, run))
        assert activations is not None
        bound = state_bytes(config, settings.optimizer).total + activations
        # A compiler with memory to spare does not save it: BERT large on v5p takes 8 % more than the bound.
        assert (peak if 2 * peak > capacity else 0.92 * peak) <= bound <= 1.5 * peak
