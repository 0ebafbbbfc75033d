"""Faults that a recipe and this machine decide are reported together before the first job, in a dry-run as warnings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relm.errors import RelmError
from relm.graph import refusals, room
from relm.graph.environments import TrainingPlace, find_fault
from relm.graph.refusals import find_training_faults
from relm.limits import find_folder_fault, usable_cores
from relm.recipes import identity
from relm.recipes.project import Project
from small_project import Commands, make_project

HERE = TrainingPlace()
ELSEWHERE = TrainingPlace(uses_environment=False, is_here=False)
MACHINES = {"gpu": "title: A GPU\ndevice: cuda\nmemory_gib: 16\n"}
RECIPES = {
    "large": "model: {layers: 96, heads: 96, hidden_size: 12288}",
    "crowd": f"pretrain: {{main: {{global_batch_size: {32 * usable_cores()}}}}}\nrun: {{processes: {8 * usable_cores()}}}",
    "vocabulary": "model: {vocabulary_size: 300}",
    "gpu": "run: {device: cuda, threads: null}",
    "logged": "run: {loggers: [tensorboard, wandb]}",
    "broken": "seed: '4'\nevaluate: [held_oot]\ndata: {dataset: smaple}\nrun: {device: ipu, thrads: 1}",
}
WARNED = "This is a dry-run; a run would stop here."


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = make_project(tmp_path)
    (tmp_path / "recipes" / "machines").mkdir()
    for name, text in MACHINES.items():
        (tmp_path / "recipes" / "machines" / f"{name}.yaml").write_text(text)
    for name, text in RECIPES.items():
        (tmp_path / "recipes" / f"{name}.yaml").write_text(f"extends: tiny\n{text}\n")
    monkeypatch.chdir(tmp_path)
    for module in (refusals, room):
        monkeypatch.setattr(module, "PROJECT", Project())
    return made


def faults_of(name: str, place: TrainingPlace) -> list[str]:
    plan = refusals.PROJECT.plan(name)
    return [*filter(None, [find_fault(plan, place)]), *find_training_faults(plan, plan.phases, place)]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Any]:
    """A function that mounts a real file system of some size, and can turn it read-only."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"mounted-{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("this user may not mount")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_model_that_the_memory_cannot_hold_is_refused_with_its_parts(project: Commands) -> None:
    (fault,) = faults_of("large", HERE)
    assert fault.startswith("large: pretrain.main does not fit: training 173,966,843,904 parameters: ")
    assert "weights 696 GB, gradients 696 GB, optimizer 1.39 TB take 2.78 TB, but this machine has" in fault
    assert "make the model smaller (fewer model.layers, or a smaller hidden size), or set RELM_IGNORE_LIMITS=1" in fault
    assert faults_of("large", ELSEWHERE) == []  # whose memory is not known here
    (there,) = faults_of("large@gpu", ELSEWHERE)
    assert "needs" in there
    assert "Choose a machine with more memory" in there or "choose a machine with more memory" in there


def test_a_run_that_has_begun_on_a_machine_is_not_refused_for_its_memory(project: Commands) -> None:
    plan = refusals.PROJECT.plan("large@gpu")
    (plan.run_folder / "main" / "checkpoints" / "step-00000010").mkdir(parents=True)
    assert faults_of("large@gpu", ELSEWHERE) == []


def test_limits_are_tried_where_the_user_says_so(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_IGNORE_LIMITS", "1")
    assert faults_of("large", HERE) == faults_of("crowd", HERE) == []


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused_everywhere(project: Commands) -> None:
    expected = (
        "recipes/vocabulary.yaml: model.vocabulary_size is 300, but the tokenizer has 400 tokens; raise it, or leave it out"
    )
    assert faults_of("vocabulary", HERE) == faults_of("vocabulary", ELSEWHERE) == [expected]


def test_a_logger_that_is_not_installed_is_refused_where_this_environment_trains(
    project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert faults_of("logged", HERE) == []
    monkeypatch.setitem(sys.modules, "wandb", None)
    (fault,) = faults_of("logged", HERE)
    assert fault.startswith("recipes/logged.yaml: run.loggers: wandb is not installed here; install relm's extra `loggers`")
    assert faults_of("logged", HERE._replace(uses_environment=False)) == []


def test_more_processes_than_the_cores_can_run_are_refused_here(project: Commands) -> None:
    cores = usable_cores()
    (fault,) = faults_of("crowd", HERE)
    assert fault == (
        f"crowd: run.processes is {8 * cores}, and the {cores} cores of this machine can run {4 * cores} at most; lower it, or "
        "set RELM_IGNORE_LIMITS=1 to try anyway"
    )
    assert faults_of("crowd", ELSEWHERE) == []


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU")
def test_a_gpu_that_this_machine_lacks_is_refused_without_torch(project: Commands) -> None:
    (fault,) = faults_of("gpu", HERE._replace(uses_environment=False))
    assert fault.startswith("gpu: this machine cannot train on run.device: cuda: found no NVIDIA GPU or driver")
    assert faults_of("gpu", ELSEWHERE) == []
    code = "import sys; from relm.devices.detection import find_absent_gpus; find_absent_gpus(1); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_schema_error_hides_neither_a_wrong_name_nor_a_missing_file(project: Commands) -> None:
    with pytest.raises(RelmError) as caught:
        refusals.PROJECT.plan("broken")
    lines = str(caught.value).splitlines()
    assert lines[0] == "recipes/broken.yaml: 3 errors"
    assert "seed: expected a number, without quotes; found '4'" in lines[1]
    assert "run.thrads: unknown key; did you mean threads?" in lines[2]
    assert "run.pipeline: missing, and device: ipu needs one" in lines[3]  # a rule between keys
    assert lines[4] == "recipes/data/smaple.yaml: no such file (did you mean sample?)"
    assert "evaluate: there is no evaluation 'held_oot'" in lines[5]


def test_the_room_is_that_of_the_jobs_to_be_done(project: Commands, mount: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = mount("size=2m")
    monkeypatch.setenv("RELM_WORK", str(folder))
    monkeypatch.setattr(room, "PROJECT", Project())
    plan = room.PROJECT.plan("tiny")
    destination = plan.documents_job.download("sample.xml")
    download = SimpleNamespace(
        rule=SimpleNamespace(name="download_data"),
        wildcards=SimpleNamespace(dataset="sample", shard="sample.xml"),
        output=SimpleNamespace(file=str(destination)),
    )
    train = SimpleNamespace(
        rule=SimpleNamespace(name="pretrain"), wildcards=SimpleNamespace(recipe="tiny", phase="main"), output=None
    )
    fault = str(room.find_room_fault([download, train]))
    assert fault.startswith("downloads 5.")
    assert "checkpoints (run.keep_checkpoints) " in fault
    assert f"on the disk of {folder}, which has 2.1 MB free; make room, set RELM_WORK to another disk" in fault
    assert room.find_room_fault([train]) is None  # 1.4 MB
    (folder / "fill").write_bytes(bytes(1_000_000))
    assert str(room.find_room_fault([train])).startswith("checkpoints (run.keep_checkpoints) ")
    for step in (10, 20):
        (plan.run_folder / "main" / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    assert room.find_room_fault([train]) is None  # those are there


def test_a_work_folder_that_cannot_be_written_is_explained(tmp_path: Path, mount: Any) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert str(find_folder_fault(tmp_path / "file" / "below", "RELM_WORK")).endswith(
        f"cannot be a folder, because {tmp_path}/file is a file; choose another path"
    )
    assert "is a link to nowhere, which does not exist" in str(find_folder_fault(tmp_path / "link", "RELM_WORK"))
    assert find_folder_fault(tmp_path / "not" / "yet", "RELM_WORK") is None
    assert "has '{', which Snakemake does not accept in a path" in str(find_folder_fault(tmp_path / "a {b}", "RELM_WORK"))
    assert "begins with ~, which only a shell expands" in str(find_folder_fault(Path("~/relm"), "RELM_WORK"))
    assert "is on a disk that is mounted read-only" in str(find_folder_fault(mount("ro") / "below", "RELM_WORK"))


def test_a_folder_that_may_not_be_searched_is_a_fault_before_the_graph_is_built(
    project: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    monkeypatch.setenv("RELM_WORK", str(tmp_path / "locked" / "work"))
    monkeypatch.setattr(identity, "_in_memory", None)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "locked")  # root may search all of them
    check: Any = refusals.Refusals.__new__(refusals.Refusals)
    check.workflow = SimpleNamespace(dryrun=True, dag_settings=SimpleNamespace(targets={"results/tiny"}))
    with pytest.raises(SystemExit, match=r"RELM_WORK: nothing can be written to .*/locked/work: .*/locked belongs to another"):
        check.prepare()


def test_hashes_of_folders_are_kept_in_memory_in_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_in_memory", None)
    (tmp_path / "a.txt").write_text("text")
    files, known = {"a.txt": tmp_path / "a.txt"}, tmp_path / "work" / "known.json"
    identity.keep_hashes_in_memory()
    first = identity.content_of(files, known)
    monkeypatch.setattr(identity, "sha256_of", lambda path: pytest.fail("hashed again"))
    assert identity.content_of(files, known) == first
    assert not known.parent.exists()


def written(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and ".snakemake" not in path.parts
    )


@pytest.mark.full
def test_all_faults_are_in_one_answer_and_a_dry_run_writes_nothing(project: Commands, mount: Any) -> None:
    folder = mount("ro,size=1m")
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("hidden_size: 32", "hidden_size: 32000, vocabulary_size: 300"))
    before = written(project.folder)
    planned = project.snakemake("results/tiny", "results/gpu", "-n", RELM_WORK=str(folder))
    assert planned.returncode == 0, planned.stdout
    expected = (
        f"RELM_WORK: nothing can be written to {folder}: {folder} is on a disk that is mounted read-only",
        "recipes/tiny.yaml: model.vocabulary_size is 300, but the tokenizer has 400 tokens; raise it, or leave it out",
        "cannot train on run.device: cuda",
        "make room, set RELM_WORK to another disk",
    )
    for part in expected:
        assert planned.stdout.count(part) == 1, part
    assert planned.stdout.count(WARNED) == planned.stdout.count("would stop here") >= 4
    assert written(project.folder) == before
    assert not (project.folder / ".snakemake" / "relm-owners").exists()
    refused = project.snakemake("results/tiny", "results/gpu", RELM_WORK=str(folder))
    assert refused.returncode == 1
    assert all(part in refused.stdout for part in expected)
    assert "Traceback" not in refused.stdout
    assert written(project.folder) == before


@pytest.mark.full
def test_a_work_folder_that_is_a_file_is_refused_with_the_faults_of_the_recipe(project: Commands) -> None:
    (project.folder / "file").touch()
    refused = project.snakemake("results/tiny", "-n", RELM_WORK="{a}")
    assert refused.returncode == 1
    assert refused.stdout.startswith("RELM_WORK: ")
    assert refused.stdout.count("\n") == 1
    for options in ((), ("-n",)):
        done = project.snakemake("results/broken", *options, RELM_WORK=str(project.folder / "file"))
        assert done.returncode == 1
        assert "Traceback" not in done.stdout
        *_, work, count, _, _, _, dataset, _, device = done.stdout.rstrip().splitlines()
        assert work.startswith("RELM_WORK: ")
        assert count == "recipes/broken.yaml: 3 errors"
        assert "smaple" in dataset
        assert device.startswith("broken: this environment cannot train on run.device: ipu")


@pytest.mark.full
def test_a_read_only_checkout_is_refused_in_a_sentence(project: Commands, mount: Any) -> None:
    folder = mount("size=20m")
    for path in project.folder.iterdir():
        if path != folder and path.name in ("Snakefile", "src", "profiles", "containers"):
            (folder / path.name).symlink_to(os.readlink(path))
    subprocess.run(["cp", "-r", project.folder / "recipes", folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    done = Commands(folder).snakemake("results/tiny", XDG_CACHE_HOME=str(project.folder / ".cache"))
    assert done.returncode == 1
    assert "Snakemake's records: nothing can be written to .snakemake" in done.stdout
    assert "Traceback" not in done.stdout


def record_image(project: Commands, **recorded: str) -> None:
    """Record an image in the project's own override."""
    containers = project.folder / "containers"
    shipped = containers.resolve()
    containers.unlink()
    containers.mkdir()
    for path in shipped.iterdir():
        (containers / path.name).symlink_to(path)
    (containers / "lock.local.yaml").unlink(missing_ok=True)
    image = {"id": f"sha256:{'1' * 64}", "bases": {}, "built": "2026-01-01", **recorded}
    (containers / "lock.local.yaml").write_text(f"images: {{cpu: {image}}}\n")


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--profile", "profiles/slurm")])
def test_an_image_that_is_not_there_is_among_the_faults(project: Commands, options: tuple[str, ...]) -> None:
    record_image(project, apptainer=str(project.folder / "cpu.sif"))
    path = f"{project.folder / 'containers' / 'bin'}{os.pathsep}{project.environment['PATH']}"
    planned = project.snakemake("results/vocabulary", "-n", "--sdm", "apptainer", *options, PATH=path)
    assert (
        f"images.cpu.apptainer: {project.folder}/cpu.sif is not there; build it again: make images ROLES=cpu" in planned.stdout
    )
    assert "but the tokenizer has 400 tokens" in planned.stdout


@pytest.mark.full
def test_an_image_of_podmans_store_is_refused_where_apptainer_is_real(project: Commands) -> None:
    record_image(project)
    program = project.folder / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{project.environment['PATH']}"
    done = project.snakemake("results/tiny", "--sdm", "apptainer", PATH=path)
    assert done.returncode == 1
    assert (
        f"images.cpu: sha256:{'1' * 64} is an image of Docker or podman, which Apptainer ({program}) cannot run" in done.stdout
    )
    assert "pull" not in done.stdout


@pytest.mark.full
def test_a_cluster_is_not_refused_for_what_its_login_node_lacks(project: Commands) -> None:
    planned = project.snakemake("results/gpu", "results/crowd", "-n", "--profile", "profiles/slurm")
    assert planned.returncode == 0, planned.stdout
    assert WARNED not in planned.stdout
