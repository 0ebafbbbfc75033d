"""The consequences of compiled programs, on figures that can be checked by hand: a v3 core does 61.5e12 operations a second and
moves 450e9 bytes."""

from typing import Any

import pytest

from made_compilation import REAL_BERT_LARGE, compilation, program, recipe, refused
from relm.errors import RelmError
from relm.forecast.compilation.consequences import ProgramWork, ceiling_of, consequences_lines, step_programs, step_work
from relm.forecast.compilation.tracing import step_names


def words(*arguments: Any) -> str:
    return "\n".join(consequences_lines(*arguments))


@pytest.mark.parametrize(
    ("topology", "devices", "chips", "flops", "bandwidth"),
    [
        ("v2-8", 8, 4, 23e12, 350e9),
        ("v3-8", 8, 4, 61.5e12, 450e9),
        ("v3-32", 32, 16, 61.5e12, 450e9),
        ("v4-8", 4, 4, 275e12, 1200e9),
        ("v5e-8", 8, 8, 197e12, 819e9),
        ("v5p-8", 4, 4, 459e12, 2765e9),
        ("v6e-8", 8, 8, 918e12, 1638e9),
    ],
)
def test_a_core_has_half_of_its_chip(topology: str, devices: int, chips: int, flops: float, bandwidth: float) -> None:
    made = compilation(program("step", 1e12, 1e12), topology=topology, devices=devices, chips=chips)
    found = ceiling_of(made)
    assert (found.flops, found.bandwidth) == (pytest.approx(flops), pytest.approx(bandwidth))
    # Arrays stay on the chip of later generations, so no bound is claimed there.
    assert ("at least" in words(made, recipe())) == (topology[:2] in ("v2", "v3"))


def test_a_slice_without_published_peaks_is_refused() -> None:
    with pytest.raises(RelmError, match=r"peak and bandwidth of slice 'v9-8' are unknown"):
        ceiling_of(compilation(topology="v9-8"))


def test_micro_batches_are_summed_the_one_between_as_often_as_it_runs() -> None:
    programs = {
        each.name: each.compiled for each in (program("first", 1, 10), program("between", 2, 20), program("last", 5, 50))
    }
    assert step_work(programs, 8) == ProgramWork(1.0 + 6 * 2.0 + 5.0, 10.0 + 6 * 20.0 + 50.0)
    assert step_work(programs, 2) == ProgramWork(6.0, 60.0)


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_the_programs_of_a_step_are_those_that_are_traced(micro_batches: int) -> None:
    assert list(step_programs(micro_batches)) == step_names(micro_batches)


def test_a_program_that_does_not_fit_has_no_time() -> None:
    text = words(compilation(refused("step"), program("held_out", 1.0, 1.0)), recipe())
    assert "step         DOES NOT FIT: 17.49GiB of 15.48GiB" in text
    assert "time         unknown: a program of the step does not fit" in text
    assert "roofline" not in text


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"batch": 32}, r"phase main: compiled with global_batch_size 16, the recipe has 32; .* again with `relm compile`"),
        ({"micro_batch": 8}, r"phase main: compiled with sequences of a micro-batch 16, the recipe has 8; "),
        ({"recomputes": True}, r"phase main: compiled with run.activation_checkpointing False, the recipe has True; "),
        ({"phase": "other"}, r"phase main was compiled, and the recipe has other"),
    ],
)
def test_a_recipe_that_changed_since_is_refused(changed: dict[str, Any], found: str) -> None:
    with pytest.raises(RelmError, match=found):
        words(compilation(program("step", 1.0, 1.0)), recipe(**changed))


def test_the_lines_have_memory_work_and_the_least_time() -> None:
    # 123e12 operations are 2 s of a core, 1800e9 bytes 4 s: memory decides. 900 steps of 4 s are an hour.
    text = words(compilation(program("step", 123e12, 1800e9)), recipe(steps=900))
    assert "as compiled for v3-8 by jax 0.7.1, libtpu 0.0.21\n  the compiler's figures for one core, and arithmetic" in text
    assert "at least 4 s: operations 2 s at 61.5 TFLOP/s, memory 4 s at 450 GB/s; 900 steps take 1.00 h" in text
    assert "fits: 1.50 GiB at most of 15.00, 10%; arguments 0.50, results 0.50 (0.50 of them in the arguments' memory)" in text


def test_a_real_step_of_bert_large_is_bound_by_memory() -> None:
    # libtpu 0.0.21 for v3:2x2: 16 sequences of 512 tokens a core, bfloat16. Hugging Face's blog states 106.4 minutes: 29 %.
    (step,) = REAL_BERT_LARGE.programs
    work = step_work({"step": step.compiled}, 1)
    assert work is not None
    assert work.seconds(ceiling_of(REAL_BERT_LARGE)) == pytest.approx((0.3020, 0.3483), abs=1e-4)
