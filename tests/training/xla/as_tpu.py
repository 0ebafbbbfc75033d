"""A process that takes every branch of a TPU, with XLA's CPU client in place of libtpu's.

PyTorch/XLA reads PJRT_DEVICE when it creates its client, and again each time it lowers an operation under SPMD, since lowering
depends on the device. So the variable is CPU only while the client is created, and TPU before and after. The rest is as on a
TPU VM: chips on the PCI bus, and the variables that GKE sets instead of the metadata server.
"""

import os
from pathlib import Path

from relm.devices import tpu_chips

V3_8 = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "here"}


def behave_as_tpu(pci: Path, hosts: int = 1) -> None:
    """Make this process, which has not opened its devices yet, one on a host of a v3 slice.

    Args:
        pci: the folder of `small_pci.pci_bus`.
        hosts: the slice's count of hosts; the CPU client itself has one.
    """
    import torch_xla.runtime as xr

    make_client_of_cpu()
    if hosts > 1:
        xr.process_count = lambda: hosts
    tpu_chips.DEVICES = pci
    os.environ.pop("PJRT_DEVICE", None)
    os.environ.update(V3_8, TPU_WORKER_HOSTNAMES=",".join(["here"] * hosts))


def make_client_of_cpu() -> None:
    """Make the runtime start with XLA's CPU client for every value of PJRT_DEVICE before and after."""
    import torch_xla.runtime as xr

    plain = xr.global_runtime_device_count

    def global_runtime_device_count() -> int:
        kind, os.environ["PJRT_DEVICE"] = os.environ["PJRT_DEVICE"], "CPU"
        count = plain()
        os.environ["PJRT_DEVICE"] = kind
        return count

    xr.global_runtime_device_count = global_runtime_device_count
