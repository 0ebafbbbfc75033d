"""The models, the step and the worker of IPU runs run in an image with Python 3.8 and torch 2.0, without the rest of relm."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import relm.models

MODELS = Path(relm.models.__file__).parent
IPU = MODELS.parent / "devices" / "ipu"
# The training loop's own side of IPU runs.
IN_RELMS_PYTHON = {"device.py", "instances.py", "worker_process.py"}
WORKER = [path for path in sorted(IPU.glob("*.py")) if path.name not in IN_RELMS_PYTHON]
FILES = [*sorted(MODELS.glob("*.py")), MODELS.parent / "training" / "step.py", *WORKER]
# Packages of the image that the worker alone may import.
OF_THE_WORKER = {"numpy", "poptorch", "popdist", "horovod"}
LATER_METHODS = {"removeprefix", "removesuffix"}
NOT_YET_GENERIC = {"dict", "list", "tuple", "set", "frozenset", "type", "Callable", "Mapping", "Iterable", "Sequence"}


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those of annotations, which are never evaluated."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from evaluated(child)


def faults(source: str, worker: bool = False) -> list[str]:
    """Return what Python 3.8 could not run, and imports that the image lacks.

    Args:
        worker: the file belongs to the worker of IPU runs.
    """
    packages = {"torch", "safetensors", *sys.stdlib_module_names, *(OF_THE_WORKER if worker else ())}
    own = ("relm.models.", "relm.devices.ipu") if worker else ("relm.models.",)
    tree = ast.parse(source, feature_version=(3, 8))
    found = []
    from_typing: set[str] = set()
    for node in evaluated(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            from_typing |= {alias.name for alias in node.names}
        if isinstance(node, ast.Attribute) and node.attr in LATER_METHODS:
            found.append(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            name = node.value.id
            if name in NOT_YET_GENERIC and name not in from_typing:
                found.append(f"{name}[...]")
        if isinstance(node, ast.keyword) and node.arg == "strict":
            found.append("strict=")
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if module.split(".")[0] not in packages and not module.startswith(own):
                found.append(f"import {module}")
    if tree.body[1:] and "from __future__ import annotations" not in source:
        found.append("annotations are evaluated")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_file_of_models_and_worker_runs_there(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8"), worker=path in WORKER) == []


def test_the_worker_imports_no_module_of_relms_own_python() -> None:
    names = tuple(f"relm.devices.ipu.{Path(name).stem}" for name in IN_RELMS_PYTHON)
    assert [path.name for path in WORKER if any(name in path.read_text(encoding="utf-8") for name in names)] == []


def old_python() -> str | None:
    """Return a Python 3.8 that starts, or None."""
    for name in ("python3.8", *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))):
        path = shutil.which(name)
        if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def test_a_real_python_3_8_compiles_every_file(tmp_path: Path) -> None:
    python = old_python()
    if python is None:
        pytest.skip("there is no Python 3.8 on this machine")
    for number, path in enumerate(FILES):
        shutil.copy(path, tmp_path / f"{number}_{path.name}")
    done = subprocess.run([python, "-m", "compileall", "-q", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
