"""The precision of matrix products of float32 tensors in PyTorch/XLA's programs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_TRACES = """
import json, re, sys, torch
from relm.devices.contract import open_device
from relm.recipes.run import Run
import torch_xla, torch_xla.backends as backends
device = open_device(Run(device="tpu", threads=1, float32_matmul_precision=json.loads(sys.argv[1])))
layer = device.place(torch.nn.Linear(4, 4))
(layer(torch.ones(2, 3, 4, device="xla")) @ torch.ones(2, 4, 3, device="xla")).sum().backward()
text = torch_xla._XLAC._get_xla_tensors_hlo([layer.weight.grad])
described = device.describe()["float32_matmul_precision"]
device.close()
found = {"dots": re.findall(r" dot\\(.*", text), "described": described, "after": backends.get_mat_mul_precision()}
print("found", json.dumps(found))
"""


def traced(precision: str | None) -> dict[str, Any]:
    """Return what a process finds that traces a layer's gradient: its products, and the precision during and after."""
    done = subprocess.run([sys.executable, "-c", _TRACES, json.dumps(precision)], capture_output=True, text=True, check=True)
    assert "Setting mat mul precision" not in done.stderr, "a user did nothing that this warning is for"
    return dict(json.loads(done.stdout.partition("found ")[2]))


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_a_stated_precision_is_in_every_product_of_forward_and_backward(precision: str) -> None:
    found = traced(precision)
    assert len(found["dots"]) > 1
    assert all(f"operand_precision={{{precision},{precision}}}" in dot for dot in found["dots"]), found["dots"]
    assert found["described"] == precision
    assert found["after"] == "default"


def test_without_one_products_have_the_devices_own_which_is_recorded() -> None:
    found = traced(None)
    assert len(found["dots"]) > 1
    assert not any("operand_precision" in dot for dot in found["dots"])
    assert (found["described"], found["after"]) == ("default", "default")


_KEEPS = """
import sys
from pathlib import Path
import torch_xla.runtime as xr
from relm.devices.xla_precision import set_xla_precision
from relm.devices.tpu_chips import Generation
from relm.devices.xla_opening import keep_programs
xr.initialize_cache = print
for precision in (None, "default", "highest"):
    set_xla_precision(precision)
    keep_programs(Path("kept"), Generation("TPU v3", 2), host=0, hosts=1)
"""


def test_programs_of_another_precision_are_kept_apart(tmp_path: Path) -> None:
    """PyTorch/XLA finds a kept program by its operations, and would run it in place of one with another precision."""
    done = subprocess.run([sys.executable, "-c", _KEEPS], cwd=tmp_path, capture_output=True, text=True, check=True)
    plain, default, highest = (Path(line) for line in done.stdout.split())
    assert plain == default
    assert highest.name == f"{plain.name}-float32-highest"
