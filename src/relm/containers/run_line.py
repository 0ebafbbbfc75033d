"""The command of Docker or podman that runs a step in its image, with only the given parts of the machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from relm.containers.extensions import find_extensions
from relm.containers.lock import Image, Role, find_image
from relm.containers.placement import Placement
from relm.errors import RelmError
from relm.recipes.files.own_folders import HOME, home_folder
from relm.recipes.identity import work_folder
from relm.recipes.redaction import LOGGER_ADDRESSES, LOGGER_KEYS

Engine = Literal["docker", "podman"]
# Inherited from the caller by name, so that the command contains no secret. Proxies and tokens go only to steps with network
# access, loggers' keys only to training that logs to a server.
ALWAYS_PASSED = (
    "RELM_WORK", "RELM_IGNORE_LIMITS", "RELM_RANK_TIMEOUT", "RELM_ENCODER", "RELM_STOP_WITH_PARENT",
    "RELM_KILL_AT", "RELM_JOB_LOGS", "RELM_EXTENSIONS", "RELM_DATA_FOLDERS", "RELM_TRUST_TASKS", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "WANDB_MODE",
)  # fmt: skip
PASSED_WITH_NETWORK = (
    "RELM_MIRROR", "HF_TOKEN", "HF_ENDPOINT",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
PASSED_TO_LOGGERS = (*LOGGER_KEYS, *LOGGER_ADDRESSES)
# For the image's caches and HOME; `exec` because compiled kernels are loaded from it.
SCRATCH = "/tmp:rw,exec,nosuid,nodev,mode=1777"


@dataclass(frozen=True)
class ContainerRun:
    """One step in one image."""

    image: Image
    """Its entry in the lock, with the device's flags."""
    reference: str
    """The image, for the engine."""
    command: Sequence[str]
    """The words after the entry point, which by default is `relm`."""
    writable: Sequence[Path]
    """Folders mounted at the same path: the checkout and, if it is elsewhere, the work folder."""
    read: Sequence[Path] = ()
    """Folders and files mounted read-only at the same path."""
    home: Path | None = None
    """The folder that `~` means in datasets and models; None: nothing in it is mounted."""
    search_path: Sequence[Path] = ()
    """Additional folders in which Python finds modules."""
    working_folder: Path = field(default_factory=Path.cwd)
    network: bool = False
    """True if the step itself needs the network."""
    logs: bool = False
    """True if the step sends a log to a server and so needs the loggers' keys."""
    user: tuple[int, int] = field(default_factory=lambda: (os.getuid(), os.getgid()))
    """The user and group that will own its files."""
    rootless: bool = field(default_factory=lambda: os.getuid() != 0)
    """True if the engine's caller is not root, so podman must keep the user's id."""
    devices: Sequence[str] = ()
    """The device files that match the image's patterns."""
    entry_point: str | None = None
    """A replacement for the image's entry point."""


def prepare_run(
    role: Role, reference: str, placed: Placement, command: Sequence[str], *, checkout: Path, entry_point: str | None = None
) -> ContainerRun:
    """Return a step's run with only the checkout, the work folder, the folders that it reads, and extensions."""
    image, work = fit_image(find_image(role)), work_folder().resolve()
    extensions = find_extensions(os.environ, (checkout, work))
    work.mkdir(parents=True, exist_ok=True)  # otherwise the engine makes it, as root
    return ContainerRun(
        image=image,
        reference=reference,
        command=command,
        writable=[checkout] if work.is_relative_to(checkout.resolve()) else [checkout, work],
        read=[*placed.reads, *extensions.files, *list_configuration(image, os.environ)],
        home=home_folder() if placed.reads else None,
        search_path=extensions.search_path,
        working_folder=checkout,
        network=placed.network,
        logs=placed.logs,
        devices=list_devices(image),
        entry_point=entry_point,
    )


def run_line(engine: Engine, run: ContainerRun, caller: Mapping[str, str]) -> list[str]:
    """Return the words of `docker run` or `podman run`, with only the names of the caller's variables."""
    line = [
        engine,
        "run",
        "--rm",
        "--init",
        "--read-only",
        "--tmpfs",
        SCRATCH,
        *_format_rights(engine, run),
        *_format_device(engine, run),
    ]
    # Without a network, Docker's name for the container cannot be resolved, and ranks would wait for each other forever.
    line += ["--network", "host"] if _has_network(run) else ["--network", "none", "--hostname", "localhost"]
    for folder in run.writable:
        line += ["--volume", f"{folder}:{folder}"]
    for folder in run.read:
        line += ["--volume", f"{folder}:{folder}:ro"]
    line += ["--workdir", str(run.working_folder), *_format_variables(run, caller)]
    if run.entry_point is not None:
        line += ["--entrypoint", run.entry_point]
    return [*line, run.reference, *run.command]


def fit_image(image: Image, root: Path = Path("/")) -> Image:
    """Return an image's entry with the flags for accelerators in this machine, or for those over a network."""
    own = image.for_own_devices()
    return own if list_devices(own, root) else image


def list_configuration(image: Image, caller: Mapping[str, str]) -> list[Path]:
    """Return the machine's files and folders that tell an image's steps how to reach its accelerators."""
    found = [Path(name) for name in image.configuration if Path(name).exists()]
    for name in image.passed_files:
        path = Path(caller.get(name, ""))
        if name in caller and not (path.is_absolute() and path.is_file()):
            raise RelmError(f"{name}: expected the absolute path of a file, found {caller[name]!r}; correct or unset it")
        if name in caller and not any(path.is_relative_to(folder) for folder in found):
            found.append(path)
    return found


def list_devices(image: Image, root: Path = Path("/")) -> list[str]:
    """Return the sorted device files that match an image's patterns."""
    patterns = [pattern.removeprefix("/") for pattern in image.devices]
    return sorted({f"/{path.relative_to(root)}" for pattern in patterns for path in root.glob(pattern)})


def _has_network(run: ContainerRun) -> bool:
    return run.network or run.image.network == "host"


def _format_rights(engine: Engine, run: ContainerRun) -> list[str]:
    """Return the flags for the user, and for the rights that the image's device needs."""
    rights = ["--user", f"{run.user[0]}:{run.user[1]}"]
    if engine == "podman" and run.rootless:
        rights += ["--userns", "keep-id"]
    if run.image.privileged:
        return [*rights, "--privileged"]
    kept = [word for name in run.image.capabilities for word in ("--cap-add", name)]
    return [*rights, "--cap-drop", "ALL", *kept, "--security-opt", "no-new-privileges"]


def _format_device(engine: Engine, run: ContainerRun) -> list[str]:
    image = run.image
    flags = []
    if image.gpus:
        flags += ["--gpus", "all"] if engine == "docker" else ["--device", "nvidia.com/gpu=all"]
    for device in run.devices:
        flags += ["--device", device]
    for name, limit in image.ulimits.items():
        flags += ["--ulimit", f"{name}={limit}"]
    if image.shm_size:
        flags += ["--shm-size", image.shm_size]
    return [*flags, "--ipc", "host"] if image.ipc == "host" else flags


def _format_variables(run: ContainerRun, caller: Mapping[str, str]) -> list[str]:
    """Return the flags of the step's variables, including RELM_IMAGE for its record."""
    fixed = {"RELM_IMAGE": run.reference, **run.image.environment}
    if run.home is not None:
        fixed[HOME] = str(run.home)
    if run.search_path:
        fixed["PYTHONPATH"] = os.pathsep.join(map(str, run.search_path))
    names = [*ALWAYS_PASSED, *(PASSED_WITH_NETWORK if _has_network(run) else ()), *(PASSED_TO_LOGGERS if run.logs else ())]
    names += [*run.image.passed, *run.image.passed_files]
    passed = [name for name in dict.fromkeys(names) if name in caller and name not in fixed]
    words = [f"{name}={value}" for name, value in fixed.items()] + passed
    return [part for word in words for part in ("--env", word)]
