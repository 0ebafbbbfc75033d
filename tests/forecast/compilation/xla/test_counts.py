"""The TPU compiler's counts that `compilation.consequences` depends on: operations, bytes, arrays that stay on a chip."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from relm.devices.peaks import find_accelerator
from relm.forecast.compilation.consequences import BOUNDED

# Two products of matrices of 1,024 x 1,024 elements with a function in between; its result fits into a chip's own memory.
_COUNTS = """
import json, os, sys
os.environ.update(TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
import jax, jax.numpy as jnp
from relm.forecast.compilation import tpu_compiler
found = []
for layout, precision in json.loads(sys.argv[1]):
    sharding = jax.sharding.SingleDeviceSharding(tpu_compiler.devices_of(layout)[0])
    matrix = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=sharding)
    with jax.default_matmul_precision(precision):
        made = jax.jit(lambda x, w: jnp.tanh(x @ w) @ w).lower(matrix, matrix).compile()
    counted = made.cost_analysis()
    found.append([counted["flops"], counted["bytes accessed"], made.as_text().count("S(1)")])
print("found", json.dumps(found))
"""
ASKED = [("v3:2x2", "default"), ("v3:2x2", "highest"), ("v6e:2x4", "default")]
MATRIX = 4 * 1024 * 1024


@pytest.fixture(scope="module")
def counts() -> dict[tuple[str, str], Any]:
    done = subprocess.run(
        [sys.executable, "-c", _COUNTS, json.dumps(ASKED)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(re.findall(r"^found (.*)$", done.stdout, re.M)[0])
    return dict(zip(ASKED, found, strict=True))


def test_operations_are_counted_once_however_often_a_product_passes_through_the_unit(counts: dict[Any, Any]) -> None:
    products = 2 * 2 * 1024**3
    assert counts["v3:2x2", "default"][0] == pytest.approx(products, rel=0.01)
    assert counts["v3:2x2", "highest"][0] == pytest.approx(products, rel=0.01)


def test_a_v3_keeps_no_array_on_the_chip_and_a_v6e_does_and_counts_it(counts: dict[Any, Any]) -> None:
    assert counts["v3:2x2", "default"][2] == 0
    assert counts["v6e:2x4", "default"][2] > 0
    # Two matrices are read and one is written; everything else never leaves a v6e's chip.
    assert counts["v6e:2x4", "default"][1] > 4 * MATRIX
    found = {name: find_accelerator(name) for name in ("v3-8", "v6e-8")}
    assert [peak is not None and peak.name in BOUNDED for peak in found.values()] == [True, False]
