"""A module that RELM_EXTENSIONS names is not in the image: its file is mounted, and nothing beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relm.containers.extensions import Extensions, find_extensions
from relm.containers.shell_line import docker_line
from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS
from relm.recipes.project import Project
from small_project import TINY_RECIPE, Commands

FOLDER = Path(__file__).resolve().parents[1] / "extension"
CHECKOUT = FOLDER.parents[1]


@pytest.fixture
def modules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path with a module, a package, and a file that no step needs."""
    folder = tmp_path_factory.mktemp("modules")
    for name in ("relm_test_module.py", "relm_test_package/__init__.py", "relm_test_package/code.py", "secret.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_only_the_named_modules_are_mounted(modules: Path) -> None:
    named = {EXTENSIONS: "relm_test_module, relm_test_package.code, relm.recipes.devices"}
    expected = (modules / "relm_test_module.py", modules / "relm_test_package")
    assert find_extensions(named, [Path("/elsewhere")]) == Extensions(expected, (modules,))
    assert find_extensions(named, [modules]) == Extensions((), (modules,)), "a checkout is mounted anyway"
    assert find_extensions({}, []) == Extensions()


@pytest.mark.parametrize("name", ["relm_test_absent", "sys"])
def test_a_module_without_a_file_is_refused_before_the_engine_starts(name: str) -> None:
    with pytest.raises(RelmError, match=f"RELM_EXTENSIONS: {name} has no file to mount into the container"):
        find_extensions({EXTENSIONS: name}, [])


def test_a_printed_line_mounts_them_on_this_machine_and_not_on_any(
    modules: Path, project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    step, mount = ["relm", "verify", "tiny"], f"--volume {modules}/relm_test_module.py:{modules}/relm_test_module.py:ro"
    own = docker_line(step, Project(), environment={EXTENSIONS: "relm_test_module"}).line or ""
    assert f"{mount} --workdir" in own
    assert f"--env PYTHONPATH={modules} " in own
    monkeypatch.setenv(EXTENSIONS, "relm_test_module")
    assert str(modules) not in (docker_line(step, Project()).line or str(modules))


def test_snakemakes_call_for_a_recipe_with_an_extension_mounts_it(project: Commands, tmp_path: Path) -> None:
    """The engine is a program that prints its words, because no engine is needed to see them."""
    recipe = TINY_RECIPE.replace(
        "optimizer: {learning_rate: 1e-3, gradient_clipping: 1.0}", "optimizer: {name: sign_descent, learning_rate: 1e-3}"
    )
    (project.folder / "recipes" / "tiny.yaml").write_text(recipe)
    engine = tmp_path / "bin" / "docker"
    engine.parent.mkdir()
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    engine.chmod(0o755)
    image = "sha256:" + "c" * 64
    (project.folder / "containers").unlink()
    (project.folder / "containers").mkdir()
    (project.folder / "containers/lock.yaml").write_text((CHECKOUT / "containers/lock.yaml").read_text())
    built = f"images: {{cpu: {{id: '{image}', bases: {{BASE: x}}, built: 2026-11-20}}}}\n"
    (project.folder / "containers/lock.local.yaml").write_text(built)
    environment = {EXTENSIONS: "sign_descent", "PYTHONPATH": str(FOLDER), "RELM_ENGINE": "docker"}
    path = f"{engine.parent}{os.pathsep}{project.environment['PATH']}"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "relm.containers.shim",
            "exec",
            image,
            "bash",
            "-c",
            "python -m relm pretrain tiny --phase main",
        ],
        cwd=project.folder,
        env={**project.environment, **environment, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[words.index(f"{FOLDER}/sign_descent.py:{FOLDER}/sign_descent.py:ro") - 1] == "--volume"
    assert words[words.index(f"PYTHONPATH={FOLDER}") - 1] == "--env"
    assert words[words.index(EXTENSIONS) - 1] == "--env"
    assert len([word for word in words if str(FOLDER) in word]) == 2, "nothing else of the folder is mounted"
