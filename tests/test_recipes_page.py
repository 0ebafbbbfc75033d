"""Every example of a recipe in the documentation loads; docs/recipes.md explains every key once, below an example."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from relm.recipes.datasets import load_dataset
from relm.recipes.evaluation.evaluations import EVALUATIONS, HARNESS
from relm.recipes.evaluation.published_tests import load_test
from relm.recipes.evaluation.reference_runs import load_reference_runs
from relm.recipes.machine.machines import load_machine
from relm.recipes.project import Project
from relm.recipes.published_models import load_model
from relm.recipes.recipe import load_recipe
from relm.recipes.section import Section, read_extended, read_yaml
from small_project import CHECKOUT

PAGE = (CHECKOUT / "docs" / "recipes.md").read_text()
PAGES = "".join(path.read_text() for path in sorted((CHECKOUT / "docs").glob("*.md")))
EXAMPLE = re.compile(r"^```yaml\n# (recipes/\S+\.yaml)\n(.*?)^```$", re.M | re.S)
EXAMPLES = dict(EXAMPLE.findall(PAGES))
LOADERS = {
    "recipes": load_recipe,
    "recipes/data": load_dataset,
    "recipes/models": load_model,
    "recipes/evaluations": load_test,
    "recipes/machines": load_machine,
    "recipes/reference_runs": lambda path: load_reference_runs(path).content,
}
LINKS_TO_FILES = {
    "dataset": "data",
    "from_model": "models",
    "init_from": "models",
    "expect_reference": "models",
    "reference_runs": "reference_runs",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped recipes, and every example of the page saved where its first line says."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(CHECKOUT / "recipes", folder / "recipes")
    for path, text in EXAMPLES.items():
        assert not (folder / path).exists(), f"{path} is a shipped file; give the example another name"
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def key_tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that writes the tables."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "docs"))
    sys.modules.pop("key_tables", None)
    import key_tables

    return key_tables


def load_example(folder: Path, path: str) -> Any:
    return LOADERS[path.rpartition("/")[0]](folder / path)


def given_keys(section: Any, content: Any) -> Iterator[tuple[str, str]]:
    """Yield class and name of each key that `content`, from which `section` was loaded, sets."""
    if isinstance(section, Section):
        for key, value in content.items():
            yield type(section).__name__, key
            yield from given_keys(getattr(section, key, None), value)
    elif isinstance(section, Mapping):
        for key, value in content.items():
            yield from given_keys(section[key], value)
    elif isinstance(section, list):
        for one, value in zip(section, content, strict=True):
            yield from given_keys(one, value)


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_loads_and_names_files_that_exist(path: str, folder: Path) -> None:
    load_example(folder, path)
    content = read_extended(folder / path)
    for key, kind in LINKS_TO_FILES.items():
        for name in re.findall(rf"'{key}': '([^']+)'", repr(content)):
            assert (folder / "recipes" / kind / f"{name}.yaml").exists(), f"{key}: {name}"
    for task in content.get("evaluate", []):
        known = task in EVALUATIONS or task.startswith(HARNESS)
        assert known or (folder / "recipes" / "evaluations" / f"{task}.yaml").exists(), task


@pytest.mark.parametrize("path", [path for path in EXAMPLES if re.fullmatch(r"recipes/[^/]+", path)])
def test_an_example_of_a_recipe_can_be_planned_on_its_machine_and_those_of_on(path: str, folder: Path) -> None:
    project, name = Project(folder), Path(path).stem
    for machine in project.plan(name).recipe.on:
        assert project.plan(f"{name}@{machine}").machine == project.machine(machine, path)


def test_every_yaml_block_is_an_example() -> None:
    assert PAGES.count("```yaml\n") == len(EXAMPLES)


def test_each_section_with_keys_has_an_example_that_sets_one_of_each_table(folder: Path, key_tables: ModuleType) -> None:
    schemas = key_tables.read_schemas()
    for part in re.split(r"^(?=##+ )", PAGE, flags=re.M):
        heading = part.partition("\n")[0]
        given = {
            key
            for path in dict(EXAMPLE.findall(part))
            for key in given_keys(load_example(folder, path), read_yaml(folder / path))
        }
        for match in key_tables.MARKER.finditer(part):
            name, keys = key_tables.read_marker(match, schemas)
            assert given & {(name, key) for key in keys}, f"{heading}: no example sets a key of the table of {name}"


def test_each_key_of_every_class_is_in_exactly_one_table(key_tables: ModuleType) -> None:
    assert key_tables.write_key_tables(PAGE) == PAGE
    with pytest.raises(ValueError, match=r"^in no table: Phase\.precision$"):
        key_tables.write_key_tables(PAGE.replace("keys of Phase: precision, ", "keys of Phase: "))
    with pytest.raises(ValueError, match=r"^in two tables: Phase\.precision$"):
        key_tables.write_key_tables(PAGE.replace("keys of Phase: objective, ", "keys of Phase: objective, precision, "))
    with pytest.raises(ValueError, match=r"^in no table: Paper\.key, .*; unknown: Paper\.kind$"):
        key_tables.write_key_tables(PAGE.replace("keys of Paper -->", "keys of Paper: kind -->"))
    with pytest.raises(ValueError, match="keys of Papers: no class of that name"):
        key_tables.write_key_tables(PAGE.replace("keys of Paper -->", "keys of Papers -->"))


def test_every_row_of_a_table_has_the_cells_of_its_header() -> None:
    outside_code = re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)
    for block in re.findall(r"(?:^\|.*\n)+", outside_code, re.M):
        rows = block.splitlines()
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, rows[0]
    lines = outside_code.splitlines()
    for before, line in pairwise(lines):
        assert not before.startswith("|") or line.startswith("|") or not line.strip(), f"a row goes on in a second line: {line}"


def test_every_link_within_the_page_leads_to_a_heading(key_tables: ModuleType) -> None:
    anchors = [key_tables.format_anchor(heading) for heading in key_tables.HEADING.findall(PAGE)]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= set(anchors)
