"""Published peaks of accelerators, looked up by their names in torch and clouds."""

import pytest

from relm.devices.peaks import find_accelerator, find_peak_flops
from relm.recipes.machine.accelerators import GPUS, IPUS, TPUS


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("TPU v3", "TPU v3"),
        ("v3-8", "TPU v3"),
        ("TPU v5 lite", "TPU v5e"),
        ("v6e-8", "TPU v6e"),
    ],
)
def test_a_device_is_found_by_its_name(name: str, entry: str) -> None:
    found = find_accelerator(name)
    assert found is not None
    assert found.name == entry


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA RTX A4000",
        "NVIDIA L40",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AVX512",
        "",
    ],
)
def test_an_unknown_device_or_a_part_of_one_has_no_peak(name: str) -> None:
    assert find_peak_flops(name, "bfloat16") is None


def test_a_precision_that_a_device_lacks_has_no_peak() -> None:
    assert find_peak_flops("Tesla V100-SXM2-16GB", "float16") == 125e12
    assert find_peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert find_peak_flops("TPU v3", "bfloat16") == 123e12
    assert find_peak_flops("TPU v3", "float32") is None


def test_every_entry_finds_itself_by_its_own_name_or_by_what_torch_calls_it() -> None:
    accelerators = (*GPUS, *TPUS, *IPUS)
    assert len({accelerator.name for accelerator in accelerators}) == len(accelerators)
    for accelerator in accelerators:
        for precision in ("float32", "bfloat16", "float16"):
            teraflops = getattr(accelerator, precision)
            assert teraflops is None or 1 < teraflops < 1000
