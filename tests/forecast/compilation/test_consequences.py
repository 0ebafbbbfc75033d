"""The consequences of compiled programs, on figures that can be checked by hand: a v3 core does 61.5e12 operations a second and
moves 450e9 bytes."""

import dataclasses
from typing import Any

import pytest

from made_compilation import REAL_BERT_LARGE, compilation, program, recipe, refused
from relm.errors import RelmError
from relm.forecast.compilation.consequence_lines import consequences_lines
from relm.forecast.compilation.consequences import (
    Ceiling,
    ProgramWork,
    Roofline,
    ceiling_of,
    consequences,
    roofline,
    step_programs,
)
from relm.forecast.compilation.tracing import step_names


def words(*arguments: Any, **options: Any) -> str:
    return "\n".join(consequences_lines(*arguments, **options))


def test_the_slower_of_operations_and_memory_decides() -> None:
    ceiling = Ceiling("TPU v3", flops=10.0, bandwidth=2.0)
    assert roofline(ProgramWork(flops=50.0, bytes=4.0), ceiling) == Roofline(operations=5.0, memory=2.0)
    assert (Roofline(5.0, 2.0).seconds, Roofline(5.0, 2.0).limit) == (5.0, "operations")
    assert (Roofline(5.0, 6.0).seconds, Roofline(5.0, 6.0).limit) == (6.0, "memory")


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
    found = ceiling_of(compilation(topology=topology, devices=devices, chips=chips))
    assert (found.flops, found.bandwidth) == (pytest.approx(flops), pytest.approx(bandwidth))
    assert found.binds == (topology[:2] in ("v2", "v3"))


def test_a_slice_without_published_peaks_is_refused() -> None:
    with pytest.raises(RelmError, match=r"no peak and bandwidth are known for slice 'v9-8'"):
        ceiling_of(compilation(topology="v9-8"))


def test_one_program_is_a_step() -> None:
    # 123e12 operations are 2 s of a core, 1800e9 bytes 4 s: memory decides. 100 steps of 16 sequences of 32 tokens.
    (phase,) = consequences(compilation(program("step", flops=123e12, size=1800e9)), recipe(steps=100, batch=16, length=32))
    assert phase.roofline == Roofline(pytest.approx(2.0), pytest.approx(4.0))
    assert [dataclasses.astuple(phase)[0], phase.micro_batches, phase.tokens] == ["main", 1, 512]
    assert [(pace.share, pace.step_seconds, pace.tokens_per_second) for pace in phase.paces] == [
        (1.0, pytest.approx(4.0), pytest.approx(128.0)),
        (0.5, pytest.approx(8.0), pytest.approx(64.0)),
        (0.25, pytest.approx(16.0), pytest.approx(32.0)),
    ]
    assert [pace.hours for pace in phase.paces] == pytest.approx([400 / 3600, 800 / 3600, 1600 / 3600])
    assert [pace.chip_hours for pace in phase.paces] == pytest.approx([4 * pace.hours for pace in phase.paces])


def test_micro_batches_are_summed_the_one_between_as_often_as_it_runs() -> None:
    assert step_programs(3) == {"first": 1, "between": 1, "last": 1}
    programs = [program("first", 1.0, 10.0), program("between", 2.0, 20.0), program("last", 5.0, 50.0)]
    many = compilation(*programs, sequences={"main": 64}, micro_batches={"main": 8})
    (phase,) = consequences(many, recipe(batch=64, micro_batch=8))
    assert (phase.micro_batches, phase.step) == (8, ProgramWork(1.0 + 6 * 2.0 + 5.0, 10.0 + 6 * 20.0 + 50.0))
    (phase,) = consequences(compilation(programs[0], programs[2], micro_batches={"main": 8}), recipe(batch=16, micro_batch=8))
    assert (phase.micro_batches, phase.step) == (2, ProgramWork(6.0, 60.0))


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_the_programs_of_a_step_are_those_that_are_traced(micro_batches: int) -> None:
    assert list(step_programs(micro_batches)) == step_names(micro_batches)


def test_validation_is_part_of_a_phase() -> None:
    # 25 steps of 4 s; validations after 10, 20 and 25 steps, of 3 global batches of 0.5 s.
    programs = [program("step", 1.0, 1800e9), program("held_out", 30.75e12, 1.0)]
    (phase,) = consequences(compilation(*programs), recipe(steps=25, validation_interval=10, validation_batches=3))
    assert (phase.validations, phase.validation_roofline.seconds) == (3, pytest.approx(1.5))
    assert phase.paces[0].hours == pytest.approx((25 * 4 + 3 * 1.5) / 3600)
    (phase,) = consequences(compilation(*programs), recipe(steps=25))
    assert (phase.validations, phase.validation_roofline.seconds) == (0, pytest.approx(0.5))
    assert phase.paces[0].hours == pytest.approx(100 / 3600)


def test_without_the_program_of_its_validation_a_phase_has_no_hours() -> None:
    (phase,) = consequences(compilation(program("step", 1.0, 1.0)), recipe(validation_interval=10))
    assert (phase.validation, phase.paces) == (None, [])


def test_a_program_that_does_not_fit_has_no_time() -> None:
    made = compilation(refused("step"), program("held_out", 1.0, 1.0))
    (phase,) = consequences(made, recipe())
    assert (phase.step, phase.roofline, phase.paces) == (None, None, [])
    text = words(made, recipe())
    assert "step         DOES NOT FIT: 17.49GiB of 15.48GiB" in text
    assert "time         not known: a program of the step does not fit" in text
    assert "tokens/s" not in text


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
        consequences(compilation(program("step", 1.0, 1.0)), recipe(**changed))


def test_the_lines_have_the_slower_side_the_peaks_and_the_cost() -> None:
    text = words(compilation(program("step", 123e12, 1800e9)), recipe(steps=900, batch=16, length=32), price=2.0)
    assert "as compiled for v3-8 by jax 0.7.1, libtpu 0.0.21\n  the compiler's figures of one core, and arithmetic" in text
    assert "at least 4 s: operations 2 s at 61.5 TFLOP/s, memory 4 s at 450 GB/s; memory decides" in text
    assert "fits: 1.50 GiB at most of 15.00, 10%; arguments 0.50, results 0.50 (0.50 of them in the arguments' memory)" in text
    # 900 steps of 4 s are an hour, on four chips; twice as long at half the speed.
    rows = {row.split()[0]: row.split()[1:] for row in text.splitlines() if row.startswith("  ") and "%" in row[:8]}
    assert rows["100%"] == ["4", "s", "128", "1.00", "4.00", "8.00"]
    assert rows["50%"] == ["8", "s", "64", "2.00", "8.00", "16.00"]


def test_float32_states_how_its_products_are_counted_and_bfloat16_does_not() -> None:
    made = compilation(program("step", 1.0, 1.0))
    assert "one bfloat16 pass" in words(made, recipe(precision="float32"))
    assert "one bfloat16 pass" not in words(made, recipe(precision="bfloat16"))


def test_where_arrays_stay_on_the_chip_no_bound_is_claimed() -> None:
    later = compilation(program("step", 1e12, 1e12), topology="v6e-8", chips=8)
    assert "only the operations' time is a lower bound" in words(later, recipe())
    assert "at least" not in words(later, recipe())


def test_a_real_step_of_bert_large_is_bound_by_memory() -> None:
    # libtpu 0.0.21 for v3:2x2: 16 sequences of 512 tokens a core, bfloat16. Hugging Face's blog states 106.4 minutes: 29 %.
    (phase,) = consequences(REAL_BERT_LARGE, recipe(steps=5361, batch=128, length=512, precision="bfloat16"))
    assert phase.roofline == Roofline(pytest.approx(0.3020, abs=1e-4), pytest.approx(0.3483, abs=1e-4))
    assert [pace.hours * 60 for pace in phase.paces] == pytest.approx([31.1, 62.2, 124.5], abs=0.1)
