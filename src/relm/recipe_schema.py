"""The JSON Schemas that editors use to complete and check recipes, generated from the classes that read them."""

from pathlib import Path

from relm.artifact import write_json
from relm.catalogue import Dataset, PretrainedModel
from relm.recipe import Recipe
from relm.section import Section

KINDS: dict[str, type[Section]] = {"recipe": Recipe, "dataset": Dataset, "model": PretrainedModel}


def schema_of(kind: type[Section]) -> dict[str, object]:
    """The JSON Schema of one kind of YAML file; a recipe may also name another one that it `extends`."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **kind.model_json_schema()}
    if kind is Recipe:
        extends = {"type": "string", "description": "Name of a recipe whose keys this one lays its own over."}
        schema["properties"] = {"extends": extends, **schema["properties"]}
        # What is missing here may stand in the recipe below.
        schema["if"], schema["then"] = {"not": {"required": ["extends"]}}, {"required": schema.pop("required")}
    return schema


def write_schemas(folder: Path) -> str:
    """Write `recipe.schema.json`, `dataset.schema.json` and `model.schema.json` into a folder."""
    for name, kind in KINDS.items():
        write_json(folder / f"{name}.schema.json", schema_of(kind))
    return f"wrote {', '.join(f'{name}.schema.json' for name in KINDS)} into {folder}"
