"""Peak throughput of each known accelerator, as its maker publishes it: dense matrix products, without sparsity."""

from typing import NamedTuple


class Accelerator(NamedTuple):
    """One accelerator (of TPUs and IPUs: one chip), with peaks in 10^12 operations per second; None: no figure is published."""

    name: str
    pattern: str
    """Regular expression that matches its name, as torch.cuda.get_device_name returns it or as a cloud names it."""
    float32: float | None
    """Peak in float32; not TF32, which torch does not use by default."""
    bfloat16: float | None
    float16: float | None
    bandwidth: float | None = None
    """Memory bandwidth in bytes per second; None: no estimate needs it."""


# Data sheets of Hopper and Ada state 16-bit figures with sparsity, which are twice these.
GPUS = (
    # NVIDIA V100 Tensor Core GPU data sheet (January 2020): no bfloat16.
    Accelerator("V100 SXM2", r"V100-SXM2", 15.7, None, 125.0),
    Accelerator("V100 PCIe", r"V100-PCIE", 14.0, None, 112.0),
    Accelerator("V100S PCIe", r"V100S-PCIE", 16.4, None, 130.0),
    # NVIDIA T4 data sheet (2019): no bfloat16.
    Accelerator("T4", r"T4", 8.1, None, 65.0),
    # NVIDIA A100 data sheet (2021), the same for SXM and PCIe, 40 and 80 GB.
    Accelerator("A100", r"A100[- ](SXM4|PCIE|PCIe|\d+GB)", 19.5, 312.0, 312.0),
    # NVIDIA A10, A30 and A40 data sheets (2021, 2022).
    Accelerator("A10", r"A10", 31.2, 125.0, 125.0),
    Accelerator("A30", r"A30", 10.3, 165.0, 165.0),
    Accelerator("A40", r"A40", 37.4, 149.7, 149.7),
    # NVIDIA L4 and L40S data sheets (2023).
    Accelerator("L4", r"L4", 30.3, 121.0, 121.0),
    Accelerator("L40S", r"L40S", 91.6, 362.05, 362.05),
    # NVIDIA H100 Tensor Core GPU Architecture (white paper, 2023), table 2. H100 NVL, H200 and H200 NVL data sheets (2024):
    # 1,671, 1,979 and 1,671 with sparsity; an H200's processor is an H100's.
    Accelerator("H100 SXM", r"H100 80GB HBM3", 66.9, 989.4, 989.4),
    Accelerator("H100 PCIe", r"H100 PCIe", 51.2, 756.0, 756.0),
    Accelerator("H100 NVL", r"H100 NVL", 60.0, 835.5, 835.5),
    Accelerator("H200 NVL", r"H200 NVL", 60.0, 835.5, 835.5),
    Accelerator("H200", r"H200", 66.9, 989.4, 989.4),
)
# TPU vN-M is M cores in older names: v3-8 is four chips. Bandwidths: Jouppi et al. 2020, table 3 (v2), and the pages of the
# others: "HBM2 capacity and bandwidth", "HBM bandwidth per chip"; the page of v5e gave 819 GBps for years and gives 800 GiBps
# (859) now; the smaller value is used here.
TPUS = (
    # Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural Networks", table 3: 46 a chip.
    Accelerator("TPU v2", r"v2", None, 46.0, None, bandwidth=700e9),
    # cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e: "Peak compute per chip".
    Accelerator("TPU v3", r"v3", None, 123.0, None, bandwidth=900e9),
    Accelerator("TPU v4", r"v4", None, 275.0, None, bandwidth=1200e9),
    Accelerator("TPU v5e", r"(v5e|v5 ?lite|v5litepod)", None, 197.0, None, bandwidth=819e9),
    Accelerator("TPU v5p", r"v5p", None, 459.0, None, bandwidth=2765e9),
    Accelerator("TPU v6e", r"v6e", None, 918.0, None, bandwidth=1638e9),
)
IPUS = (
    # Graphcore, Colossus MK2 GC200 product brief (2020): 250 in FP16.16, 62.5 in FP32.
    Accelerator("IPU GC200", r"GC200", 62.5, None, 250.0),
)
