"""The cpu image, built for real, and the quickstart's smoke twin in it, step by step by Snakemake over a real engine."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from image_project import ImageProject

from relm.artifact import sha256_of
from relm.containers.lock import find_image
from relm.containers.run_line import ContainerRun, run_line
from relm.recipes.project import Project

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1500)]
LARGEST = 1_500_000_000
SUM = """
import sys
import torch
from torch import distributed
distributed.init_process_group("gloo")
ones = torch.ones(1)
distributed.all_reduce(ones)
sys.stdout.write(f"{ones.item()}\\n")  # at once: print writes the end of its line by itself
distributed.destroy_process_group()  # else a thread of Gloo's may outlive it and abort the process
"""


@pytest.fixture(scope="session", params=["podman", pytest.param("docker", marks=pytest.mark.full)])
def project(request: pytest.FixtureRequest) -> ImageProject:
    """The finished project in one of the engines."""
    made: ImageProject = request.getfixturevalue(f"in_{request.param}")
    return made


def in_image(project: ImageProject, *command: str, user: tuple[int, int] = (1234, 1234), **given: object) -> list[str]:
    """Return the line that runs a command in the cpu image as an ordinary user."""
    run = ContainerRun(
        image=find_image("cpu", project.folder),
        reference=project.built("cpu").id,
        command=list(command),
        user=user,
        **{"writable": [project.folder], "working_folder": project.folder, **given},  # type: ignore[arg-type]
    )
    return run_line(project.engine.name, run, project.environment)  # type: ignore[arg-type]


def published_steps(project: ImageProject) -> list[dict[str, Any]]:
    """Return the records of all steps that led to the published smoke twin."""
    record = json.loads((project.folder / "results/smoke/quickstart/provenance.json").read_text())
    steps: list[dict[str, Any]] = record["steps"]
    return steps


def test_a_published_docker_line_gives_the_same_bytes_as_the_step_without_a_container(
    project: ImageProject, tmp_path: Path
) -> None:
    plan = Project(project.folder).plan("smoke/quickstart")
    (phase,) = plan.phases
    (line,) = [step["docker"]["line"] for step in published_steps(project) if step["step"] == "pretrain"]
    model = project.folder / "work" / plan.model_folder(phase).relative_to("work") / "model.safetensors"
    first = sha256_of(project.folder / "results/smoke/quickstart/model.safetensors")

    outside = tmp_path / "run" / "model" / "model.safetensors"
    words = [
        "pretrain",
        plan.name,
        "--phase",
        phase,
        "--manifest",
        str(plan.manifest(phase)),
        "--tokenizer",
        str(plan.tokenizer),
    ]
    done = project.command(sys.executable, "-m", "relm", *words, "--output", str(outside))
    assert done.returncode == 0, done.stdout

    shutil.rmtree(model.parent.parent)
    (tmp_path / "docker").symlink_to(shutil.which(project.engine.name, path=project.environment["PATH"]) or "")
    done = project.command("env", f"PATH={tmp_path}:{project.environment['PATH']}", "bash", "-c", line)
    assert done.returncode == 0, f"{line}\n{done.stdout}"
    assert sha256_of(model) == sha256_of(outside) == first


def test_the_entry_point_is_relm(project: ImageProject) -> None:
    done = project.command(*in_image(project, "pretrain", "--help", writable=[], working_folder=Path("/")))
    assert done.returncode == 0, done.stdout
    assert "train one phase of a recipe" in done.stdout.lower()


def test_several_processes_find_each_other_without_a_network(project: ImageProject) -> None:
    """`run.processes` starts torchrun and Gloo, over the container's own loopback."""
    (project.folder / "work" / "sum.py").write_text(SUM)
    words = ["--standalone", "--nproc-per-node", "2", "work/sum.py"]
    done = project.command(*in_image(project, *words, entry_point="torchrun"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines().count("2.0") == 2


def test_a_tilde_in_a_dataset_is_the_callers_home_folder(project: ImageProject, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("a text")
    tmp_path.chmod(0o755)
    ask = "from relm.recipes.files.own_folders import resolve_own_folder as own; print(*own('~/texts', 'folder').iterdir())"
    done = project.command(*in_image(project, "-c", ask, entry_point="python", read=[texts], home=tmp_path))
    assert done.stdout.strip().splitlines()[-1] == str(texts / "a.txt")


def test_the_root_is_read_only_and_the_caches_are_not(project: ImageProject) -> None:
    done = project.command(*in_image(project, "-c", "echo x > /opt/x", entry_point="bash", user=(0, 0)))
    assert done.returncode != 0
    assert "Read-only file system" in done.stdout
    caches = "set -e; for cache in $XDG_CACHE_HOME $HF_HOME $MPLCONFIGDIR $TORCHINDUCTOR_CACHE_DIR $TRITON_CACHE_DIR $HOME"
    done = project.command(
        *in_image(project, "-c", f"{caches}; do mkdir -p $cache; echo x > $cache/x; done", entry_point="bash")
    )
    assert done.returncode == 0, done.stdout


def test_nothing_of_the_machine_is_mounted_but_the_project(project: ImageProject) -> None:
    done = project.command(*in_image(project, "-c", "ls -A /root /home /var/tmp; cat /proc/1/status", entry_point="bash"))
    assert "CapEff:\t0000000000000000" in done.stdout
    mounts = project.command(*in_image(project, "/proc/mounts", entry_point="cat")).stdout.splitlines()
    disks = {line.split()[1] for line in mounts if line.startswith("/dev/")}
    assert {path for path in disks if not path.startswith("/etc/") and path != "/run/.containerenv"} <= {
        str(project.folder),
        *("/sbin/docker-init", "/usr/sbin/docker-init", "/dev/init", "/run/podman-init"),
    }


def test_the_packages_are_the_locks_and_fit_together(project: ImageProject) -> None:
    listed = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    done = project.command(*in_image(project, "-c", listed, entry_point="python"))
    inside = {line.lower().replace("_", "-") for line in done.stdout.split() if "==" in line}
    locked = {
        line.split(" ")[0].lower()
        for name in ("cpu.txt", "torch-cpu.txt")
        for line in (project.folder / "envs" / name).read_text().splitlines()
        if "==" in line
    }
    assert {line for line in inside if not line.startswith("relm==")} <= locked
    assert any(line.startswith("torch==") for line in inside)
    assert not any(line.startswith(("pytest", "ruff", "mypy", "snakemake==")) for line in inside)


def test_the_image_is_small_and_says_what_it_was_made_of(project: ImageProject) -> None:
    image = json.loads(project.engine.run("image", "inspect", project.built("cpu").id).stdout)[0]
    print(f"{project.engine.name}: the cpu image has {image['Size'] / 1e9:.2f} GB")
    assert image["Size"] < LARGEST
    labels = image["Config"]["Labels"]
    assert len(labels["relm.lock"]) == 64
    assert labels["org.opencontainers.image.revision"]
    assert image["Config"]["User"] == "1000:1000"


def test_term_to_snakemake_reaches_the_trainer_in_its_container(project: ImageProject) -> None:
    """The engine's client hands TERM on, and the shell in the container has given its place to the step."""
    lines = [
        "import signal, sys, time",
        "signal.signal(signal.SIGTERM, lambda *a: (print('saved'), sys.exit(75)))",
        "print('on', flush=True)",
        "time.sleep(60)",
    ]
    command = f"set -euo pipefail;  exec python -u -c {shlex.quote('; '.join(lines))}"
    process = subprocess.Popen(
        in_image(project, "-c", command, entry_point="bash"), env=project.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    time.sleep(1)  # podman passes signals on from some milliseconds after the start; before, they end podman alone
    process.terminate()
    assert process.stdout.read() == "saved\n"
    assert process.wait(30) == 75


def test_an_image_that_was_removed_is_an_error_with_the_command_that_builds_it(project: ImageProject, tmp_path: Path) -> None:
    override = project.folder / "containers" / "lock.local.yaml"
    kept = override.read_text()
    override.write_text(kept.replace(project.built("cpu").id, f"sha256:{'0' * 64}"))
    try:
        done = project.snakemake("results/quickstart", "--sdm", "apptainer", "--apptainer-prefix", str(tmp_path))
    finally:
        override.write_text(kept)
    assert done.returncode != 0
    assert "has no image sha256:000000000000" in done.stdout
    assert "Build it again: make images" in done.stdout


def test_a_step_that_fails_in_its_container_fails_the_workflow_in_its_own_words(project: ImageProject) -> None:
    dump = project.folder / "mirror" / "enwik8"
    dump.write_bytes(b"not the dump")
    done = project.snakemake("work/downloads/data/enwik8/2b49720ec4d7/enwik8", "--sdm", "apptainer")
    assert done.returncode != 0
    assert "relm download" in done.stdout
    assert "--network host" in done.stdout
