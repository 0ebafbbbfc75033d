"""The line that runs a step in its image: compared word by word, for an engine may pass over a flag without a word."""

from dataclasses import replace
from pathlib import Path

import pytest

from relm.containers.lock import Role, find_image
from relm.containers.run_line import ContainerRun, fit_image, list_configuration, list_devices, run_line
from relm.errors import RelmError

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


def test_tokens_go_only_by_name_and_only_where_the_network_is(checkout: Path) -> None:
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


POD = {"IPUOF_VIPU_API_HOST": "10.1.5.10", "IPUOF_VIPU_API_PARTITION_ID": "mine", "HF_TOKEN": "hf_secret"}


def test_a_step_on_a_pod_reaches_its_ipus_over_the_network(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "dev" / "infiniband").mkdir(parents=True)
    image = fit_image(find_image("ipu", checkout), tmp_path)
    run = replace(run_in("ipu", checkout, devices=list_devices(image, tmp_path)), image=image)
    assert run_line("docker", run, POD | {"SECRET": "x"}) == [
        *("docker", "run", "--rm", "--init", "--read-only", "--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777"),
        *("--user", "1000:100", "--cap-drop", "ALL", "--cap-add", "IPC_LOCK", "--security-opt", "no-new-privileges"),
        *("--device", "/dev/infiniband", "--ulimit", "memlock=-1:-1", "--ipc", "host", "--network", "host"),
        *("--volume", "/project:/project", "--workdir", "/project", "--env", f"RELM_IMAGE={ID}", "--env", "HF_TOKEN"),
        *("--env", "IPUOF_VIPU_API_HOST", "--env", "IPUOF_VIPU_API_PARTITION_ID", ID, "verify", "quickstart"),
    ]


def test_a_step_next_to_a_pcie_card_gets_its_devices_and_no_network(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("ipu0", "ipu0_ex", "ipu0_mailbox", "ipu0_mem", "null", "infiniband"):
        (tmp_path / "dev" / name).touch()
    image = fit_image(find_image("ipu", checkout), tmp_path)
    run = replace(run_in("ipu", checkout, devices=list_devices(image, tmp_path)), image=image)
    assert run_line("docker", run, {}) == [
        *("docker", "run", "--rm", "--init", "--read-only", "--tmpfs", "/tmp:rw,exec,nosuid,nodev,mode=1777"),
        *("--user", "1000:100", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--device", "/dev/ipu0", "--device", "/dev/ipu0_ex", "--device", "/dev/ipu0_mailbox", "--device", "/dev/ipu0_mem"),
        *("--network", "none", "--hostname", "localhost", "--volume", "/project:/project", "--workdir", "/project"),
        *("--env", f"RELM_IMAGE={ID}", ID, "verify", "quickstart"),
    ]


@pytest.mark.parametrize("role", ["cpu", "cuda", "tpu"])
def test_other_images_are_the_same_on_every_machine(role: Role, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "ipu0").touch()
    assert fit_image(find_image(role, checkout), tmp_path) == find_image(role, checkout)


def test_a_partition_that_a_file_describes_is_mounted_to_be_read(checkout: Path, tmp_path: Path) -> None:
    described, folder = tmp_path / "partition.conf", tmp_path / "ipuof.conf.d"
    described.touch()
    folder.mkdir()
    image = find_image("ipu", checkout).model_copy(update={"configuration": [str(folder), str(tmp_path / "absent")]})
    assert list_configuration(image, {}) == [folder]
    caller = {"IPUOF_CONFIG_PATH": str(described)}
    assert list_configuration(image, caller) == [folder, described]
    (folder / "one.conf").touch()
    assert list_configuration(image, {"IPUOF_CONFIG_PATH": str(folder / "one.conf")}) == [folder]
    line = run_line("docker", run_in("ipu", checkout, read=list_configuration(image, caller)), caller)
    assert line[line.index(f"{described}:{described}:ro") - 1] == "--volume"
    assert line[line.index("IPUOF_CONFIG_PATH") - 1] == "--env"


@pytest.mark.parametrize("named", ["/etc/no-such-partition.conf", "partition.conf", "", "/"])
def test_a_partitions_file_that_is_not_there_is_refused_by_its_variable(named: str, checkout: Path) -> None:
    with pytest.raises(
        RelmError, match=r"IPUOF_CONFIG_PATH: expected the absolute path of a file, found '.*'; correct or unset"
    ):
        list_configuration(find_image("ipu", checkout), {"IPUOF_CONFIG_PATH": named})
