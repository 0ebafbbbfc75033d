"""Training requests accelerators, hosts, cores, memory and time from Slurm as its machine states them."""

import re
import shlex
from pathlib import Path

import pytest

from small_project import FRAMES, Commands, add_machines, make_project

PEAK = "peak: {float32: 1.0, source: 'https://example.org'}\n"
MACHINES = {
    "cpu": "title: A CPU\ndevice: cpu\n",
    "gpu": "title: A GPU\ndevice: cuda\n" + PEAK.replace("1.0", "1e-9"),
    "gpu-8": "title: GPUs\ndevice: cuda\naccelerators: 8\nhost_memory_gib: 1000\n" + PEAK,
    "gpu-16": "title: GPUs of two hosts\ndevice: cuda\naccelerators: 16\nhosts: 2\n",
    "gpu-2": "title: Two hosts of one GPU\ndevice: cuda\naccelerators: 2\nhosts: 2\n",
    "cpu-2": "title: Two hosts\ndevice: cpu\nhosts: 2\n",
    "slice": "title: A slice of TPUs\ndevice: tpu\ntopology: v3-8\nhost_memory_gib: 300\n",
}
# Machine -> what a phase requests.
REQUESTS = {
    "cpu": {"nodes": "1", "cpus_per_task": "1", "mem_mb": "16000", "disk_mb": "2", "runtime": "1440"},
    "gpu": {"gres": "gpu:1", "nodes": "1", "cpus_per_task": "8", "mem_mb": "32000", "disk_mb": "2", "runtime": "10080"},
    "gpu-8": {"gres": "gpu:8", "nodes": "1", "cpus_per_task": "64", "mem_mb": "921600", "disk_mb": "2", "runtime": "61"},
    "gpu-16": {
        "gres": "gpu:8", "nodes": "2", "mpi": "srun", "tasks_per_node": "8",
        "cpus_per_task": "8", "mem_mb": "256000", "disk_mb": "2", "runtime": "1440",
    },
    "gpu-2": {
        "gres": "gpu:1", "nodes": "2", "mpi": "srun", "tasks": "2", "tasks_per_gpu": "0",
        "cpus_per_task": "8", "mem_mb": "32000", "disk_mb": "2", "runtime": "1440",
    },
    "cpu-2": {
        "nodes": "2", "mpi": "srun", "tasks": "2", "tasks_per_gpu": "0",
        "cpus_per_task": "8", "mem_mb": "16000", "disk_mb": "2", "runtime": "1440",
    },
    "slice": {"nodes": "1", "cpus_per_task": "64", "mem_mb": "276480", "disk_mb": "2", "runtime": "1440"},
}  # fmt: skip
# Machine of several hosts -> the words of sbatch and of srun that decide where its processes are.
SUBMITTED = {
    "gpu-16": (
        {"--nodes=2", "--ntasks-per-node=8", "--gres=gpu:8", "--cpus-per-task=8"},
        "srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpu-bind=none --kill-on-bad-exit=1 python -m relm pretrain ",
    ),
    "gpu-2": (
        {"--nodes=2", "--ntasks=2", "--gres=gpu:1", "--cpus-per-task=8"},
        "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 python -m relm pretrain ",
    ),
}
SHOWN = ("gres", "nodes", "mpi", "tasks", "tasks_per_node", "tasks_per_gpu", "cpus_per_task", "mem_mb", "disk_mb", "runtime")
# Rule -> what its first job requests on a CPU; the sample has 6 MB.
OTHERS = {
    "download_data": {"mem_mb": "2000", "disk_mb": "6", "runtime": "1440"},
    "extract": {"mem_mb": "16000", "disk_mb": "1000", "runtime": "1440"},
    "train_tokenizer": {"mem_mb": "16000", "disk_mb": "1000", "runtime": "1440"},
    "pregenerate": {"mem_mb": "16000", "disk_mb": "1000", "runtime": "1440"},
    "evaluate": {"cpus_per_task": "8", "mem_mb": "16000", "runtime": "1440"},
}
SBATCH = '#!/bin/sh\nprintf "%s\\n" "$RELM_VARIED $*" | head -n 1 >> {calls}\necho "no cluster here" >&2\nexit 1\n'
ANSWER = "#!/bin/sh\nexit 0\n"
# Snakemake waits for the plugin, whose first wait is 40 s by default, although no job is ever submitted here.
SHORT_WAIT = ["--slurm-init-seconds-before-status-checks", "1"]


@pytest.fixture
def project(tmp_path: Path) -> Commands:
    return add_machines(make_project(tmp_path), MACHINES, 16)


def requests(shown: str, rule: str) -> dict[str, str]:
    """Return the resources that a dry-run shows for the first job of a rule, without those that are not for Slurm."""
    block = shown.split(f"rule {rule}:")[1].split("\n\n")[0]
    (line,) = re.findall(r"resources: (.*)", block)
    found = dict(pair.split("=", 1) for pair in line.split(", "))
    return {name: value for name, value in found.items() if name in SHOWN}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_decides_the_request(project: Commands, machine: str) -> None:
    done = project.snakemake(f"results/tiny@{machine}", "-n", FRAMES)
    assert done.returncode == 0, done.stdout
    assert requests(done.stdout, "pretrain") == REQUESTS[machine]
    assert f"accelerator={0 if machine == 'cpu' else 1}, " in done.stdout.split("rule pretrain:")[1]
    if machine == "cpu":
        assert {rule: requests(done.stdout, rule) for rule in OTHERS} == OTHERS
    on_gpu = machine.startswith("gpu")
    assert requests(done.stdout, "evaluate").get("gres") == ("gpu:1" if on_gpu else None)


def submit(project: Commands, *words: str) -> list[str]:
    """Give a command whose every submission fails, and return the lines with which sbatch was called."""
    commands, calls = project.folder / "commands", project.folder / "calls"
    commands.mkdir()
    for name in ("sbatch", "sacct", "squeue", "sinfo", "scontrol", "sacctmgr", "scancel"):
        (commands / name).write_text(SBATCH.format(calls=calls) if name == "sbatch" else ANSWER)
        (commands / name).chmod(0o755)
    path = f"{commands}:{project.environment['PATH']}"
    profile = ["--workflow-profile", "profiles/slurm", "--restart-times", "0", *SHORT_WAIT]
    done = project.snakemake(*words, *profile, PATH=path)
    assert "no cluster here" in done.stdout, done.stdout
    return calls.read_text().splitlines()


@pytest.mark.parametrize("machine", SUBMITTED)
def test_the_plugin_requests_the_tasks_of_several_hosts(finished_copy: Commands, machine: str) -> None:
    project, (expected, command) = add_machines(finished_copy, MACHINES, 16), SUBMITTED[machine]
    (line,) = submit(project, f"results/tiny@{machine}")
    words = shlex.split(line.split("--wrap")[0])
    assert expected <= set(words)
    assert {word for word in words if "ntasks" in word} <= expected, "no --ntasks-per-gpu, by which Slurm would count GPUs"
    assert command in project.snakemake(f"results/tiny@{machine}", "-n", "--printshellcmds").stdout


def test_the_plugin_passes_the_request_to_sbatch(finished_copy: Commands) -> None:
    project = add_machines(finished_copy, MACHINES, 16)
    lines = submit(project, "results/tiny@gpu-8", "results/tiny+seed=2", "--config", "set=run.log_interval=4")
    assert all(line.startswith("tiny+seed=2 ") and "--config 'set=run.log_interval=4' " in line for line in lines)
    words = {call[-1]: call for call in map(shlex.split, (line.split("--wrap")[0] for line in lines))}
    of_gpus = next(call for call in words.values() if any("tiny@gpu-8" in word or "gpu-8" in word for word in call))
    of_cpu = next(call for call in words.values() if call is not of_gpus)
    assert "--gres=gpu:8" in of_gpus
    assert of_gpus[of_gpus.index("--mem") + 1] == "921600"
    assert of_gpus[of_gpus.index("-t") + 1] == "61"
    assert {"--nodes=1", "--cpus-per-task=64", "--requeue", "--signal=TERM@600"} <= set(of_gpus)
    assert not [word for word in of_cpu if "gres" in word or "gpu" in word]
    assert {"--nodes=1", "--cpus-per-task=1"} <= set(of_cpu)


def test_a_name_with_a_comma_is_refused_for_a_cluster(project: Commands) -> None:
    name = "results/tiny+pretrain.main.optimizer.betas=[0.8,0.9]"
    done = project.snakemake(name, "-n", "--workflow-profile", "profiles/slurm")
    assert f"{name}: Snakemake cannot pass a comma to a job on a cluster" in done.stdout
    assert "comma" not in project.snakemake(name, "-n").stdout
