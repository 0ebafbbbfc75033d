"""The TPU's compiler on small programs: its figures, and its private calls, which must not have moved."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from traced_programs import RECIPE, programs, small

from relm.devices.tpu_options import VARIABLE
from relm.forecast.compilation.compiling import compile_program, installed_versions
from relm.forecast.compilation.program_facts import parse_refusal
from relm.forecast.compilation.shipped_programs import key_of
from relm.recipes.machine.topologies import TOPOLOGIES

CHECKOUT = Path(__file__).resolve().parents[4]
_SLICES = """
import json, os, sys
os.environ.update(TPU_SKIP_MDS_QUERY="1", JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
from relm.forecast.compilation import tpu_compiler
found = {}
for layout in json.loads(sys.argv[1]):
    devices = tpu_compiler.devices_of(layout)
    found[layout] = [len(devices), tpu_compiler.capacity(devices)]
try:
    tpu_compiler.compile_program(tpu_compiler.too_large(), tpu_compiler.devices_of("v3:2x2"))
except Exception as refusal:
    found["refusal"] = str(refusal)
print("found", json.dumps(found))
"""


@pytest.fixture(scope="module")
def slices() -> dict[str, object]:
    layouts = json.dumps([slice.layout for slice in TOPOLOGIES.values()])
    done = subprocess.run([sys.executable, "-c", _SLICES, layouts], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, (
        f"a private call of jax or libtpu has moved in {installed_versions()}; see tpu_compiler.py: {done.stderr}"
    )
    return dict(json.loads(re.findall(r"^found (.*)$", done.stdout, re.M)[0]))


def test_the_compiler_is_the_one_that_is_locked() -> None:
    locked = dict(re.findall(r"^(jax|jaxlib|libtpu)==(\S+)", (CHECKOUT / "envs" / "torch-tpu.txt").read_text(), re.M))
    assert installed_versions() == locked, (
        "forecast/compilation/tpu_compiler.py calls what these packages do not promise to keep: look there"
    )


def test_every_slice_has_as_many_devices_for_the_compiler_as_for_a_recipe(slices: dict[str, list[int]]) -> None:
    assert {name: slices[slice.layout][0] for name, slice in TOPOLOGIES.items()} == {
        name: slice.devices for name, slice in TOPOLOGIES.items()
    }


def test_a_core_of_a_v3_has_some_gibibytes_less_than_its_16(slices: dict[str, list[int]]) -> None:
    assert slices["v3:2x2"][1] == round(15.48 * 2**30)


def test_what_fits_nowhere_is_refused_with_figures(slices: dict[str, str]) -> None:
    refusal = parse_refusal(slices["refusal"])
    assert refusal.capacity == "15.48G"
    assert refusal.used == "96.00G"
    assert refusal.words.startswith("XLA:TPU compile permanent error")


def test_a_step_sums_gradients_and_sends_nothing_else_and_renews_its_state_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "--no_option_of_libtpu=1")  # options of the environment have no effect and cause no failure
    step = small("step")
    made = compile_program(step)
    assert made.fits
    assert made.memory is not None
    assert made.memory.shared > 0.99 * made.memory.results
    assert "all-reduce" in made.operations
    assert made.elements >= sum(step.program.parameters)
    assert all(size <= step.program.devices for size in made.beyond_gradients.values())
    assert not any(made.findings.model_dump().values())
    assert json.loads((tmp_path / "compiled" / f"{key_of(step)}.json").read_text())["program"] == step.program.sha256


@pytest.mark.full
@pytest.mark.parametrize(
    "recipe", ["smoke/bert_large_wikitext103_v3-8_bf16", "smoke/mt5_base_romanian_diacritics_v3-8", RECIPE]
)
def test_no_recipes_small_step_moves_activations(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    step = programs(tmp_path, recipe)[recipe, "step"]
    assert all(size <= 8 for size in compile_program(step).beyond_gradients.values())
