"""A module that RELM_EXTENSIONS names is not in the image: its file is mounted, and nothing else of its folder."""

from pathlib import Path

import pytest

from relm.containers.extensions import Extensions, find_extensions
from relm.containers.shell_line import docker_line
from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS
from relm.recipes.project import Project
from small_project import Commands

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
