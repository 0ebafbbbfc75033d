"""The rows of docs/where-it-ran.yaml agree with the repository, and no other page repeats them."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relm.cli import main
from relm.recipes.recipe import load_recipe
from small_project import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "docs"))
from where_it_ran import STATES, Row, Rows, format_rows, read_rows

ROWS = [row for rows in read_rows().values() for row in rows]
COMMANDS = sorted({command for row in ROWS for command in row.commands})
# Sentences that belong on docs/where-it-ran.md alone.
CLAIMS = re.compile(
    r"\b(?:has|have|had|was|were) (?:not|never) (?:yet )?(?:been )?(?:run|ran|tried|pulled|seen)\b(?! beside)"
    r"|\*\*(?:not|never) run\b|\bnot (?:yet )?run on\b|\bnever run on\b|\bseen no (?:such )?(?:device|TPU|GPU)"
    r"|\bno step\b[^.]*\bhas run\b|^#+ What has run where",
    re.I | re.M,
)


def read_make_targets() -> set[str]:
    text = (CHECKOUT / "Makefile").read_text()
    return {target for line in re.findall(r"^([\w./% -]+):(?!=)", text, re.M) for target in line.split()} | {"check-full"}


def require_command(command: str) -> None:
    """Fail unless the make target, test, benchmark, recipe or subcommand that a command names exists."""
    words = [word for word in shlex.split(command) if "=" not in word]
    if words[0] == "make":
        assert set(words[1:]) <= read_make_targets(), command
    elif words[:3] == ["python", "-m", "pytest"] or words[0] == "python":
        files = [word for word in words[1:] if "/" in word]
        assert files, command
        assert all((CHECKOUT / file).exists() for file in files), command
    elif words[0] == "snakemake":
        target = next(word for word in words if word.startswith("results/"))
        name = target.removeprefix("results/").removeprefix("reference/").removeprefix("smoke/")
        assert name == "NAME" or (CHECKOUT / "recipes" / f"{name}.yaml").exists(), command
    elif words[0] != "hf":  # the hub's own program
        assert words[0] == "relm", command
        with pytest.raises(SystemExit, match=r"^0$"):
            main([words[1], "--help"])


def find_markers(path: Path, name: str) -> set[str]:
    """Return the pytest markers of a test file, or of one test of it."""
    tree = ast.parse(path.read_text())
    nodes: list[ast.AST] = [tree]
    if name:
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        assert nodes, f"{path} has no test {name}"
    return {
        node.attr
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "mark"
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_what_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    require_command(command)


def test_a_command_that_names_nothing_is_found() -> None:
    for command in ("make no-such-target", "python benchmarks/none.py", "snakemake results/none", "relm none", "other"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            require_command(command)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what[:40])
def test_the_tests_of_a_row_exist_and_have_its_marker(row: Row) -> None:
    for test in row.tests:
        file, _, name = test.partition("::")
        assert (CHECKOUT / file).is_file(), test
        assert Path(file).name.startswith("test_"), test
        assert row.marker is None or row.marker in find_markers(CHECKOUT / file, name), f"{test} is not marked {row.marker}"


def test_what_has_run_has_a_test_or_says_that_nothing_repeats_it() -> None:
    for row in ROWS:
        if row.state != "not_run":
            assert (row.tests and row.commands) or "No command repeats it" in (row.note or ""), row.what


def test_a_date_is_that_of_its_commit() -> None:
    git = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ad", "--date=short"]
    complete = subprocess.run(
        ["git", "-C", str(CHECKOUT), "rev-parse", "--is-shallow-repository"], capture_output=True, text=True
    )
    if complete.stdout.strip() != "false":
        pytest.skip("the history is not here")
    for row in ROWS:
        if row.commit:
            found = subprocess.run([*git, row.commit], capture_output=True, text=True)
            assert found.stdout.strip() == row.date, f"{row.what}: {row.commit} {found.stderr}"


def test_recipes_say_the_same_of_the_devices_on_which_nothing_has_run() -> None:
    ran = {row.device for row in ROWS if row.state == "ran"}
    for path in sorted((CHECKOUT / "recipes").glob("*.yaml")):
        recipe = load_recipe(path)
        if recipe.run.device not in ran:
            assert any("has not been run" in sentence for sentence in recipe.deviations), path.name


@pytest.mark.parametrize(
    "change",
    [
        {"date": None},
        {"commit": None},
        {"commit": "not-a-commit"},
        {"date": "22 November 2026"},
        {"state": "not_run"},
        {"state": "maybe"},
        {"what": None},
    ],
)
def test_a_row_that_is_incomplete_is_refused(change: dict[str, Any]) -> None:
    row = {"what": "Training", "where": "a GPU", "state": "ran", "date": "2026-11-22", "commit": "7f3c371"}
    assert Rows.model_validate({"GPU": [row]}).root["GPU"][0].state == "ran"
    with pytest.raises(ValueError, match=r"date|commit|state|what"):
        Rows.model_validate({"GPU": [row | change]})


def test_the_table_has_a_row_of_four_cells_for_each_row() -> None:
    lines = format_rows(read_rows()).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5}
    assert len(rows) == len(ROWS) + 2 * len(read_rows())
    assert sum(any(word in line for word in STATES.values()) for line in rows) == len(ROWS)


@pytest.mark.parametrize(
    "page", sorted({*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")}), ids=lambda page: page.name
)
def test_no_other_page_repeats_it(page: Path) -> None:
    found = [match.group() for match in CLAIMS.finditer(page.read_text())]
    assert (page.name == "where-it-ran.md") == bool(found), found


@pytest.mark.parametrize(
    "page", ["README.md", "trust.md", "devices.md", "tpu.md", "containers.md", "running.md", "evaluation.md"]
)
def test_pages_link_to_it(page: str) -> None:
    path = CHECKOUT / page if page == "README.md" else CHECKOUT / "docs" / page
    assert "where-it-ran.md" in path.read_text()
