"""The rule that evaluates random windows is there where a recipe asks for it, and asks for what the recipe says."""

from small_project import Commands


def test_random_windows_are_evaluated_where_a_recipe_asks_for_them(project: Commands) -> None:
    assert "evaluate_random_windows" not in project.jobs("results/tiny")
    (project.folder / "recipes" / "windows.yaml").write_text(
        "extends: tiny\nevaluate: [random_windows]\nrandom_windows: {batches: 7, seed: 3}\n"
    )
    assert project.jobs("results/windows")["evaluate_random_windows"] == 1
    shown = project.snakemake("results/windows", "--dry-run", "--printshellcmds").stdout
    (command,) = [line for line in shown.splitlines() if "relm random-windows" in line]
    assert "--context 32 --batch-size 4 --batches 7 --seed 3 --output" in " ".join(command.split())
