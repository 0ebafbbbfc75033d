"""A step in its image as the `docker` package takes it: made of `run_line`'s words, so that a device's flags live once."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relm.containers.run_line import Engine, Run, run_line

_SWITCHES = ("--rm", "--init", "--read-only", "--privileged")
_ONCE = ("--user", "--userns", "--network", "--hostname", "--workdir", "--entrypoint", "--ipc", "--shm-size", "--gpus")
_SEVERAL = ("--tmpfs", "--volume", "--env", "--device", "--cap-add", "--cap-drop", "--security-opt", "--ulimit")


def container_options(engine: Engine, run: Run, caller: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `DockerClient.containers.create`.

    Args:
        caller: the caller's variables, of which those that the line names are taken over with their values.

    Raises:
        ValueError: the line has an option that is not known here; a fault of relm.
    """
    flags = run_line(engine, replace(run, command=()), caller)[2:-1]
    given, unknown = _parser().parse_known_args(flags)
    if unknown:
        raise ValueError(f"run_line has options that container_options does not know: {unknown}")
    devices = [_device(word) for word in given.device]
    return {
        "image": run.reference,
        "command": list(run.command),
        "entrypoint": given.entrypoint,
        "init": given.init,
        "read_only": given.read_only,
        "privileged": given.privileged,
        "user": given.user,
        "userns_mode": given.userns,
        "network_mode": given.network,
        "hostname": given.hostname,
        "working_dir": given.workdir,
        "ipc_mode": given.ipc,
        "shm_size": given.shm_size,
        "tmpfs": dict(word.split(":", 1) for word in given.tmpfs),
        "volumes": given.volume,
        "environment": dict(_variable(word, caller) for word in given.env),
        "devices": devices,
        "device_requests": [_all_gpus()] if given.gpus else None,
        "cap_add": given.cap_add,
        "cap_drop": given.cap_drop,
        "security_opt": given.security_opt,
        "ulimits": [_ulimit(word) for word in given.ulimit],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in _SWITCHES:
        parser.add_argument(name, action="store_true")
    for name in _ONCE:
        parser.add_argument(name)
    for name in _SEVERAL:
        parser.add_argument(name, action="append", default=[])
    return parser


def _variable(word: str, caller: Mapping[str, str]) -> tuple[str, str]:
    """NAME=VALUE, or a NAME that the caller has; the command line takes the value itself, the package does not."""
    name, given, value = word.partition("=")
    return name, value if given else caller[name]


def _device(word: str) -> str:
    """HOST:CONTAINER:RIGHTS; one that the engine itself knows by name, such as nvidia.com/gpu=all, as it is."""
    return f"{word}:{word}:rwm" if word.startswith("/") else word


def _all_gpus() -> Any:
    from docker.types import DeviceRequest

    return DeviceRequest(count=-1, capabilities=[["gpu"]])


def _ulimit(word: str) -> Any:
    from docker.types import Ulimit

    name, _, limits = word.partition("=")
    soft, _, hard = limits.partition(":")
    return Ulimit(name=name, soft=int(soft), hard=int(hard or soft))
