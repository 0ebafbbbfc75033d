"""What the docker package is given is what the line of `docker run` says, flag by flag, for every image of the lock."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import _create_container_args

from relm.containers.container_options import container_options
from relm.containers.lock import Image, read_lock
from relm.containers.run_line import Engine, Run, run_line

ALL = Image(
    image="relm/all",
    tag="1",
    bases={"BASE": "python"},
    gpus=True,
    devices=["/dev/x*"],
    capabilities=["IPC_LOCK"],
    ulimits={"memlock": "-1:-1", "nofile": "10:20"},
    shm_size="16g",
    ipc="host",
    environment={"A": "b=c"},
    passed=["TOLD", "UNSET"],
)


def run(image: Image, **changes: Any) -> Run:
    given: dict[str, Any] = {
        "reference": "sha256:x",
        "command": ["pretrain", "--", "--network=host"],
        "writable": [Path("/checkout"), Path("/work")],
        "read": [Path("/texts")],
        "working_folder": Path("/checkout"),
        "user": (7, 8),
    }
    return Run(image, **{**given, **changes})


def test_every_flag_reaches_the_engine() -> None:
    """Everything that an image of the lock may ask for, against the body that the package sends."""
    options = container_options("docker", run(ALL, devices=["/dev/x0"]), {"TOLD": "a value"})
    body = _create_container_args({**options, "version": "1.41"})
    host = body["host_config"]
    assert (body["image"], body["command"], body["user"]) == ("sha256:x", ["pretrain", "--", "--network=host"], "7:8")
    assert body["working_dir"] == "/checkout"
    assert body["environment"] == {"RELM_IMAGE": "sha256:x", "A": "b=c", "TOLD": "a value"}
    assert host["Binds"] == ["/checkout:/checkout", "/work:/work", "/texts:/texts:ro"]
    assert (host["ReadonlyRootfs"], host["Init"], host["NetworkMode"], host["IpcMode"]) == (True, True, "none", "host")
    assert (host["CapDrop"], host["CapAdd"], host["SecurityOpt"]) == (["ALL"], ["IPC_LOCK"], ["no-new-privileges"])
    assert host["ShmSize"] == 16 << 30
    assert host["Devices"] == [{"PathOnHost": "/dev/x0", "PathInContainer": "/dev/x0", "CgroupPermissions": "rwm"}]
    assert (host["DeviceRequests"][0]["Count"], host["DeviceRequests"][0]["Capabilities"]) == (-1, [["gpu"]])
    assert [dict(limit) for limit in host["Ulimits"]] == [
        {"Name": "memlock", "Soft": -1, "Hard": -1},
        {"Name": "nofile", "Soft": 10, "Hard": 20},
    ]
    assert list(host["Tmpfs"]) == ["/tmp"]
    assert not host.get("Privileged")


def test_a_privileged_image_is_privileged_and_keeps_its_rights() -> None:
    image = ALL.model_copy(update={"privileged": True, "network": "host"})
    host = _create_container_args({**container_options("docker", run(image), {}), "version": "1.41"})["host_config"]
    assert (host["Privileged"], host["NetworkMode"]) == (True, "host")
    assert not host.get("CapDrop")
    assert not host["SecurityOpt"]


def test_a_gpu_is_asked_of_podman_by_its_name() -> None:
    options = container_options("podman", run(ALL), {})
    assert options["devices"] == ["nvidia.com/gpu=all"]
    assert options["device_requests"] is None


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_no_word_of_any_shipped_images_line_is_lost(engine: Engine, checkout: Path) -> None:
    for image in read_lock(checkout).images.values():
        given = run(image, devices=image.devices, command=[], entry_point="torchrun")
        told = str(container_options(engine, given, {"HF_TOKEN": "x"}))
        words = run_line(engine, given, {"HF_TOKEN": "x"})
        values = [word for option, word in pairwise(words) if option.startswith("--") and word[:2] != "--"]
        assert [word for word in values if word.split("=")[-1].split(":")[-1] not in told and word != "all"] == []


def test_an_option_that_is_not_known_here_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["docker", "run", "--rm", "--new-option", "sha256:x"]
    monkeypatch.setattr("relm.containers.container_options.run_line", lambda *_: line)
    with pytest.raises(ValueError, match="--new-option"):
        container_options("docker", run(ALL), {})
