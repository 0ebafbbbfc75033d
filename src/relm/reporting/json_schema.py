"""JSON Schemas, generated from the classes: of recipes and the files they name, for editors, and of results."""

from pathlib import Path

from relm.artifact import write_json
from relm.evaluation.result import Result
from relm.recipes.datasets import Dataset
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.evaluation.reference_runs import ReferenceRuns
from relm.recipes.machine.machines import Machine
from relm.recipes.published_models import PretrainedModel
from relm.recipes.recipe import Recipe
from relm.recipes.section import Section

KINDS: dict[str, type[Section]] = {
    "recipe": Recipe,
    "dataset": Dataset,
    "model": PretrainedModel,
    "machine": Machine,
    "evaluation": PublishedTest,
    "reference_runs": ReferenceRuns,
    "result": Result,
}


def schema_of(kind: type[Section]) -> dict[str, object]:
    """Return the JSON Schema of one kind of file; a recipe may also have `extends`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **kind.model_json_schema()}
    if kind is Recipe:
        extends = {"type": "string", "description": "Name of a recipe whose keys this one overrides."}
        schema["properties"] = {"extends": extends, **schema["properties"]}
        # The recipe that this one extends may have the required keys.
        schema["if"], schema["then"] = {"not": {"required": ["extends"]}}, {"required": schema.pop("required")}
    return schema


def write_schemas(folder: Path) -> str:
    """Write `KIND.schema.json` for each kind into a folder."""
    for name, kind in KINDS.items():
        write_json(folder / f"{name}.schema.json", schema_of(kind))
    return f"wrote {', '.join(f'{name}.schema.json' for name in KINDS)} into {folder}"
