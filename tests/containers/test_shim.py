"""Snakemake's calls of Apptainer, carried out by another engine: the resulting command line, and what is rejected."""

import datetime
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from relm.containers.lock import Built, record_built
from relm.containers.shim import main, parse_exec, replace_shell
from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS
from small_project import FRAMES, Commands

ID = f"sha256:{'c' * 64}"


@pytest.fixture
def with_image(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A small project with its own image for `cpu`."""
    (project.folder / "containers").unlink()
    shutil.copytree(Path(__file__).resolve().parents[2] / "containers", project.folder / "containers")
    built = Built(id=ID, bases={"BASE": "x"}, built=datetime.date(2026, 11, 20))
    record_built("cpu", built, project.folder)
    monkeypatch.chdir(project.folder)
    return project


def call(project: Commands, command: str, *options: str) -> list[str]:
    """Return the words that Snakemake passes for a rule's command."""
    image = project.folder / ".snakemake" / "image.simg"
    image.parent.mkdir(exist_ok=True)
    image.write_text(f"{ID}\n")
    return ["--home", str(project.folder), *options, str(image), "bash", "-c", f"set -euo pipefail;  {command}"]


def test_a_rules_command_becomes_a_run_of_its_image(with_image: Commands) -> None:
    run = parse_exec(call(with_image, "python -m relm verify tiny --log a.log", "--bind", "/root/.cache/snakemake"))
    assert (run.reference, run.entry_point, run.network) == (ID, "bash", False)
    assert run.command == ["-c", "set -euo pipefail;  exec python -m relm verify tiny --log a.log"]
    assert (list(run.writable), run.working_folder) == ([with_image.folder], with_image.folder)
    assert parse_exec(call(with_image, "python -m relm download --dataset recipes/data/sample.yaml")).network


def test_a_work_folder_elsewhere_is_mounted_too(with_image: Commands, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "work"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELM_WORK", str(elsewhere))
        assert list(parse_exec(call(with_image, "python -m relm list")).writable) == [with_image.folder, elsewhere]
    assert elsewhere.is_dir()  # else the engine would make it, as root


def test_options_for_real_apptainer_are_refused(with_image: Commands) -> None:
    with pytest.raises(RelmError, match=r"--nv: --apptainer-args need real Apptainer; .*containers/lock.yaml"):
        parse_exec(call(with_image, "python -m relm list", "--nv"))


def test_the_step_takes_the_shells_place_unless_the_shell_is_still_needed() -> None:
    assert replace_shell("set -eu;  python -m relm list") == "set -eu;  exec python -m relm list"
    several = "python -m relm --processes 2 pretrain x"
    assert replace_shell(several) == f"exec {several}"
    poprun = 'env \'POPLAR_TARGET_OPTIONS={"gatewayMode":"true"}\' poprun --num-instances 2 --host a python -m relm pretrain x'
    assert replace_shell(poprun) == f"exec {poprun}"
    for command in ("python -m relm list | tee x", "python -m relm list; rm x", "echo a"):
        assert replace_shell(command) == command


def test_a_call_that_snakemake_does_not_make_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "x"], os.environ) == 1
    assert "expected one of Snakemake's calls: --version, pull or exec; found 'build x'" in capsys.readouterr().err
    assert main(["--version"], os.environ) == 0
    assert re.fullmatch(r"apptainer version \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_a_dry_run_in_images_needs_no_engine(with_image: Commands) -> None:
    bin_folder = Path(__file__).resolve().parents[2] / "containers" / "bin"
    path = f"{bin_folder}{os.pathsep}{with_image.environment['PATH']}"
    done = with_image.snakemake("results/tiny", "-n", FRAMES, "--sdm", "apptainer", PATH=path, RELM_ENGINE="rkt")
    assert done.returncode == 0, done.stdout
    assert f"docker://{ID} will be pulled" in done.stdout


def test_without_images_the_lock_is_not_even_read(with_image: Commands) -> None:
    shutil.rmtree(with_image.folder / "containers")
    assert with_image.jobs("results/tiny")["pretrain"] == 1


def test_a_recipe_for_a_device_without_an_image_says_which_command_builds_it(with_image: Commands) -> None:
    recipe = with_image.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("run: {threads: 1,", "run: {device: tpu, threads: 1,"))
    bin_folder = Path(__file__).resolve().parents[2] / "containers" / "bin"
    path = f"{bin_folder}{os.pathsep}{with_image.environment['PATH']}"
    for options, status in (((), 1), (("-n",), 0)):
        done = with_image.snakemake("results/tiny", *options, "--sdm", "apptainer", PATH=path)
        assert done.returncode == status
        assert "the image of tpu (relm/tpu:0.1.0) has no digest" in done.stdout
        assert "make images ROLES=tpu" in done.stdout
        assert "Traceback (most recent call last)" not in done.stdout
        assert ("a run would stop here" in done.stdout) == bool(options)


def test_an_extension_of_a_recipe_is_mounted_and_nothing_next_to_it(with_image: Commands, tmp_path: Path) -> None:
    """The engine is a program that prints its words, because no engine is needed to see them."""
    folder, recipe = Path(__file__).resolve().parents[1] / "extension", with_image.folder / "recipes" / "tiny.yaml"
    changed = recipe.read_text().replace(
        "learning_rate: 1e-3, gradient_clipping: 1.0", "name: sign_descent, learning_rate: 1e-3"
    )
    recipe.write_text(changed)
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    engine.chmod(0o755)
    path = f"{engine.parent}{os.pathsep}{with_image.environment['PATH']}"
    extended = {EXTENSIONS: "sign_descent", "PYTHONPATH": str(folder), "RELM_ENGINE": "docker", "PATH": path}
    words = call(with_image, "python -m relm pretrain tiny --phase main")
    command = [sys.executable, "-m", "relm.containers.shim", "exec", *words]
    environment = with_image.environment | extended
    done = subprocess.run(command, cwd=with_image.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    named = [(before, after) for before, after in pairwise(found) if str(folder) in after or after == EXTENSIONS]
    file = folder / "sign_descent.py"
    assert sorted(named) == [("--env", f"PYTHONPATH={folder}"), ("--env", EXTENSIONS), ("--volume", f"{file}:{file}:ro")]
