"""The JSON Schemas for editors are those of the code, and accept what the code accepts."""

from pathlib import Path

import jsonschema
import pytest

from relm.artifact import read_json
from relm.recipes.section import read_yaml
from relm.reporting.json_schema import KINDS, schema_of, write_schemas


def test_the_schemas_in_envs_are_current(tmp_path: Path, checkout: Path) -> None:
    write_schemas(tmp_path)
    for name in KINDS:
        shipped = checkout / "envs" / f"{name}.schema.json"
        assert shipped.read_bytes() == (tmp_path / shipped.name).read_bytes(), "run `make schema`"


@pytest.mark.parametrize(("kind", "pattern"), [("recipe", "*.yaml"), ("dataset", "data/*.yaml"), ("model", "models/*.yaml")])
def test_every_shipped_file_fits_its_schema(kind: str, pattern: str, checkout: Path) -> None:
    schema = read_json(checkout / "envs" / f"{kind}.schema.json")
    files = sorted((checkout / "recipes").glob(pattern))
    assert files
    for path in files:
        jsonschema.validate(read_yaml(path), schema)  # not by PyYAML, to which the key `on` is true


def test_an_unknown_key_does_not_fit() -> None:
    with pytest.raises(jsonschema.ValidationError, match="Additional properties"):
        jsonschema.validate({"extends": "quickstart", "learning": 1}, schema_of(KINDS["recipe"]))


def test_every_key_has_a_sentence() -> None:
    for kind in KINDS.values():
        schema = schema_of(kind)
        for name, section in {"": schema, **schema.get("$defs", {})}.items():
            for key, value in section.get("properties", {}).items():
                assert value.get("description") or "$ref" in value, f"{name}.{key}"
