"""The jobs that the plugins submit under our profiles, against the schemas of Kubernetes and AWS Batch.

A local server takes each job and reports it as done; nothing runs. Files with the names of the outputs stand in the bucket.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from small_api_server import SmallApi

from small_project import CHECKOUT, FRAMES, Commands

pytestmark = pytest.mark.full
PACKAGES = {"kubernetes": ["kubernetes-validate==1.37.0"], "aws-batch": []}
RULES = {"download_data", "extract", "pregenerate", "pretrain", "evaluate"}
GPUS = """
title: GPUs
device: cuda
accelerators: 4
host_memory_gib: 100
peak: {float32: 1.0, source: 'https://example.org'}
"""
# It takes the place of rsync, which the storage plugin for folders starts.
RSYNC = '#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\nmkdir -p "$(dirname "$2")"; cp -rL "$1" "$2"\n'
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: me}}}}]
clusters: [{{name: here, cluster: {{server: "{address}"}}}}]
users: [{{name: me, user: {{token: none}}}}]
"""
CHECK_AWS = """
import json, sys, botocore.session, botocore.validate
shape = botocore.session.get_session().get_service_model("batch").operation_model("RegisterJobDefinition").input_shape
for job in map(json.loads, open(sys.argv[1])):
    report = botocore.validate.ParamValidator().validate(job, shape)
    if report.has_errors():
        sys.exit(report.generate_report())
"""


@pytest.fixture(scope="module", params=PACKAGES)
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An executor and the folder with its plugin, which fits the installed Snakemake, and with a validator."""
    name, folder = str(request.param), tmp_path_factory.mktemp("plugins")
    pins = folder / "pins.txt"
    installed = ((each.metadata["Name"], each.version) for each in distributions())
    pins.write_text("\n".join(f"{each}=={version}" for each, version in installed if each.startswith("snakemake")))
    packages = [f"snakemake-executor-plugin-{name}", "snakemake-storage-plugin-s3", "snakemake-storage-plugin-fs"]
    packages += PACKAGES[name]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--constraint", str(pins), *packages]
    done = subprocess.run(pip, text=True, capture_output=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return name, folder


@pytest.fixture
def submitted(project: Commands, executor: tuple[str, Path]) -> dict[str, dict[str, Any]]:
    """The first job of each rule of a recipe on four GPUs, as the plugin sent it."""
    name, plugins = executor
    (project.folder / "recipes/machines").mkdir()
    (project.folder / "recipes/machines/gpus.yaml").write_text(GPUS)
    (project.folder / "bin").mkdir()
    (project.folder / "bin/rsync").write_text(RSYNC)
    (project.folder / "bin/rsync").chmod(0o755)
    store, outputs = project.folder / "store", list[str]()

    def make_outputs() -> None:
        for each in outputs:
            (store / each).parent.mkdir(parents=True, exist_ok=True)
            (store / each).touch()

    server = SmallApi(make_outputs)
    (project.folder / "kubeconfig").write_text(KUBECONFIG.format(address=server.address))
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "test")
    environment = {
        **project.environment, **keys, "PYTHONPATH": str(plugins),
        "PATH": f"{project.folder}/bin:{project.environment['PATH']}",
        "KUBECONFIG": str(project.folder / "kubeconfig"), "AWS_ENDPOINT_URL_BATCH": server.address,
    }  # fmt: skip
    command = ["snakemake", "results/tiny@gpus", "--workflow-profile", str(CHECKOUT / "profiles" / name), "--nocolor", FRAMES,
               "--default-storage-provider", "fs", "--default-storage-prefix", str(store)]  # fmt: skip
    run = {"cwd": project.folder, "env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    shown = subprocess.run([*command, "-n"], **run, timeout=300).stdout
    for line in re.findall(r"^    output: (.*)", shown, re.M):
        outputs += [each.split(" ")[0].removeprefix(f"{store}/") for each in line.split(", ")]
    try:
        done = subprocess.run([*command, "--seconds-between-status-checks", "1"], **run, timeout=500)
    finally:
        server.shutdown()
        server.server_close()
    jobs = {rule: job for job in reversed(server.submitted) for rule in re.findall(r"--target-jobs '?(\w+):", json.dumps(job))}
    assert set(jobs) >= RULES, f"{set(jobs)}\n{shown[-2000:]}\n{done.stdout[-6000:]}"
    return jobs


def find_faults(name: str, plugins: Path, jobs: Sequence[dict[str, Any]], folder: Path) -> str:
    """Return what a schema says against these jobs; nothing if they are good. Unknown fields are faults."""
    path = folder / "jobs"
    if name == "kubernetes":  # the plugin leaves these two out; a real server takes them from the address
        jobs = [{"apiVersion": "batch/v1", "kind": "Job", **job} for job in jobs]
    path.write_text(("\n---\n" if name == "kubernetes" else "\n").join(map(json.dumps, jobs)))
    validate = ["-m", "kubernetes_validate", "--strict", "--quiet", str(path)]
    check = validate if name == "kubernetes" else ["-c", CHECK_AWS, str(path)]
    done = subprocess.run(
        [sys.executable, *check], env={**os.environ, "PYTHONPATH": str(plugins)}, text=True, capture_output=True, timeout=120
    )
    assert (done.returncode == 0) == (not (done.stdout + done.stderr)), done.stderr
    return done.stdout + done.stderr


def test_every_submitted_job_fits_the_schema_and_a_wrong_field_does_not(
    executor: tuple[str, Path], submitted: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    name, plugins = executor
    assert find_faults(name, plugins, list(submitted.values()), tmp_path) == ""
    training = submitted["pretrain"]
    if name == "kubernetes":
        check_pod(training, gpus="4")
        check_pod(submitted["extract"], gpus=None)
        pod = training["spec"]["template"]["spec"]
        unknown, wrong = {**pod, "serviceAcountName": "relm"}, {**pod, "tolerations": "nvidia.com/gpu"}
        planted = [{**training, "spec": {**training["spec"], "template": {"spec": each}}} for each in (unknown, wrong)]
        names = "serviceAcountName", "tolerations"
    else:
        found = {each["type"]: each["value"] for each in training["containerProperties"]["resourceRequirements"]}
        assert found == {"VCPU": "16", "MEMORY": "98304", "GPU": "4"}
        planted = [{**training, "retryStrategi": {}}, {**training, "timeout": {"attemptDurationSeconds": "5"}}]
        names = "retryStrategi", "attemptDurationSeconds"
    for job, field in zip(planted, names, strict=True):
        assert field in find_faults(name, plugins, [job], tmp_path)


def check_pod(job: dict[str, Any], gpus: str | None) -> None:
    """Check what the schema cannot: that quantities parse, and that limits are as large as requests, of GPUs equal."""
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "relm"
    resources = pod["containers"][0]["resources"]
    assert resources["requests"].get("nvidia.com/gpu") == resources["limits"].get("nvidia.com/gpu") == gpus
    assert bool(pod.get("tolerations")) == (gpus is not None)
    for quantity, request in resources["requests"].items():
        numbers = [re.fullmatch(r"([1-9]\d*)(m|M)?", each) for each in (request, resources["limits"][quantity])]
        assert all(numbers), (quantity, request)
        assert int(numbers[0][1]) <= int(numbers[1][1]), quantity
