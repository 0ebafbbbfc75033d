"""What accelerators can do at most, as their makers publish it: matrix products in dense arithmetic, without sparsity."""

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """One device, a TPU's and an IPU's being a chip, in 10^12 operations a second; None: it cannot, or nothing is published."""

    name: str
    pattern: str
    """What its name has, as torch.cuda.get_device_name gives it, or as a cloud calls it."""
    float32: float | None
    """Not TF32, which torch does not use unless it is told to."""
    bfloat16: float | None
    float16: float | None


# Data sheets of Hopper and Ada state 16-bit figures with sparsity, which are twice these.
# TPU vN-M is M cores in older names: v3-8 is four chips.
PEAKS = (
    # NVIDIA V100 Tensor Core GPU data sheet (January 2020): no bfloat16.
    Peak("V100 SXM2", r"V100-SXM2", 15.7, None, 125.0),
    Peak("V100 PCIe", r"V100-PCIE", 14.0, None, 112.0),
    Peak("V100S PCIe", r"V100S-PCIE", 16.4, None, 130.0),
    # NVIDIA T4 data sheet (2019): no bfloat16.
    Peak("T4", r"T4", 8.1, None, 65.0),
    # NVIDIA A100 data sheet (2021), the same for SXM and PCIe, 40 and 80 GB.
    Peak("A100", r"A100[- ](SXM4|PCIE|PCIe|\d+GB)", 19.5, 312.0, 312.0),
    # NVIDIA A10, A30 and A40 data sheets (2021, 2022).
    Peak("A10", r"A10", 31.2, 125.0, 125.0),
    Peak("A30", r"A30", 10.3, 165.0, 165.0),
    Peak("A40", r"A40", 37.4, 149.7, 149.7),
    # NVIDIA L4 and L40S data sheets (2023).
    Peak("L4", r"L4", 30.3, 121.0, 121.0),
    Peak("L40S", r"L40S", 91.6, 362.05, 362.05),
    # NVIDIA H100 Tensor Core GPU Architecture (white paper, 2023), table 2. H100 NVL, H200 and H200 NVL data sheets (2024):
    # 1,671, 1,979 and 1,671 with sparsity; an H200's processor is an H100's.
    Peak("H100 SXM", r"H100 80GB HBM3", 66.9, 989.4, 989.4),
    Peak("H100 PCIe", r"H100 PCIe", 51.2, 756.0, 756.0),
    Peak("H100 NVL", r"H100 NVL", 60.0, 835.5, 835.5),
    Peak("H200 NVL", r"H200 NVL", 60.0, 835.5, 835.5),
    Peak("H200", r"H200", 66.9, 989.4, 989.4),
    # Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural Networks", table 3: 46 a chip.
    Peak("TPU v2", r"v2", None, 46.0, None),
    # cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e: "Peak compute per chip".
    Peak("TPU v3", r"v3", None, 123.0, None),
    Peak("TPU v4", r"v4", None, 275.0, None),
    Peak("TPU v5e", r"(v5e|v5 ?lite|v5litepod)", None, 197.0, None),
    Peak("TPU v5p", r"v5p", None, 459.0, None),
    Peak("TPU v6e", r"v6e", None, 918.0, None),
    # Graphcore, Colossus MK2 GC200 product brief (2020): 250 in FP16.16, 62.5 in FP32.
    Peak("IPU GC200", r"GC200", 62.5, None, 250.0),
)

# Bytes a second that the memory of one chip gives and takes, by the names above. Jouppi et al. 2020, table 3 (v2), and
# cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e: "HBM2 capacity and bandwidth", "HBM bandwidth per chip"; the page of v5e said
# 819 GBps for years and says 800 GiBps (859) now: the smaller of them.
HBM_BANDWIDTHS = {
    "TPU v2": 700e9,
    "TPU v3": 900e9,
    "TPU v4": 1200e9,
    "TPU v5e": 819e9,
    "TPU v5p": 2765e9,
    "TPU v6e": 1638e9,
}


def known_peak(device_name: str) -> Peak | None:
    """The entry of a device; None: it is not in the table, or only a part (a MIG instance) of one that is."""
    if re.search(r"\bMIG\b", device_name):
        return None
    # Nothing that goes on as another product's name does: an A10G is no A10, an A800 no A100.
    found = (peak for peak in PEAKS if re.search(rf"(^|[\s-])({peak.pattern})($|[\s-])", device_name, re.IGNORECASE))
    return next(found, None)


def peak_flops(device_name: str, precision: str) -> float | None:
    """Operations a second that a device can do at most in matrix products; a multiplication with an addition counts as two.

    Args:
        device_name: as ``torch.cuda.get_device_name`` gives it, such as "NVIDIA H100 80GB HBM3"; of a TPU "TPU v3" or its type,
            such as "v3-8", the figure being that of one chip.
        precision: of the computation: float32, bfloat16 or float16.

    Returns:
        None where nothing is published: an unknown device, or one that cannot compute in this precision.

    >>> peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16"), peak_flops("Tesla T4", "bfloat16")
    (312000000000000.0, None)
    """
    peak = known_peak(device_name)
    teraflops: float | None = None if peak is None else getattr(peak, precision)
    return None if teraflops is None else teraflops * 1e12
