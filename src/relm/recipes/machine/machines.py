"""Machines: the section of `recipes/machines/NAME.yaml`, and a recipe's run on a machine.

Its file describes hardware alone; what depends on model and machine is in the recipe, under `on`. No fingerprint depends on it.
"""

import datetime
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from relm.errors import RelmError
from relm.recipes.declaration import NameIn
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.files.web_address import WebAddress
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.machine.topologies import Topology
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.recipes.section import Section, read_yaml, validate

HARDWARE_KEYS = ("device", "topology", "processes")
"""Keys of `run` that follow from a machine."""
OWN_KEYS = (
    *HARDWARE_KEYS, "micro_batch_size", "threads", "compile", "activation_checkpointing", "loss_chunk",
    "peak_teraflops", "pipeline",
)  # fmt: skip
"""Keys of `run` that are meant for the recipe's own machine; on another one they have their defaults, or those of `on`."""
Positive = Annotated[float, Field(gt=0)]


class Peak(Section):
    """Published peak throughput of one device for dense matrix products, in 10^12 operations per second."""

    float32: Positive | None = None
    """Products of float32 numbers, not rounded to TF32; null: no figure is published."""
    bfloat16: Positive | None = None
    """Products of bfloat16 numbers; null: no figure is published."""
    float16: Positive | None = None
    """Products of float16 numbers; null: no figure is published."""
    source: WebAddress
    """Page with the figures."""


class Link(Section):
    """Published bandwidth of one device's links."""

    gigabytes_per_second: Positive
    """Bandwidth in 10^9 bytes per second."""
    source: WebAddress
    """Page with the figure."""


class Links(Section):
    """Links between accelerators."""

    within_host: Link | None = None
    """Between the accelerators of one host."""


class Price(Section):
    """Price of the whole machine on demand."""

    usd_per_hour: Positive
    """Price of an hour in US dollars."""
    date: datetime.date = Field(strict=False)
    """Day on which the source stated it, such as 2026-01-15."""
    source: WebAddress
    """Page with the price."""


class Machine(Section):
    """`recipes/machines/NAME.yaml`: hardware that runs may be placed on."""

    title: str
    """Short description of the machine."""
    device: Annotated[str, NameIn(DEVICES)]
    """Device that trains."""
    topology: str | None = None
    """Slice of TPUs by Google Cloud's name, such as v3-8, which determines the number of devices and hosts."""
    accelerators: int = Field(default=1, gt=0, le=65536)
    """Number of accelerators over all hosts, for machines without a topology; 1 for a CPU."""
    hosts: int = Field(default=1, gt=0, le=65536)
    """Number of hosts, for machines without a topology; each host of a CPU has one process."""
    memory_gib: float | None = Field(default=None, gt=0, le=65536)
    """Memory of one device in GiB: a core of TPU v2 and v3, a chip of later TPUs, a GPU, an IPU; null: not stated, for a CPU
    that of the machine on which the run is planned."""
    host_memory_gib: float | None = Field(default=None, gt=0, le=1048576)
    """Main memory of one host in GiB; null: not stated."""
    peak: Peak | None = None
    """Published peak of one device; null: none is published."""
    links: Links = Links()
    """Links between accelerators."""
    price: Price | None = None
    """Price of the whole machine; null: not stated."""

    @model_validator(mode="after")
    def topology_and_hosts_are_of_the_device(self) -> Self:
        topologies = DEVICES[self.device].topologies
        if self.topology is None and topologies:
            raise ValueError(f"topology: missing; device: {self.device} needs one of {', '.join(topologies)}")
        if self.topology is not None and self.topology not in topologies:
            known = f"one of {', '.join(topologies)}" if topologies else "none, because the device has no slices"
            raise ValueError(f"topology: with device: {self.device} expected {known}; found {self.topology}")
        if self.topology is not None and (given := sorted({"accelerators", "hosts"} & self.model_fields_set)):
            raise ValueError(f"{given[0]}: follows from topology ({self.topology}); leave it out")
        if self.device != HOST and self.accelerators % self.hosts:
            raise ValueError(f"hosts ({self.hosts}) must divide accelerators ({self.accelerators})")
        if self.device == HOST and self.accelerators > 1:
            raise ValueError(f"accelerators: a machine with device: {HOST} has none; leave it out")
        return self

    @property
    def slice(self) -> Topology | None:
        """The slice of TPUs; None for other machines."""
        return None if self.topology is None else DEVICES[self.device].topologies[self.topology]

    @property
    def device_count(self) -> int:
        """Number of devices over which a global batch is split."""
        return max(self.accelerators, self.hosts) if self.slice is None else self.slice.devices

    @property
    def chip_count(self) -> float:
        """Number of accelerators as they are rented: chips of TPUs, which may be two devices each; 0.5 for one core."""
        return self.device_count if self.slice is None else self.slice.chips

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self.hosts if self.slice is None else self.slice.hosts

    @property
    def processes(self) -> int:
        """Number of processes that share each global batch: one for each accelerator, where one process drives one device."""
        return self.device_count if DEVICES[self.device].one_process_each or self.device == HOST else 1

    @property
    def process_hosts(self) -> int:
        """Number of hosts on which Slurm starts these processes; 1 where the device has another launcher."""
        return self.hosts if self.processes > 1 else 1


def load_machine(path: Path) -> Machine:
    """Return the machine in a file of `recipes/machines/`."""
    return validate(Machine, read_yaml(path), path)


def place_on(recipe: Recipe, name: str, machine: Machine, path: Path) -> Recipe:
    """Return a recipe with `run` filled in for a machine: keys in `OWN_KEYS` from the recipe's `on`, unless it is its own."""
    own = find_own_machine(recipe)
    if recipe.run.machine is not None and (twice := [key for key in HARDWARE_KEYS if key in recipe.run.model_fields_set]):
        raise RelmError(
            f"{path}: run.{twice[0]}: follows from run.machine ({recipe.run.machine}); leave it out, or set run.machine: null"
        )
    written = recipe.run.model_dump(exclude_unset=True)
    kept = written if name == own else {key: value for key, value in written.items() if key not in OWN_KEYS}
    special = recipe.on[name].model_dump(exclude_unset=True) if name in recipe.on else {}
    hardware = {"machine": name, "device": machine.device, "topology": machine.topology, "processes": machine.processes}
    run = {**kept, **special, **hardware}
    if (pipeline := recipe.on[name].pipeline if name in recipe.on else None) is not None:
        run["micro_batch_size"] = pipeline.common_micro_batch_size(recipe.pretrain)
    elif DEVICES[machine.device].pipelined:
        raise RelmError(
            f"{path}: on.{name}.pipeline: missing, and {name} (device {machine.device}) needs one. Give layers_per_ipu (the "
            "number of layers on each IPU) and gradient_accumulation at least; docs/recipes.md has an example"
        )
    try:
        return validate(Recipe, {**recipe.model_dump(exclude={"run"}), "run": run}, path)
    except RelmError as error:  # it names keys of `run`; those of `on` are written elsewhere
        message = str(error)
        for key in special:
            message = message.replace(f"run.{key}", f"on.{name}.{key}")
        raise RelmError(message) from None


def require_ipus(pipeline: Pipeline, name: str, machine: Machine, path: Path) -> None:
    """Raise unless a machine runs pipelines and has the IPUs of `on.NAME.pipeline`."""
    where = f"{path}: on.{name}.pipeline"
    if not DEVICES[machine.device].pipelined:
        raise RelmError(f"{where}: {name} has device {machine.device}, which runs no pipeline; leave it out")
    if pipeline.ipus > machine.device_count:
        raise RelmError(
            f"{where}.replicas: {pipeline.replicas} replicas of {pipeline.ipus_per_replica} IPUs are {pipeline.ipus}, but "
            f"{name} has {machine.device_count}; use fewer replicas"
        )


def find_own_machine(recipe: Recipe) -> str | None:
    """Return the machine on which `results/NAME` runs; None without one, unless the recipe is for the CPU."""
    if recipe.run.machine is not None:
        return recipe.run.machine
    return HOST if recipe.run.device == HOST and recipe.run.processes == 1 else None


def divides(machine: Machine, phase: Phase) -> bool:
    """Return True if a machine's processes and devices divide each micro-batch that a phase can have."""
    part, rest = divmod(phase.global_batch_size, machine.processes)
    devices = 1 if machine.slice is None else machine.device_count
    return rest == 0 and math.gcd(part, phase.share_size) % devices == 0


def can_place(recipe: Recipe, name: str, machine: Machine) -> bool:
    """Return True unless a machine's device needs a pipeline, and the recipe has none for it."""
    device = DEVICES[machine.device]
    has_pipeline = name in recipe.on and recipe.on[name].pipeline is not None
    return has_pipeline or not device.pipelined


def require_division(
    recipe: Recipe, name: str, machine: Machine, path: Path, machines: Callable[[], Mapping[str, Machine]]
) -> None:
    """Raise unless a machine can divide the batches of all phases of a recipe; list the machines that can."""
    refused = next((key for key, phase in recipe.pretrain.items() if not divides(machine, phase)), None)
    if refused is None:
        return
    phase = recipe.pretrain[refused]
    able = [
        other
        for other, known in machines().items()
        if can_place(recipe, other, known) and all(divides(known, each) for each in recipe.pretrain.values())
    ]
    shares = f" in {phase.loss_shares} loss_shares" if phase.loss_shares > 1 else ""
    raise RelmError(
        f"{path}: pretrain.{refused}.global_batch_size: {phase.global_batch_size} sequences{shares} cannot be divided evenly "
        f"among the {machine.device_count} devices of {name}. Choose a machine that can divide them: "
        f"{', '.join(able) or 'none of recipes/machines/ can'}"
    )


def describe_deviation(recipe: Recipe, own: str | None, name: str, machine: Machine) -> str:
    """Return the sentence on a run on another machine than the recipe's own, with the arithmetic of its matrix products."""
    precisions = dict.fromkeys(phase.precision for phase in recipe.pretrain.values())
    device = DEVICES[machine.device]
    matmul = recipe.run.float32_matmul_precision or device.float32_matmul_precision
    float32 = device.float32_products.get(str(matmul), f"with float32_matmul_precision: {matmul or 'unknown'}")
    products = [
        f"matrix products of float32 are multiplied {float32}"
        if precision == "float32"
        else f"matrix products are computed in {precision}, as the recipe's precision says"
        for precision in precisions
    ]
    other = "no machine is named in the recipe" if own is None else f"the recipe's own machine is {own}"
    return f"This run is on {name} ({machine.title}; device {machine.device}), and {other}: {'; '.join(products)}."
