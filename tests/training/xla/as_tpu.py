"""A process that takes every branch of a TPU, with XLA's CPU client in the place of libtpu's.

PyTorch/XLA looks at PJRT_DEVICE when it makes its client, and again each time it lowers an operation under SPMD, to lower it as
a TPU wants it. So the variable says CPU for the moment in which the client is made, and TPU before and after. All else is what
a TPU VM has: chips on the PCI bus, and the variables with which GKE takes the place of the metadata server.
"""

import os
from pathlib import Path

from relm.devices import tpu_chips

V3_8 = {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v3-8", "TPU_WORKER_HOSTNAMES": "here"}


def behave_as_tpu(pci: Path, hosts: int = 1) -> None:
    """Make this process, which has not opened its devices yet, one on a host of a v3 slice.

    Args:
        pci: of `small_pci.pci_bus`.
        hosts: how many the slice has; the CPU client itself knows of one.
    """
    import torch_xla.runtime as xr

    make_client_of_cpu()
    if hosts > 1:
        xr.process_count = lambda: hosts
    tpu_chips.DEVICES = pci
    os.environ.pop("PJRT_DEVICE", None)
    os.environ.update(V3_8, TPU_WORKER_HOSTNAMES=",".join(["here"] * hosts))


def make_client_of_cpu() -> None:
    """Have the runtime start with XLA's CPU client, whatever PJRT_DEVICE says before and after."""
    import torch_xla.runtime as xr

    plain = xr.global_runtime_device_count

    def global_runtime_device_count() -> int:
        kind, os.environ["PJRT_DEVICE"] = os.environ["PJRT_DEVICE"], "CPU"
        count = plain()
        os.environ["PJRT_DEVICE"] = kind
        return count

    xr.global_runtime_device_count = global_runtime_device_count
