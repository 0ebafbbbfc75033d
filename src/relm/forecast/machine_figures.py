"""A run on a machine by arithmetic: its hours at the published peak, their price, and whether it fits. Imports no torch."""

from collections.abc import Sequence
from typing import NamedTuple

from relm.recipes.machine.machines import Machine
from relm.recipes.phase import Phase
from relm.training.machine.peak import find_peak

SHARES = (0.2, 0.4, 0.6)
"""Shares of its published peak that a device may reach: with a small or badly fed model, usually, and at best."""
USUAL = 0.4
"""The share for which one figure stands."""


class PhaseWork(NamedTuple):
    """The operations of a phase."""

    phase: Phase
    step_operations: int
    """Operations of one step over the global batch, with those that are computed again."""

    @property
    def total(self) -> int:
        """Return the operations of all steps."""
        return self.phase.steps * self.step_operations


def hours_at_peak(work: Sequence[PhaseWork], machine: Machine, products: str | None = None) -> float | None:
    """Return the hours of the whole machine at its whole peak; None if none is published for a phase's precision.

    `products` is the run's `float32_matmul_precision`; None: the device's own.
    """
    hours = 0.0
    for part in work:
        peak = find_peak(machine, part.phase.precision, products)
        if peak is None:
            return None
        hours += part.total / (peak * 1e12 * machine.device_count) / 3600
    return hours


def price_of_hour(machine: Machine, price: float | None) -> float | None:
    """Return the price of an hour of the whole machine, from that of one accelerator or the machine's file; None: not known."""
    if price is not None:
        return price * machine.chip_count
    return None if machine.price is None else machine.price.usd_per_hour
