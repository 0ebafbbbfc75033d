"""The line that runs a step in its image: compared word by word, for an engine may pass over a flag without a word."""

from dataclasses import replace
from pathlib import Path

import pytest

from relm.containers.lock import Role, find_image
from relm.containers.run_line import ContainerRun, list_devices, run_line

ID = f"sha256:{'a' * 64}"


def run_in(role: Role, checkout: Path, **given: object) -> ContainerRun:
    """Return a step of an ordinary user's in a role's image."""
    return ContainerRun(
        image=find_image(role, checkout),
        reference=ID,
        command=["verify", "quickstart"],
        **{"writable": [Path("/project")], "working_folder": Path("/project"), "user": (1000, 100), "rootless": True, **given},  # type: ignore[arg-type]
    )


def test_a_step_gets_the_project_and_nothing_else(checkout: Path) -> None:
    assert run_line("docker", run_in("cpu", checkout), {"OMP_NUM_THREADS": "2", "SECRET": "x"}) == [
        *("docker", "run", "--rm", "--init", "--read-only", "--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777"),
        *("--user", "1000:100", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--network", "none", "--hostname", "localhost"),
        *("--volume", "/project:/project", "--workdir", "/project"),
        *("--env", f"RELM_IMAGE={ID}", "--env", "OMP_NUM_THREADS", ID, "verify", "quickstart"),
    ]


def test_podman_without_root_keeps_the_users_id(checkout: Path) -> None:
    def keeps_id(rootless: bool) -> bool:
        return "keep-id" in run_line("podman", run_in("cpu", checkout, rootless=rootless), {})

    assert keeps_id(True)
    assert not keeps_id(False)


def test_tokens_go_by_name_alone_and_only_where_the_network_is(checkout: Path) -> None:
    caller = {"HF_TOKEN": "hf_secret", "https_proxy": "http://user:secret@proxy"}
    without = run_line("docker", run_in("cpu", checkout), caller)
    with_network = run_line("docker", run_in("cpu", checkout, network=True), caller)
    assert "HF_TOKEN" not in without
    assert with_network[with_network.index("HF_TOKEN") - 1] == "--env"
    assert not [word for word in without + with_network if "secret" in word]
    assert with_network[with_network.index("--network") + 1] == "host"


@pytest.mark.parametrize(
    ("role", "engine", "flags"),
    [
        ("cuda", "docker", "--cap-drop ALL --security-opt no-new-privileges --gpus all --ipc host --network none"),
        ("cuda", "podman", "--device nvidia.com/gpu=all --ipc host --network none"),
        ("tpu", "docker", "--user 1000:100 --privileged --shm-size 16g --network host"),
        (
            "ipu",
            "docker",
            "--cap-add IPC_LOCK --security-opt no-new-privileges --ulimit memlock=-1:-1 --ipc host --network host",
        ),
    ],
)
def test_a_device_gets_its_flags_from_the_lock(role: Role, engine: str, flags: str, checkout: Path) -> None:
    line = run_line(engine, run_in(role, checkout), {})  # type: ignore[arg-type]
    assert flags in " ".join(line)
    if role == "tpu":
        assert "--cap-drop" not in line  # would take away what privileged gives
        assert "PJRT_DEVICE=TPU" in line


def test_an_ipus_devices_are_those_that_the_machine_has(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("ipu0", "ipu0_ex", "null"):
        (tmp_path / "dev" / name).touch()
    found = list_devices(find_image("ipu", checkout), tmp_path)
    assert found == ["/dev/ipu0", "/dev/ipu0_ex"]
    line = run_line("docker", replace(run_in("ipu", checkout), devices=found), {})
    assert " ".join(line).count("--device /dev/ipu0") == 2


def test_folders_of_ones_own_are_only_read(checkout: Path) -> None:
    line = run_line("docker", run_in("cpu", checkout, read=[Path("/texts")]), {})
    assert line[line.index("/texts:/texts:ro") - 1] == "--volume"
