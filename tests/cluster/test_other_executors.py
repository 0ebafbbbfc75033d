"""The profiles for executors without a shared file system: every option and resource in them exists in the plugins."""

import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml

from small_project import CHECKOUT, FRAMES, Commands

pytestmark = pytest.mark.full
STORAGE = {"kubernetes": "s3", "googlebatch": "gcs", "aws-batch": "s3"}
GPUS = """
title: GPUs
device: cuda
accelerators: 8
host_memory_gib: 100
peak: {float32: 1.0, source: 'https://example.org'}
"""
# What the plugin reads of a phase's request on eight GPUs, and on a CPU.
ON_GPUS = {
    "kubernetes": {"mem_mb": "92160", "disk_mb": "2", "gpu": "8", "gpu_manufacturer": "nvidia", "scale": "0"},
    "googlebatch": {
        "googlebatch_memory": "87890", "googlebatch_cpu_milli": "16000", "googlebatch_max_run_duration": "3660s",
        "nvidia_gpu": "8",
    },
    "aws-batch": {"mem_mb": "98304", "_gpus": "8"},
}  # fmt: skip
ON_CPU = {
    "kubernetes": {"mem_mb": "16000", "disk_mb": "2", "scale": "0"},
    "googlebatch": {
        "googlebatch_memory": "15258", "googlebatch_cpu_milli": "16000", "googlebatch_max_run_duration": "86400s",
    },
    "aws-batch": {"mem_mb": "32768"},
}  # fmt: skip


@pytest.fixture(scope="module", params=STORAGE)
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An executor and the folder with its plugin, which fits the installed Snakemake."""
    name, folder = str(request.param), tmp_path_factory.mktemp("plugins")
    pins = folder / "pins.txt"
    installed = ((each.metadata["Name"], each.version) for each in distributions())
    pins.write_text("\n".join(f"{each}=={version}" for each, version in installed if each.startswith("snakemake")))
    storage = (f"snakemake-storage-plugin-{each}" for each in (STORAGE[name], "fs"))
    packages = [f"snakemake-executor-plugin-{name}", *storage]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--constraint", str(pins), *packages]
    done = subprocess.run(pip, text=True, capture_output=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return name, folder


def dry_run(project: Commands, executor: tuple[str, Path], target: str, profiles: Path) -> subprocess.CompletedProcess[str]:
    """Dry-run a target under a profile; a folder takes the place of the bucket, which nobody can ask here."""
    name, plugins = executor
    return subprocess.run(
        ["snakemake", "-n", target, "--workflow-profile", str(profiles / name), FRAMES, "--nocolor",
         "--default-storage-provider", "fs", "--default-storage-prefix", str(project.folder / "store")],
        cwd=project.folder, env={**project.environment, "PYTHONPATH": str(plugins)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
    )  # fmt: skip


def find_resources(shown: str, rule: str) -> dict[str, str]:
    """Return what a dry-run shows of the first job of a rule."""
    (line,) = re.findall(r"resources: (.*)", shown.split(f"rule {rule}:")[1].split("\n\n")[0])
    return dict(pair.split("=", 1) for pair in line.split(", "))


def test_every_option_exists_and_training_requests_what_the_machine_has(project: Commands, executor: tuple[str, Path]) -> None:
    name, machines = executor[0], project.folder / "recipes" / "machines"
    machines.mkdir()
    (machines / "gpus.yaml").write_text(GPUS)
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("global_batch_size: 4", "global_batch_size: 16"))
    for target, expected in (("results/tiny@gpus", ON_GPUS[name]), ("results/tiny", ON_CPU[name])):
        done = dry_run(project, executor, target, CHECKOUT / "profiles")
        assert done.returncode == 0, done.stdout
        found = find_resources(done.stdout, "pretrain")
        assert {key: found.get(key) for key in expected} == expected
        assert ("gpu" in found or "_gpus" in found or "nvidia_gpu" in found) == (target != "results/tiny")


def test_an_option_that_the_plugin_lacks_is_refused(project: Commands, executor: tuple[str, Path]) -> None:
    name = executor[0]
    profile = project.folder / "changed" / name / "config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text((CHECKOUT / "profiles" / name / "config.yaml").read_text() + f"{name}-no-such-option: 1\n")
    done = dry_run(project, executor, "results/tiny", profile.parents[1])
    assert done.returncode != 0
    assert f"--{name}-no-such-option" in done.stdout


def test_the_plugin_has_every_resource_that_the_profile_sets_for_it(executor: tuple[str, Path]) -> None:
    name, plugins = executor
    profile = yaml.safe_load((CHECKOUT / "profiles" / name / "config.yaml").read_text())
    set_here = {*profile["default-resources"], *(key for rule in profile["set-resources"].values() for key in rule)}
    folder = plugins / f"snakemake_executor_plugin_{name.replace('-', '_')}"
    source = "".join(path.read_text() for path in sorted(folder.glob("*.py")))
    own = {key.removeprefix(f"{name}_") for key in set_here - {"runtime", "mem_mb" if name == "googlebatch" else ""}}
    assert {key for key in own if f'"{key}"' not in source} == set()
