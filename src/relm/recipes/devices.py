"""Devices: one declaration for each, with the facts that recipes, images, estimates and evaluations need."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from relm.recipes.declaration import Registry
from relm.recipes.machine.accelerators import GPUS, IPUS, TPUS, Accelerator
from relm.recipes.machine.topologies import TOPOLOGIES, Topology

HOST = "cpu"
"""The device that every machine has; steps that need no accelerator run on it."""
PRECISION = "float32_matmul_precision"
"""Key of a device's description: the precision in which it multiplied float32 tensors, also where the recipe states none."""


@dataclass(frozen=True, kw_only=True)
class DeviceDeclaration:
    """A device that `run.device` of a recipe may name."""

    name: str
    open: str
    """Reference to a function (section `run`, folder for compiled programs or None, true to use one device of a TPU) that
    returns a `relm.devices.contract.Device`."""
    check: str
    """Reference to a function that returns one line for `relm doctor`: "yes", or "no" with the reason, for this machine."""
    lock: str
    """Lock file in `envs/` with its torch: that of another device, or torch-NAME.txt, from which `make DEVICE=NAME environment`
    builds an environment."""
    image: str
    """Device whose image its steps run in: built from `containers/Dockerfile`, pinned in `containers/lock.yaml`."""
    lacks: str | None = None
    """Reference to a function that returns None if this Python environment has the packages that train on it, otherwise what it
    lacks, in words; it imports no torch. None: every environment has them."""
    absent: str | None = None
    """Reference to a function (count of accelerators) that returns None if this machine has that many, otherwise what is wrong
    and what to do; it imports no torch. None: it is not checked before training."""
    gres: str | None = None
    """Slurm's name for its accelerators among generic resources; None: a job requests none."""
    builds_with_network: bool = False
    """Its image gets packages of Debian, so it is built with a network; other images are built without one."""
    evaluation_batch_tokens: int = 0
    """Tokens that an evaluation computes at once; 0: evaluations run on the CPU, and `--device` does not take it."""
    fine_tuning_tokens: int = 0
    """Tokens that each of its accelerators computes at once where an evaluation fine-tunes a model and scores it; 0: it does so
    where other evaluations run, or, if it is `pipelined`, in the micro-batches of a pipeline."""
    runs_inference: bool = False
    """relm's own GPT-2, BERT and RoBERTa are evaluated, and a GPT-2 generates, on it where a command names it; evaluations of a
    recipe's graph never run on it, unless they fine-tune."""
    in_main_memory: bool = False
    """Weights and activations are in the machine's main memory, which all processes share."""
    attention: Literal["products", "fused", "written_out"] = "fused"
    """Form of attention, which decides the activations that it keeps; see `relm.models.counting.Computing`."""
    reserved_gib: float = 0.0
    """Memory of a device in GiB that training cannot use, in addition to `reserved_share`."""
    reserved_share: float = 0.1
    """Share of a device's memory that training cannot use."""
    float32_products: Mapping[str, str] = field(default_factory=dict)
    """Precision of matrix products of float32 tensors -> their arithmetic, as a sentence continues after "multiplied"."""
    one_process_each: bool = False
    """Each accelerator has a process; otherwise one process drives all accelerators of a host."""
    compiles: bool = False
    """The forward and backward pass are compiled where `run.compile` is null."""
    steps: tuple[str, ...] = ()
    """Steps whose packages only its image contains, whatever the recipe's device."""
    stores: tuple[str, ...] = ()
    """URL schemes, such as gs, whose client only its image contains."""
    training_options: tuple[str, ...] = ()
    """Options of `relm pretrain` that only this device takes."""
    runs_torch: bool = False
    """Torch's own kernels and autograd run there, so that `run.loss_chunk` and `run.padding_mask` have an effect; elsewhere a
    model becomes a program of another compiler."""
    topologies: Mapping[str, Topology] = field(default_factory=dict)
    """Slices that `run.topology` may name."""
    pipelined: bool = False
    """It runs a model as a pipeline over several accelerators, so that a run needs `run.pipeline`."""
    simulator: str | None = None
    """Device that simulates it on a CPU, for a smoke twin; None: `emulation`, or the CPU itself."""
    emulation: tuple[str, str] | None = None
    """Environment variable and value that make a CPU emulate the device, so that a smoke twin trains on it as well;
    without it a twin trains on the CPU."""
    float32_matmul_precision: str | None = None
    """Precision of matrix products of float32 tensors in records that lack it, because older versions could not change it."""
    draws_depend_on: tuple[str, ...] = ()
    """Keys of its description that change dropout's random numbers, besides those of every device."""
    accelerators: tuple[Accelerator, ...] = ()
    """Its models with their published peaks."""


DEVICES: Registry[DeviceDeclaration] = Registry(
    "device",
    DeviceDeclaration(
        name=HOST,
        open="relm.devices.torch:open_torch_device",
        check="relm.devices.detection:describe_cpu",
        lock="torch-cpu.txt",
        image="cpu",
        evaluation_batch_tokens=1024,  # activations of more tokens do not fit a CPU's caches
        in_main_memory=True,
        attention="products",
        float32_products={"highest": "in float32"},
        reserved_gib=0.5,  # Python, torch and its libraries
        runs_torch=True,
        float32_matmul_precision="highest",
    ),
    DeviceDeclaration(
        name="cuda",
        open="relm.devices.torch:open_torch_device",
        check="relm.devices.detection:describe_cuda",
        lacks="relm.devices.detection:find_missing_cuda",
        absent="relm.devices.detection:find_absent_gpus",
        gres="gpu",
        lock="torch-cuda.txt",
        image="cuda",
        builds_with_network=True,  # compilers, from the package mirror of its base
        evaluation_batch_tokens=16_384,  # a GPU idles with fewer
        # A context with its kernels, workspaces of cuBLAS, buffers of NCCL; blocks that the allocator cannot use.
        reserved_gib=1.0,
        float32_products={"highest": "in float32, without TF32", "high": "in TF32"},
        one_process_each=True,
        compiles=True,
        runs_torch=True,
        float32_matmul_precision="highest",
        draws_depend_on=("name", "torch"),
        accelerators=GPUS,
    ),
    DeviceDeclaration(
        name="tpu",
        open="relm.devices.xla:open_xla_device",
        check="relm.devices.detection:describe_tpu",
        lacks="relm.devices.detection:find_missing_xla",
        lock="torch-tpu.txt",
        image="tpu",
        compiles=True,
        fine_tuning_tokens=4096,  # as BERT large pretrains in float32 on a core of v3 with 16 GiB
        attention="written_out",
        reserved_share=0.04,  # the compiler allocates 15.48 of 16 GiB on v3, 30.75 of 32 on v4, 15.75 of 16 on v5e
        float32_products={
            "default": "in bfloat16 and added in float32",
            "high": "in three passes of bfloat16 and added in float32",
            "highest": "in six passes of bfloat16 and added in float32",
        },
        steps=("compile",),
        stores=("gs",),
        training_options=("--one-tpu", "--tpu-report"),
        topologies=TOPOLOGIES,
        emulation=("PJRT_DEVICE", "CPU"),
        float32_matmul_precision="default",
        accelerators=TPUS,
    ),
    DeviceDeclaration(
        name="ipu",
        open="relm.devices.ipu.device:open_ipu_device",
        check="relm.devices.detection:describe_ipu",
        lacks="relm.devices.detection:find_missing_ipu",
        lock="torch-cpu.txt",
        image="ipu",
        float32_products={"highest": "as its pipeline's precision says"},
        pipelined=True,
        runs_inference=True,
        simulator="ipu_simulator",
        float32_matmul_precision="highest",
        draws_depend_on=("poptorch", "replicas"),
        accelerators=IPUS,
    ),
    DeviceDeclaration(
        name="ipu_simulator",
        open="relm.devices.ipu.device:open_ipu_device",
        check="relm.devices.detection:describe_ipu_simulator",
        lock="torch-cpu.txt",
        image=HOST,
        in_main_memory=True,
        attention="products",
        float32_products={"highest": "in float32"},
        reserved_gib=0.5,  # Python, torch and its libraries
        pipelined=True,
        runs_inference=True,
        float32_matmul_precision="highest",
    ),
)


def register_device(declaration: DeviceDeclaration) -> None:
    """Add a device to those that recipes may name."""
    DEVICES.register(declaration)


def complete_description(made_on: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded description of a device, with the precision of float32 products that older records lack."""
    name = str(made_on.get("device"))
    precision = DEVICES[name].float32_matmul_precision if name in DEVICES else None
    return {**({} if precision is None else {PRECISION: precision}), **made_on}


def list_evaluation_devices() -> list[str]:
    """Return the names of the devices that evaluations run on."""
    return [declaration.name for declaration in DEVICES if declaration.evaluation_batch_tokens]


def list_fine_tuning_devices() -> list[str]:
    """Return the names of the devices that can fine-tune a model for an evaluation."""
    others = (device.name for device in DEVICES if device.fine_tuning_tokens or device.pipelined)
    return list(dict.fromkeys([*list_evaluation_devices(), *others]))


def list_inference_devices() -> list[str]:
    """Return the names of the devices that a command may name for an evaluation or for generation."""
    return [*list_evaluation_devices(), *(declaration.name for declaration in DEVICES if declaration.runs_inference)]


def find_evaluation_device(device: str, fine_tunes: bool = False) -> str:
    """Return the device on which a model trained on `device` is evaluated, or fine-tuned first: the same, or the CPU."""
    return device if device in (list_fine_tuning_devices() if fine_tunes else list_evaluation_devices()) else HOST


def list_environments() -> list[str]:
    """Return the devices that have a locked environment."""
    return [declaration.name for declaration in DEVICES if declaration.lock == f"torch-{declaration.name}.txt"]


def list_image_roles() -> list[str]:
    """Return the devices that have an image."""
    return list(dict.fromkeys(declaration.image for declaration in DEVICES))
