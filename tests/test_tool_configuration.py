"""The modules, files and programs that pyproject.toml and .pre-commit-config.yaml name exist."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from small_project import CHECKOUT

PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
OVERRIDES = PYPROJECT["tool"]["mypy"]["overrides"]
HOOKS = [hook for repo in yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"] for hook in repo["hooks"]]


def list_patterns() -> list[str]:
    return [pattern for override in OVERRIDES for pattern in override["module"]]


def own_module_exists(pattern: str) -> bool:
    """Return whether `src` has the module, or for PACKAGE.* the package with a module in it."""
    path = CHECKOUT / "src" / Path(*pattern.removesuffix(".*").split("."))
    if pattern.endswith(".*"):
        return (path / "__init__.py").exists() and len(list(path.rglob("*.py"))) > 1
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def list_imports() -> set[str]:
    """Return the first part of every module that a file in `src` imports."""
    return {name.partition(".")[0] for path in (CHECKOUT / "src").rglob("*.py") for name in read_imports(path)}


def read_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


@pytest.mark.parametrize("pattern", [pattern for pattern in list_patterns() if pattern.startswith("relm")])
def test_mypy_is_strict_with_modules_that_exist(pattern: str) -> None:
    assert own_module_exists(pattern)


def test_a_module_that_does_not_exist_is_found() -> None:
    assert own_module_exists("relm.errors")
    assert own_module_exists("relm.corpus.*")
    assert not own_module_exists("relm.none")
    assert not own_module_exists("relm.none.*")
    assert not own_module_exists("relm.errors.*")


def test_mypy_excuses_libraries_that_are_imported() -> None:
    foreign = {pattern.removesuffix(".*") for pattern in list_patterns() if not pattern.startswith("relm")}
    assert foreign - list_imports() == set()


def test_folders_of_the_tools_exist() -> None:
    tools = PYPROJECT["tool"]
    folders = [*tools["mypy"]["files"], *tools["ruff"]["src"], *tools["pytest"]["ini_options"]["testpaths"]]
    assert [folder for folder in folders if not (CHECKOUT / folder).is_dir()] == []
    for package, patterns in tools["setuptools"]["package-data"].items():
        assert all(list((CHECKOUT / "src" / package).glob(pattern)) for pattern in patterns), patterns


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_a_hook_names_a_program_folders_and_files_that_exist(hook: dict[str, str]) -> None:
    program, *arguments = hook["entry"].split()
    assert program.startswith(".venv/bin/")
    assert (Path(sys.executable).parent / Path(program).name).exists()
    for option, value in pairwise(arguments):
        assert option != "--output" or (CHECKOUT / value).is_dir(), value
    files = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert any(re.search(hook.get("files", ""), file) for file in files), hook.get("files")
