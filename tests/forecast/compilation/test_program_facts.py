"""Facts read from the text of a program."""

from relm.forecast.compilation.program_facts import (
    collective_operations,
    collectives,
    find_beyond_gradients,
    findings,
    parse_refusal,
)
from relm.training.machine.compile_record import Program

SUMS = """
  %all-reduce.3 = (f32[4,8]{1,0:T(8,128)}, /*index=1*/bf16[]{:T(256)}) all-reduce(%a, %b), channel_id=1, to_apply=%add
  %get-tuple-element.9 = f32[4,8]{1,0:T(8,128)} get-tuple-element(%all-reduce.3), index=0
  %all-gather-start.1 = (f32[2,3]{1,0}, f32[16,3]{1,0}) all-gather-start(%c), channel_id=2
  %all-gather-done.1 = f32[16,3]{1,0} all-gather-done(%all-gather-start.1)
"""
MODEL = Program(sha256="", devices=8, arguments=3, donated=(0,), parameters=(32, 48))


def test_a_collective_carries_all_arrays_of_its_tuple() -> None:
    assert collectives(SUMS) == {("all-gather", 48): 1, ("all-reduce", 32): 1, ("all-reduce", 1): 1}
    assert collective_operations(SUMS) == {"all-gather": 1, "all-reduce": 1}


def test_only_a_sum_of_a_parameters_size_is_a_gradient() -> None:
    assert find_beyond_gradients(collectives(SUMS), MODEL) == {"all-gather": 48, "all-reduce": 1}
    assert find_beyond_gradients([("all-reduce", 7), ("all-reduce", 9)], MODEL) == {"all-reduce": 9}


def test_float64_is_found_in_arrays_and_allowed_in_scalars() -> None:
    scalars = "  p6.31 = f64[] parameter(6)\n  reshape.2 = f64[1,1]{1,0} reshape(p6.31)"
    assert findings(scalars, "").float64 == ()
    assert findings(scalars + "\n  b.3 = f64[8,16]{1,0} broadcast(p6.31)", "").float64 == (
        "b.3 = f64[8,16]{1,0} broadcast(p6.31)",
    )


def test_transfers_to_the_host_are_found() -> None:
    assert len(findings("", "  %o = token[] outfeed(%x, %t)\n  %i = ((f32[2]), token[]) infeed(%t)").host_transfers) == 2
    assert findings(SUMS, SUMS).host_transfers == ()


def test_dynamic_shapes_are_found_and_groups_of_devices_are_not() -> None:
    assert len(findings("  d.1 = f32[<=8,4]{1,0} parameter(0)\n  s.2 = s32[] get-dimension-size(d.1)", "").dynamic_shapes) == 2
    static = (
        "  %r = f32[8]{0} all-reduce(%x), replica_groups=[1,8]<=[8]\n  p = s64[8]{0} parameter(1), sharding={devices=[8]<=[8]}"
    )
    assert findings(static, static).dynamic_shapes == ()


def test_a_refusal_is_taken_apart() -> None:
    text = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory. Used 17.49G of 15.48G hbm. Exceeded by 2G.
Total hbm usage >= 18G:
  Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name="rng-bit-generator.9219"
     Shape: u32[128,16,512,512]{3,2,1,0:T(8,128)}
     Unpadded size: 2.00G
"""
    refusal = parse_refusal(text)
    assert (refusal.used, refusal.capacity) == ("17.49G", "15.48G")
    assert refusal.words.startswith("XLA:TPU compile permanent error")
    (largest,) = refusal.largest
    assert (largest.bytes, largest.shape, largest.operation) == (2**31, "u32[128,16,512,512]", "rng-bit-generator.9219")
