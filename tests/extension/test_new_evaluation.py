"""An evaluation that is declared outside the package is run by the graph as if it were one of its own."""

import json
from typing import Any

from extended_process import extended_environment, run_extended

from relm.recipes.recipe import Recipe
from relm.reporting.json_schema import schema_of
from small_project import Commands


def schema() -> dict[str, Any]:
    return schema_of(Recipe)


def test_the_graph_runs_an_evaluation_from_outside(finished_copy: Commands) -> None:
    recipe, extension = finished_copy.folder / "recipes" / "tiny.yaml", extended_environment("largest_weight", {})
    right = recipe.read_text().replace("[held_out, samples]", "[largest_weight]\nlargest_weight: {factor: 3}")
    recipe.write_text(right)
    done = finished_copy.snakemake("results/tiny", **extension)
    assert done.returncode == 0, done.stdout
    assert "rule pretrain" not in done.stdout
    result = json.loads((finished_copy.folder / "results/tiny/eval/largest_weight.json").read_text())
    assert result["figures"]["scaled"] == 3 * result["figures"]["largest"] > 0
    assert result["protocol"]["context"] == 32
    for old, new, hint in (("factor: 3", "factr: 3", "factor"), ("[largest_weight]", "[largest_weigt]", "largest_weight")):
        recipe.write_text(right.replace(old, new))
        assert f"did you mean {hint}?" in finished_copy.snakemake("results/tiny", "--dry-run", **extension).stdout


def test_its_options_are_in_the_schema() -> None:
    found = run_extended("largest_weight", schema)
    assert found["properties"]["largest_weight"]["description"] == "Options of the evaluation largest_weight."
    assert found["$defs"]["LargestWeight"]["properties"]["factor"]["exclusiveMinimum"] == 0
