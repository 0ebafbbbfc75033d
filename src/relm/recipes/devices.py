"""Devices: one declaration for each, with what recipes, images, estimates and evaluations need to know of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from relm.recipes.accelerators import GPUS, IPUS, TPUS, Accelerator
from relm.recipes.declaration import Registry
from relm.recipes.topologies import TOPOLOGIES, Topology

HOST = "cpu"
"""The device of every machine; steps that need no other run on it."""


@dataclass(frozen=True, kw_only=True)
class DeviceDeclaration:
    """A device that a recipe may name in `run.device`."""

    name: str
    open: str | None
    """Reference to a function (section `run`, folder for compiled programs or None, true to use one device of a TPU) that
    returns a `relm.devices.contract.Device`; None: no module of this version trains on it."""
    check: str
    """Reference to a function that says in a line whether this machine has it: "yes", or "no" and why; for `relm doctor`."""
    lock: str
    """The lock file in `envs/` with its torch: another device's, or torch-NAME.txt, of which `make DEVICE=NAME environment`
    makes an environment as well."""
    image: str
    """The device whose image its steps run in: built from `containers/NAME/Dockerfile`, pinned in `containers/lock.yaml`."""
    builds_with_network: bool = False
    """Its Dockerfile fetches packages; the others are built without a network."""
    evaluation_batch_tokens: int = 0
    """Tokens that an evaluation computes at once; 0: evaluations run on the CPU, and no option `--device` may name it."""
    in_main_memory: bool = False
    """Weights and activations lie in the machine's main memory, of which all processes have a part."""
    takes_trials: bool = False
    """A trial step measures what `relm estimate` says of this machine."""
    compiles: bool = False
    """The forward and backward pass are compiled where `run.compile` is null."""
    steps: tuple[str, ...] = ()
    """Steps whose packages are in its image alone, whatever the recipe's device."""
    stores: tuple[str, ...] = ()
    """Schemes of URLs, such as gs, whose client is in its image alone."""
    training_options: tuple[str, ...] = ()
    """Options of `relm pretrain` that are refused with other devices."""
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    """The slices that `run.topology` may name."""
    emulation: tuple[str, str] | None = None
    """A variable of the environment and the value with which a CPU emulates it, so that a smoke twin trains on it as well;
    without it a twin trains on the CPU."""
    draws_depend_on: tuple[str, ...] = ()
    """Keys of its description on which dropout's random numbers depend beside those of every device."""
    accelerators: tuple[Accelerator, ...] = ()
    """Its products and their published peaks."""
    estimated_on: tuple[str, ...] = ()
    """The accelerators whose hours `relm estimate` computes, if not its own ones; they may be other devices'."""

    @property
    def estimated_accelerators(self) -> tuple[Accelerator, ...]:
        """The accelerators whose hours `relm estimate` computes."""
        if not self.estimated_on:
            return self.accelerators
        known = (accelerator for declaration in DEVICES for accelerator in declaration.accelerators)
        return tuple(accelerator for accelerator in known if accelerator.name in self.estimated_on)


DEVICES: Registry[DeviceDeclaration] = Registry(
    "device",
    DeviceDeclaration(
        name=HOST,
        open="relm.devices.torch:open_torch_device",
        check="relm.devices.detection:describe_cpu",
        lock="torch-cpu.txt",
        image="cpu",
        evaluation_batch_tokens=1024,  # what a layer makes of more leaves the caches of a CPU
        in_main_memory=True,
        takes_trials=True,
        estimated_on=("L4", "A100", "H100 SXM", "TPU v3", "TPU v4"),  # its recipe may be meant for any of them
    ),
    DeviceDeclaration(
        name="cuda",
        open="relm.devices.torch:open_torch_device",
        check="relm.devices.detection:describe_cuda",
        lock="torch-cuda.txt",
        image="cuda",
        builds_with_network=True,  # compilers, from the package mirror of its base
        evaluation_batch_tokens=16_384,  # of fewer a GPU idles
        takes_trials=True,
        compiles=True,
        draws_depend_on=("name", "torch"),
        accelerators=GPUS,
        estimated_on=("V100 SXM2", "T4", "L4", "A10", "A100", "H100 PCIe", "H100 SXM", "H200"),
    ),
    DeviceDeclaration(
        name="tpu",
        open="relm.devices.xla:open_xla_device",
        check="relm.devices.detection:describe_tpu",
        lock="torch-tpu.txt",
        image="tpu",
        compiles=True,
        steps=("compile",),
        stores=("gs",),
        training_options=("--one-tpu", "--tpu-report"),
        topologies=TOPOLOGIES,
        emulation=("PJRT_DEVICE", "CPU"),
        accelerators=TPUS,
    ),
    DeviceDeclaration(
        name="ipu",
        open=None,
        check="relm.devices.detection:describe_ipu",
        lock="torch-cpu.txt",
        image="ipu",
        accelerators=IPUS,
    ),
)


def register_device(declaration: DeviceDeclaration) -> None:
    """Let recipes name another device.

    Raises:
        RelmError: the name is taken.
    """
    DEVICES.register(declaration)


def list_evaluation_devices() -> list[str]:
    """Return the names of the devices that evaluations run on."""
    return [declaration.name for declaration in DEVICES if declaration.evaluation_batch_tokens]


def find_evaluation_device(device: str) -> str:
    """Return the device of the evaluations of what was trained on a device: the same, or the CPU."""
    return device if device in list_evaluation_devices() else HOST


def list_image_roles() -> list[str]:
    """Return the devices that have an image of their own."""
    return list(dict.fromkeys(declaration.image for declaration in DEVICES))
