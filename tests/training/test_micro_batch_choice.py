"""The choice of a micro-batch: the largest that fits by arithmetic, or the one that a compiler accepted."""

import pytest

from relm.errors import RelmError
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.machine.fitting_micro_batch import (
    GIB,
    CompiledSize,
    choose_micro_batch,
    needed_bytes,
    possible_sizes,
    usable_bytes,
)

CONFIG = Gpt2Config(12, 12, 768, 1024, 50_257)
GPU = Run(device="cuda", machine="l4")


def phase(**changes: object) -> Phase:
    settings = {"objective": "causal", "sequence_length": 1024, "steps": 9, "optimizer": {"learning_rate": 0.1}}
    return Phase.model_validate({**settings, "global_batch_size": 96, "precision": "bfloat16", **changes})


def test_sizes_divide_a_part_and_a_share_and_are_multiples_of_the_devices() -> None:
    assert possible_sizes(phase(), GPU) == [96, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1]
    assert possible_sizes(phase(), GPU.model_copy(update={"processes": 8})) == [12, 6, 4, 3, 2, 1]
    shares = phase(loss_shares=4, loss_normalisation="per_replica")
    assert possible_sizes(shares, Run(device="tpu", topology="v3-8")) == [24, 8]
    assert possible_sizes(shares, Run(device="tpu", topology="v3-32")) == []


def test_a_part_of_the_memory_is_reserved() -> None:
    assert usable_bytes("cuda", 24 * GIB) == int(20.6 * GIB)
    assert usable_bytes("tpu", 16 * GIB) == int(15.36 * GIB)
    assert usable_bytes("cuda", GIB // 2) == 0


@pytest.mark.parametrize("memory", [8 * GIB, 12 * GIB, 24 * GIB, 80 * GIB])
def test_the_largest_size_that_fits_is_chosen(memory: int) -> None:
    chosen = choose_micro_batch(CONFIG, phase(), GPU, memory)
    sizes = possible_sizes(phase(), GPU)
    fitting = [size for size in sizes if needed_bytes(CONFIG, phase(), GPU, size) <= usable_bytes("cuda", memory)]
    assert chosen.size == max(fitting)
    assert (chosen.size == 96) == (memory > 24 * GIB)
    assert "by arithmetic" in chosen.reason


def test_more_memory_never_chooses_a_smaller_size() -> None:
    chosen = [choose_micro_batch(CONFIG, phase(), GPU, memory * GIB).size for memory in range(8, 200, 6)]
    assert chosen == sorted(chosen)
    assert chosen[-1] == 96


def test_activation_checkpointing_fits_more_sequences() -> None:
    recomputing = GPU.model_copy(update={"activation_checkpointing": True})
    kept, again = (choose_micro_batch(CONFIG, phase(), run, 24 * GIB).size for run in (GPU, recomputing))
    assert again > kept


def test_processes_on_a_cpu_share_its_memory() -> None:
    one, two = Run(), Run(processes=2)
    memory = int((needed_bytes(CONFIG, phase(), one, 48) + 0.5 * GIB) / 0.9) + 1
    assert choose_micro_batch(CONFIG, phase(), one, memory).size == 48
    assert choose_micro_batch(CONFIG, phase(), two, memory).size < 48


def test_a_compilers_figure_wins_over_arithmetic() -> None:
    run = Run(device="tpu", topology="v3-8", machine="v3-8")
    memory = 6 * GIB
    by_arithmetic = choose_micro_batch(CONFIG, phase(), run, memory).size
    assert 8 < by_arithmetic < 96
    accepted = choose_micro_batch(CONFIG, phase(), run, memory, CompiledSize(96, True, 5 * GIB))
    assert accepted.size == 96
    assert "the compiler accepted this size" in accepted.reason
    smaller = choose_micro_batch(CONFIG, phase(), run, 16 * GIB, CompiledSize(8, True, GIB))
    assert smaller.size == 8  # what was compiled is what is trained
    refused = choose_micro_batch(CONFIG, phase(), run, memory, CompiledSize(by_arithmetic, False, 0))
    assert refused.size < by_arithmetic
    with pytest.raises(RelmError, match=r"the compiler rejected the smallest micro-batch on v3-8\. .*more memory"):
        choose_micro_batch(CONFIG, phase(), run, memory, CompiledSize(8, False, 0))


def test_a_figure_for_another_division_of_the_batch_is_not_used() -> None:
    run = Run(device="tpu", topology="v3-8")
    assert choose_micro_batch(CONFIG, phase(), run, 16 * GIB, CompiledSize(80, True, GIB)).size != 80


def test_the_whole_part_is_taken_where_the_memory_is_not_known() -> None:
    assert choose_micro_batch(CONFIG, phase(), GPU, None).size == 96


def test_what_cannot_fit_names_the_bytes_the_machine_and_the_remedies() -> None:
    with pytest.raises(RelmError) as caught:
        choose_micro_batch(CONFIG, phase(), GPU, 3 * GIB)
    words = str(caught.value)
    assert "one sequence on each device of l4 needs" in words
    assert "1.83 GB are usable" in words
    assert "on.l4.activation_checkpointing: true" in words
    assert "a machine with more memory" in words
    with pytest.raises(RelmError) as again:
        choose_micro_batch(CONFIG, phase(), GPU.model_copy(update={"activation_checkpointing": True}), GIB)
    assert "activation_checkpointing" not in str(again.value)


def test_devices_that_divide_no_share_are_refused() -> None:
    shares = phase(loss_shares=4, loss_normalisation="per_replica")
    with pytest.raises(RelmError, match=r"cannot be divided among the 32 devices of v3-32"):
        choose_micro_batch(CONFIG, shares, Run(device="tpu", topology="v3-32"), 16 * GIB)
