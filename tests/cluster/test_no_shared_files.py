"""A run whose jobs share no file system: each starts in a fresh folder, and Snakemake carries files through a bucket."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from small_project import CHECKOUT, FRAMES, Commands, kill_session

pytestmark = pytest.mark.full
PACKAGES = ["snakemake-executor-plugin-cluster-generic==1.0.9", "snakemake-storage-plugin-s3==0.3.6", "moto[server]==5.2.5"]
KEYS = {"SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "test", "SNAKEMAKE_STORAGE_S3_SECRET_KEY": "test"}
SERVER_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# A job knows the address of the bucket, the source of the data, and no folder of the machine that submits it.
SUBMIT = """#!/bin/bash
job=$(mktemp -d {jobs}/XXXXXX)
for each in Snakefile src profiles containers recipes; do cp -rL {project}/$each $job/; done
cp "$1" $job/job.sh
(cd $job && env -i HOME=$job PATH="$PATH" PYTHONPATH="$PYTHONPATH" {variables} setsid bash job.sh > out 2>&1; echo $? > rc) \
  > /dev/null 2>&1 &
echo ${{job##*/}}
"""
STATUS = """#!/bin/bash
rc={jobs}/$1/rc
if [ ! -e $rc ]; then echo running; elif [ "$(cat $rc)" = 0 ]; then echo success; else echo failed; fi
"""


class Cloud:
    """A bucket, and machines that have nothing but the sources of relm and what Snakemake carries to them."""

    def __init__(self, project: Commands, plugins: Path, address: str) -> None:
        self.project, self.address, self.plugins = project, address, plugins
        self.jobs = project.folder / "machines"
        self.jobs.mkdir()
        self.write_scripts()

    def write_scripts(self, **environment: str) -> None:
        """Write the scripts that submit a job and ask for its state; the jobs have these environment variables as well."""
        variables = " ".join(f"{name}={value}" for name, value in {**KEYS, "OMP_NUM_THREADS": "1", **environment}.items())
        names = {"jobs": self.jobs, "project": self.project.folder, "variables": variables}
        for name, content in (("submit", SUBMIT), ("status", STATUS)):
            (self.project.folder / name).write_text(content.format(**names))
            (self.project.folder / name).chmod(0o755)

    def command(self, *words: str) -> list[str]:
        """Return a Snakemake command whose jobs run elsewhere."""
        scripts = [str(self.project.folder / name) for name in ("submit", "status")]
        executor = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", scripts[0]]
        storage = ["--default-storage-provider", "s3", "--default-storage-prefix", "s3://relm/runs"]
        return [
            *("snakemake", *words, *executor, "--cluster-generic-status-cmd", scripts[1], "--shared-fs-usage", "none"),
            *(*storage, "--storage-s3-endpoint-url", self.address, "--jobs", "1", "--seconds-between-status-checks", "1"),
            *(FRAMES, "--nocolor"),
        ]

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start a command in a new session."""
        environment = {**self.project.environment, **KEYS, "PYTHONPATH": str(self.plugins)}
        del environment["RELM_MIRROR"]
        with open(self.project.folder / "out", "ab") as out:
            return subprocess.Popen(
                self.command(*words), cwd=self.project.folder, env=environment, stdout=out, stderr=out, start_new_session=True
            )

    def run(self, *words: str) -> str:
        """Run a command to its end, which must be a good one, and return what it and its jobs printed."""
        status = self.start(*words).wait(timeout=900)
        out = (self.project.folder / "out").read_text()
        jobs = "\n".join(path.read_text() for path in self.jobs.glob("*/out"))
        assert status == 0, f"{out[-4000:]}\n{jobs[-4000:]}"
        return out

    def content(self) -> dict[str, bytes]:
        """Return name -> content of all objects."""
        code = (
            "import boto3, sys, pathlib\n"
            "bucket = boto3.resource('s3', endpoint_url=sys.argv[1], region_name='us-east-1').Bucket('relm')\n"
            "for each in bucket.objects.filter(Prefix='runs/'):\n"
            "    path = pathlib.Path(sys.argv[2], each.key)\n"
            "    path.parent.mkdir(parents=True, exist_ok=True)\n"
            "    bucket.download_file(each.key, str(path))\n"
        )
        folder = self.project.folder / "fetched"
        run_python(self.plugins, code, self.address, str(folder))
        return {str(path.relative_to(folder / "runs")): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_python(plugins: Path, code: str, *words: str) -> None:
    """Run Python with the packages of the plugins."""
    environment = {**os.environ, **SERVER_KEYS, "PYTHONPATH": str(plugins)}
    subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True, timeout=120)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so, for two minutes at most."""
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"two minutes without {what}")


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugins and with moto, a server of S3's interface, which fit the installed Snakemake."""
    folder = tmp_path_factory.mktemp("plugins")
    pins = folder / "pins.txt"
    installed = ((each.metadata["Name"], each.version) for each in distributions())
    pins.write_text("\n".join(f"{name}=={version}" for name, version in installed if name.startswith("snakemake")))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--constraint", str(pins), *PACKAGES]
    done = subprocess.run(pip, text=True, capture_output=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{', '.join(PACKAGES)} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return folder


@pytest.fixture
def cloud(project: Commands, plugins: Path) -> Iterator[Cloud]:
    """A bucket that is empty, and a source of the data that every machine can ask."""
    started = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("small_s3.py")), str(project.folder / "mirror")],
        env={**os.environ, **SERVER_KEYS, "PYTHONPATH": str(plugins)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        ready = next(line for line in started.stdout if line.startswith("ready: "))
        address, files = ready.removeprefix("ready: ").split()
        dataset = project.folder / "recipes/data/sample.yaml"
        dataset.write_text(dataset.read_text().replace("http://127.0.0.1:9", files))
        yield Cloud(project, plugins, address)
    finally:
        started.kill()
        started.wait()


def test_a_run_without_a_shared_file_system_has_the_bytes_of_a_local_one(cloud: Cloud, project: Commands) -> None:
    cloud.run("results/tiny")
    assert "Nothing to be done" in cloud.run("results/tiny")
    there = cloud.content()
    done = project.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    here = {
        str(path.relative_to(project.folder)): path.read_bytes()
        for top in ("work", "results")
        for path in (project.folder / top).rglob("*")
        if path.is_file()
    }
    assert {name for name in here if name.startswith("results/")} == {name for name in there if name.startswith("results/")}
    # What has times, or quotes files that have: logs, records, and what the report makes of them.
    timed = (".log", ".record.json", "train.jsonl", "provenance.json", "ro-crate-metadata.json", "report.html", "SHA256SUMS")
    compared = [name for name in here if name in there and not name.endswith(timed)]
    assert len(compared) > 25
    assert [name for name in compared if here[name] != there[name]] == []
    assert not (CHECKOUT / ".snakemake/storage").exists()


def test_a_job_that_dies_is_continued_elsewhere_from_its_checkpoint(
    cloud: Cloud, project: Commands, finished_project: Commands, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmp_path_factory.mktemp("store")
    command = ("results/tiny", "--config", f"set=run.checkpoints_to=file://{store}")
    cloud.write_scripts(RELM_KILL_AT="checkpoints-pushed:1")
    assert cloud.start(*command).wait(timeout=900) == 1
    assert not any(name.endswith("model.safetensors") for name in cloud.content())
    cloud.write_scripts()
    cloud.run(*command)
    assert any("fetched" in path.read_text() for path in cloud.jobs.glob("*/out"))
    expected = (finished_project.folder / "results/tiny/model.safetensors").read_bytes()
    assert cloud.content()["results/tiny/model.safetensors"] == expected


def test_a_killed_command_is_continued_by_the_same_one(cloud: Cloud) -> None:
    first = cloud.start("results/tiny")
    wait_for(lambda: len(list(cloud.jobs.glob("*/rc"))) >= 3, "three finished jobs")
    kill_session(first)
    running = [job for job in cloud.jobs.iterdir() if not (job / "rc").exists()]
    wait_for(lambda: all((job / "rc").exists() for job in running), "an end of the jobs that went on alone")
    assert cloud.start("results/tiny", "--unlock").wait(timeout=120) == 0
    cloud.run("results/tiny")
    assert "results/tiny/report.html" in cloud.content()
