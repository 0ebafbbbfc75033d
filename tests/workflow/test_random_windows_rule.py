"""The rule that evaluates random windows is there where a recipe asks for it, and asks for what the recipe says."""

import json
import shlex

from relm.recipes.identity import REVISIONS
from small_project import Commands


def test_random_windows_are_evaluated_where_a_recipe_asks_for_them(project: Commands) -> None:
    assert "random_windows.json" not in project.snakemake("results/tiny", "--dry-run").stdout
    (project.folder / "recipes" / "windows.yaml").write_text(
        "extends: tiny\nevaluate: [random_windows]\nrandom_windows: {batches: 7, seed: 3}\n"
    )
    assert project.jobs("results/windows")["evaluate"] == 1
    shown = project.snakemake("results/windows", "--dry-run", "--printshellcmds").stdout
    (command,) = [line for line in shown.splitlines() if "relm random-windows" in line]
    words = shlex.split(command)
    assert json.loads(words[words.index("--job") + 1]) == {
        "evaluation": "random_windows",
        "revision": REVISIONS["evaluation"],
        "context": 32,
        "batch_size": 4,
        "options": {"batches": 7, "seed": 3},
    }
