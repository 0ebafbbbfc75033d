"""The tpu image, with torch as PyPI has it: gigabytes of CUDA, of which it keeps what torch is linked to.

XLA's CPU client takes the TPU's part; the TPU's own compiler really runs.
"""

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engines import STAND_IN
from image_project import ImageProject, build
from safetensors.numpy import load_file

from relm.containers.context import read_left_out
from relm.containers.lock import find_image
from relm.containers.run_line import ContainerRun, run_line
from relm.recipes.project import Project

pytestmark = [pytest.mark.containers, pytest.mark.full, pytest.mark.timeout(3600)]
NAME = "smoke/quickstart_on_xla"
RECIPE = "extends: quickstart\nrun: {machine: v3-8, threads: null}\n"
DISK = 45e9
CPUS = "results/smoke/quickstart/model.safetensors"
ASK = """
import importlib.metadata, sys, torch, torch_xla, gcsfs
from packaging.requirements import Requirement
there = {one.name.lower().replace("_", "-") for one in importlib.metadata.distributions()}
required = [Requirement(line) for one in importlib.metadata.distributions() for line in one.requires or []]
required = {one.name.lower().replace("_", "-") for one in required if one.marker is None or one.marker.evaluate({"extra": ""})}
print("has", torch.__version__, torch_xla.__version__, torch_xla.device())
print("lacks", *sorted(required - there))
"""


@contextlib.contextmanager
def most_disk_used(folder: Path) -> Iterator[list[int]]:
    """The bytes by which a file system was fuller than before, at most, looked at each second; in the list's one place."""
    before, most, ended = shutil.disk_usage(folder).free, [0], threading.Event()

    def look() -> None:
        while not ended.wait(1):
            most[0] = max(most[0], before - shutil.disk_usage(folder).free)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield most
    finally:
        ended.set()
        looking.join()


@pytest.fixture(scope="module")
def tpu(in_podman: ImageProject) -> ImageProject:
    """The quickstart's finished twin, the tpu image next to the cpu one, and a recipe for it."""
    if (free := shutil.disk_usage(in_podman.engine.folder).free) < DISK:
        pytest.skip(
            f"while it is built the tpu image takes up to {DISK / 1e9:.0f} GB of disk, and {free / 1e9:.0f} GB are free"
        )
    started = time.monotonic()
    with most_disk_used(in_podman.engine.folder) as most:
        build(in_podman, "tpu", {"BASE": STAND_IN})
    size = json.loads(in_podman.engine.run("image", "inspect", in_podman.built("tpu").id).stdout)[0]["Size"]
    seconds = time.monotonic() - started
    print(f"the tpu image has {size / 1e9:.2f} GB, took {seconds:.0f} s and {most[0] / 1e9:.0f} GB of disk")
    (in_podman.folder / "recipes" / f"{Path(NAME).name}.yaml").write_text(RECIPE)
    return in_podman


def in_tpu_image(project: ImageProject, *command: str, entry_point: str | None = None) -> str:
    """Return the output of a command in it, on XLA's CPU client and with no more rights than any step."""
    entry = find_image("tpu", project.folder)
    run = ContainerRun(
        image=entry.model_copy(update={"privileged": False, "network": "none", "environment": {"PJRT_DEVICE": "CPU"}}),
        reference=project.built("tpu").id,
        command=command,
        writable=[project.folder],
        working_folder=project.folder,
        entry_point=entry_point,
    )
    done = project.command(*run_line("podman", run, project.environment))
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_all_that_its_packages_ask_for_is_there_but_what_is_left_out(tpu: ImageProject) -> None:
    output = dict(line.partition(" ")[::2] for line in in_tpu_image(tpu, "-c", ASK, entry_point="python").splitlines())
    assert output["has"].startswith("2.9.0")
    assert output["has"].endswith(" 2.9.0 xla:0")
    locks = [tpu.folder / "envs" / name for name in ("torch-tpu.txt", "cpu.txt")]
    assert set(output["lacks"].split()) <= frozenset().union(*map(read_left_out, locks))


def test_a_phase_trained_in_it_is_the_cpus_up_to_rounding(tpu: ImageProject) -> None:
    plan = Project(tpu.folder).plan(NAME)
    files = ["--manifest", str(plan.manifest("main")), "--tokenizer", str(plan.tokenizer)]
    in_tpu_image(tpu, "pretrain", NAME, "--phase", "main", *files, "--output", "work/on-xla/model/model.safetensors")
    folder = tpu.folder / "work" / "on-xla"
    made_on = json.loads((folder / "checkpoints.jsonl").read_text().splitlines()[-1])["made_on"]
    assert (made_on["device"], made_on["name"]) == ("tpu", "XLA:CPU")
    here, there = load_file(folder / "model" / "model.safetensors"), load_file(tpu.folder / CPUS)
    assert here.keys() == there.keys()
    for name, weights in there.items():
        np.testing.assert_allclose(here[name], weights, atol=2e-3, err_msg=name)


def test_the_tpus_own_compiler_is_in_it(tpu: ImageProject) -> None:
    output = in_tpu_image(tpu, "compile", "smoke/quickstart@v3-8", "--output", "work/on-xla/compile.json")
    programs = json.loads((tpu.folder / "work/on-xla/compile.json").read_text())["programs"]
    assert [program["compiled"]["fits"] for program in programs] == [True] * len(programs), output
    assert "step" in {program["name"] for program in programs}
