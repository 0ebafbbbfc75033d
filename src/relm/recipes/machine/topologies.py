"""Slices of TPUs by Google Cloud's names; this module imports nothing heavy."""

from typing import NamedTuple


class Topology(NamedTuple):
    """A slice of TPUs that `run.topology` of a recipe may name."""

    devices: int
    """Number of XLA devices, over which a batch is split: cores of v2 and v3, chips of all later generations."""
    chips: float
    """Number of chips; half a chip is one of its two cores."""
    hosts: int
    layout: str
    """Name in the TPU's compiler: the generation, and the number of chips along each axis."""
    one_of_host: bool = False
    """One device of a host trains, and the host's others stay idle."""


# cloud.google.com/tpu/docs/v2, v3, v4, v5e, v5p, v6e. Names count cores of v2, v3, v4 and v5p, chips of v5e and v6e; the two
# cores of a v4 or v5p chip are one device. v5e is called v5litepod there. Slices of one host, and the smallest of several.
TOPOLOGIES = {
    "v2-8": Topology(8, 4, 1, "v2:2x2"),
    "v3-8": Topology(8, 4, 1, "v3:2x2"),
    "v4-8": Topology(4, 4, 1, "v4:2x2x1"),
    "v5e-1": Topology(1, 1, 1, "v5e:1x1"),
    "v5e-4": Topology(4, 4, 1, "v5e:2x2"),
    "v5e-8": Topology(8, 8, 1, "v5e:2x4"),
    "v5p-8": Topology(4, 4, 1, "v5p:2x2x1"),
    "v6e-1": Topology(1, 1, 1, "v6e:1x1"),
    "v6e-4": Topology(4, 4, 1, "v6e:2x2"),
    "v6e-8": Topology(8, 8, 1, "v6e:2x4"),
    "v2-32": Topology(32, 16, 4, "v2:4x4"),
    "v3-32": Topology(32, 16, 4, "v3:4x4"),
    "v4-16": Topology(8, 8, 2, "v4:2x2x2"),
    "v5e-16": Topology(16, 16, 4, "v5e:4x4"),
    "v5p-16": Topology(8, 8, 2, "v5p:2x2x2"),
    "v6e-16": Topology(16, 16, 4, "v6e:4x4"),
    # One device of a host of four chips: no slice that can be rented, but named like one. v5e and v6e have slices of one chip.
    "v2-1": Topology(1, 0.5, 1, "v2:1x1", one_of_host=True),
    "v3-1": Topology(1, 0.5, 1, "v3:1x1", one_of_host=True),
    "v4-2": Topology(1, 1, 1, "v4:1x1x1", one_of_host=True),
    "v5p-2": Topology(1, 1, 1, "v5p:1x1x1", one_of_host=True),
}


def find_one_device(topology: str) -> str:
    """Return the slice of one device of the same generation.

    >>> find_one_device("v3-8"), find_one_device("v5e-16")
    ('v3-1', 'v5e-1')
    """
    generation = topology.partition("-")[0]
    return next(name for name in TOPOLOGIES if name.partition("-")[0] == generation and TOPOLOGIES[name].devices == 1)
