"""A recipe on a real Slurm cluster whose jobs run in the cpu image through real Apptainer: the bytes of a run without both."""

import json
import shutil
from pathlib import Path

import pytest
from image_project import ApptainerImage

from relm.artifact import sha256_of
from small_project import CHECKOUT, Commands
from small_slurm import OnSlurm, SmallSlurm, find_lacking, hash_data

pytestmark = [
    pytest.mark.containers,
    pytest.mark.full,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(find_lacking()), reason="no Slurm here (Debian's packages munge, slurmctld, slurmd, slurm-client)"),
]


class InImages(OnSlurm):
    """A project whose jobs run on the cluster in an image, by the command of docs/cluster.md."""

    line = r"^snakemake results/NAME@MACHINE (--workflow-profile profiles/slurm --sdm apptainer .*?) *(?:#.*)?$"

    def __init__(self, folder: Path, cluster: SmallSlurm, apptainer: ApptainerImage) -> None:
        super().__init__(folder, cluster)
        self.environment["PATH"] = f"{apptainer.program.parent}:{self.environment['PATH']}"
        (folder / "containers").unlink()  # a link, behind which the image of nobody else's project may be recorded
        shutil.copytree(CHECKOUT / "containers", folder / "containers", ignore=shutil.ignore_patterns("lock.local.yaml"))
        apptainer.record(folder)


def read_containers(folder: Path) -> dict[str, dict[str, str]]:
    """Return the container of each step that left a record, by the record's name."""
    return {path.name: json.loads(path.read_text())["container"] for path in folder.rglob("*.record.json")}


def test_jobs_run_in_the_image_with_a_work_folder_elsewhere(
    apptainer: ApptainerImage,
    project: Commands,
    finished_project: Commands,
    cluster: SmallSlurm,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    work = tmp_path_factory.mktemp("scratch") / "work"
    in_images = InImages(project.folder, cluster, apptainer)
    done = in_images.snakemake("results/tiny", RELM_WORK=str(work))
    assert done.returncode == 0, done.stdout
    for name in ("model.safetensors", "tokenizer.json", "eval/held_out.json", "eval/samples.json", "config.json"):
        here, there = (sha256_of(each.folder / "results" / "tiny" / name) for each in (project, finished_project))
        assert here == there, name
    assert hash_data(work) == hash_data(finished_project.folder / "work")
    image = {"engine": "apptainer", "role": "cpu", "image": apptainer.built.id, "digest": apptainer.built.id}
    containers = read_containers(work)
    assert "model.safetensors.record.json" in containers
    assert all(found == image for found in containers.values()), containers
    states = cluster.run("squeue", "--states=all", "--noheader", "--format=%T").split()
    assert set(states) == {"COMPLETED"}
    assert len(states) == 11, "each job of the graph ran on a node"
