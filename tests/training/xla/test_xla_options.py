"""The options that `relm compile` gives libtpu, compared with those that torch_xla sets on a machine with a TPU."""

import json
import os
import subprocess
import sys

import pytest

from relm.devices.tpu_options import set_options
from relm.forecast.compilation.tpu_compiler import prepare_libtpu
from relm.recipes.machine.topologies import TOPOLOGIES
from small_pci import NUMBERS, pci_bus

# Slice -> Google Cloud's accelerator type.
ACCELERATORS = {"v2-8": "v2-8", "v3-8": "v3-8", "v4-8": "v4-8", "v5e-8": "v5litepod-8", "v5p-8": "v5p-8", "v6e-8": "v6e-8"}
# PyTorch/XLA's own function, which its import calls, on the machine of each slice in turn.
_ON_TPUS = """
import glob, json, os, sys
import torch_xla
plain, clean, found = glob.glob, dict(os.environ), {}
for name, accelerator, pci in json.loads(sys.argv[1]):
    glob.glob = lambda pattern, **options: plain(pattern.replace("/sys/bus/pci/devices", pci), **options)
    os.environ.clear()
    os.environ.update(clean, TPU_SKIP_MDS_QUERY="1", TPU_ACCELERATOR_TYPE=accelerator)
    torch_xla._setup_default_env()
    found[name] = dict(os.environ)
print("found", json.dumps(found))
"""
# Variables that say which TPU it is, where libtpu is, and who calls it.
_NOT_OF_THE_COMPILER = {
    *("TPU_ACCELERATOR_TYPE", "TPU_ML_PLATFORM", "TPU_ML_PLATFORM_VERSION"),
    *("TPU_LIBRARY_PATH", "PTXLA_TPU_LIBRARY_PATH"),
}


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the environment in which each slice trains."""
    folder, machines = tmp_path_factory.mktemp("pci"), []
    for name, accelerator in ACCELERATORS.items():
        generation = name.partition("-")[0]
        assert generation in NUMBERS
        machines.append([name, accelerator, str(pci_bus(folder / name, *[generation] * TOPOLOGIES[name].chips))])
    kept = {name: value for name, value in os.environ.items() if "TPU" not in name}
    done = subprocess.run(
        [sys.executable, "-c", _ON_TPUS, json.dumps(machines)], env=kept, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.partition("found ")[2]))


def for_the_compiler(environment: dict[str, str]) -> dict[str, object]:
    """Return the variables for libtpu, its options without their order."""
    others = {name: value for name, value in environment.items() if "TPU" in name and name not in _NOT_OF_THE_COMPILER}
    return {**others, "LIBTPU_INIT_ARGS": sorted(environment["LIBTPU_INIT_ARGS"].split())}


@pytest.mark.parametrize("topology", ACCELERATORS)
def test_a_program_is_compiled_with_the_options_of_training(
    topology: str, training: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_tpu, generation = training[topology], topology.partition("-")[0]
    set_options(on_tpu)
    for name in [name for name in os.environ if "TPU" in name]:
        monkeypatch.delenv(name)
    for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.setenv(name, "restored afterwards")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--an_option_of_the_environment=1")
    monkeypatch.setenv("TPU_MEGACORE", "another")
    prepare_libtpu(TOPOLOGIES[topology].layout)
    compiling = dict(os.environ)
    assert for_the_compiler(compiling) == for_the_compiler(on_tpu)
    assert "--xla_tpu_enable_flash_attention=false" in compiling["LIBTPU_INIT_ARGS"]
    assert ("TPU_MEGACORE" in compiling) == (generation == "v4")
    assert ("--xla_enable_async_all_gather=true" in compiling["LIBTPU_INIT_ARGS"]) == (generation in ("v5e", "v5p"))
