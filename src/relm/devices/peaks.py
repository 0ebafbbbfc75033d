"""The published peak of an accelerator, looked up by its name in torch or in a cloud."""

import re

from relm.recipes.devices import DEVICES
from relm.recipes.machine.accelerators import Accelerator


def find_accelerator(device_name: str) -> Accelerator | None:
    """Return the entry of an accelerator; None if no table has it, or if it is only a MIG instance."""
    if re.search(r"\bMIG\b", device_name):
        return None
    known = (accelerator for declaration in DEVICES for accelerator in declaration.accelerators)
    # Whole words only, because one product's name may begin another's, such as A10 and A10G.
    found = (each for each in known if re.search(rf"(^|[\s-])({each.pattern})($|[\s-])", device_name, re.IGNORECASE))
    return next(found, None)


def find_peak_flops(device_name: str, precision: str) -> float | None:
    """Return the peak operations per second of one chip's matrix products; None: no figure is published.

    A multiplication with an addition counts as two. `device_name` is as ``torch.cuda.get_device_name`` returns it, such as
    "NVIDIA H100 80GB HBM3"; for a TPU "TPU v3" or its type, such as "v3-8".

    >>> find_peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16"), find_peak_flops("Tesla T4", "bfloat16")
    (312000000000000.0, None)
    """
    accelerator = find_accelerator(device_name)
    teraflops: float | None = None if accelerator is None else getattr(accelerator, precision)
    return None if teraflops is None else teraflops * 1e12
