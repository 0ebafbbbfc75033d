"""The benchmark of PyTorch/XLA runs at toy size; its measurements are not checked."""

import subprocess
import sys

import pytest

from small_project import CHECKOUT

TOYS = {
    "step": ["step", "--layers", "1", "--length", "32", "--batch", "2", "--turn", "1", "--repeats", "1"],
    "host": ["host", "roberta_base_v3-8", "--layers", "1", "--devices", "2", "--repeats", "1"],
}
SIDES = {"step": ("relm on XLA", "relm on cpu"), "host": ("relm, adamw", "transformers, AdamW", "transformers, AdamW foreach")}


@pytest.mark.full
@pytest.mark.parametrize("part", TOYS)
def test_a_part_of_the_benchmark_prints_a_line_for_each_side(part: str) -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/xla.py", *TOYS[part]], cwd=CHECKOUT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for side in SIDES[part]:
        assert any(line.startswith(f"{side}") and " ms" in line for line in done.stdout.splitlines()), done.stdout
