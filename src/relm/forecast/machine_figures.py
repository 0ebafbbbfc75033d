"""A run on a machine by arithmetic: its hours at the published peak, their price, and whether it fits. Imports no torch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from relm.formatting import format_hours, format_table
from relm.recipes.devices import DEVICES
from relm.recipes.machine.machines import Machine, Peak
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.machine.peak import find_peak

SHARES = (0.2, 0.4, 0.6)
"""Shares of its published peak that a device may reach: with a small or badly fed model, usually, and at best."""
USUAL = 0.4
"""The share to which a single figure refers."""


class PhaseWork(NamedTuple):
    """The operations of a phase."""

    phase: Phase
    step_operations: int
    """Operations of one step over the global batch, recomputation included."""

    @property
    def total(self) -> int:
        """Return the operations of all steps."""
        return self.phase.steps * self.step_operations


def hours_at_peak(work: Sequence[PhaseWork], machine: Machine, products: str | None = None) -> float | None:
    """Return the hours of the whole machine at its peak; None if no peak is published for a phase's precision.

    `products` is the run's `float32_matmul_precision`; None: the device's default.
    """
    hours = 0.0
    for part in work:
        peak = find_peak(machine, part.phase.precision, products)
        if peak is None:
            return None
        hours += part.total / (peak * 1e12 * machine.device_count) / 3600
    return hours


def price_of_hour(machine: Machine, price: float | None) -> float | None:
    """Return the price of an hour of the whole machine, from that of one accelerator or the machine's file; None: unknown."""
    if price is not None:
        return price * machine.chip_count
    return None if machine.price is None else machine.price.usd_per_hour


def machine_lines(work: Sequence[PhaseWork], run: Run, machines: Mapping[str, Machine], price: float | None) -> Iterator[str]:
    """Yield a row for the peak that the run states, for its machine, and for each other machine with a peak."""
    precisions = sorted({str(part.phase.precision) for part in work})
    yield ""
    yield (
        f"hours by arithmetic: operations / (published peak in {' and '.join(precisions)} x devices x the share that is used)"
    )
    rows = [["machine", "devices", "peak, TFLOP/s", *(f"at {share:.0%}" for share in SHARES)]]
    for name, machine in _rows(run, machines):
        peaks = [find_peak(machine, precision, run.float32_matmul_precision) for precision in precisions]
        peak = " and ".join(dict.fromkeys(f"{peak:g}" for peak in peaks if peak is not None)) or "none published"
        rows.append([name, str(machine.device_count), peak, *_cells(work, machine, run, price)])
    yield from format_table(rows, "<" + ">" * (len(rows[0]) - 1), indent="  ")
    if "float32" in precisions and any(machine.topology is not None for machine in machines.values()):
        yield "  TPUs multiply float32 in one pass of bfloat16, or in three or six: float32_matmul_precision high, highest"
    if "bfloat16" in precisions and run.pipeline is not None:
        yield "  IPUs multiply in float16 where a recipe says bfloat16"
    if price is not None:
        yield f"  in brackets the price at {price:g} an hour of one accelerator, of a TPU one chip"
    elif any(machine.price is not None for machine in machines.values()):
        yield "  in brackets the price in US dollars, by recipes/machines/"


def _rows(run: Run, machines: Mapping[str, Machine]) -> Iterator[tuple[str, Machine]]:
    if run.peak_teraflops is not None:
        stated = dict.fromkeys(("float32", "bfloat16", "float16"), run.peak_teraflops)
        peak = Peak(**stated, source="https://run.peak_teraflops")
        slice_of = {"topology": run.topology} if run.topology else {"accelerators": run.processes * run.devices_of_process}
        yield "run's own", Machine.model_construct(title="", device=run.device, peak=peak, **slice_of)
    if run.machine is not None and run.machine in machines:
        yield run.machine, machines[run.machine]
    for name, machine in machines.items():
        device = DEVICES[machine.device]
        # A pipeline is planned for one machine: another one with IPUs could not run it unchanged.
        if name != run.machine and machine.peak is not None and not device.pipelined:
            yield name, machine


def _cells(work: Sequence[PhaseWork], machine: Machine, run: Run, price: float | None) -> list[str]:
    """Return the hours of a row, each with its price; empty if no peak is published."""
    hours, hourly = hours_at_peak(work, machine, run.float32_matmul_precision), price_of_hour(machine, price)
    if hours is None:
        return [""] * len(SHARES)
    costs = ["" if hourly is None else f" ({hourly * hours / share:,.2f})" for share in SHARES]
    return [f"{format_hours(hours / share)}{cost}" for share, cost in zip(SHARES, costs, strict=True)]
