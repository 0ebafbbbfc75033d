"""Tables of the keys of recipes, machines, datasets, models and evaluations, written between the markers of a page.

`<!-- keys of Run -->` marks a table of every key of the class `Run`, `<!-- keys of Phase: steps, optimizer -->` for one of
the keys named. A page groups the keys as it likes; each key has to be in exactly one table.
"""

import json
import re
from typing import Any

from relm.recipes.datasets import Dataset
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.evaluation.reference_runs import ReferenceRuns
from relm.recipes.machine.machines import Machine
from relm.recipes.published_models import PretrainedModel
from relm.recipes.recipe import Recipe

FILES = {
    "recipes": Recipe,
    "recipes/data": Dataset,
    "recipes/models": PretrainedModel,
    "recipes/evaluations": PublishedTest,
    "recipes/machines": Machine,
    "recipes/reference_runs": ReferenceRuns,
}
"""Maps a folder to the class of its YAML files."""
END = "<!-- end of keys -->"
MARKER = re.compile(rf"<!-- keys of (\w+)(?:: ([\w, ]+))? -->\n.*?{END}", re.S)
HEADING = re.compile(r"^##+ (.+)$", re.M)  # a single # begins the examples

Schema = dict[str, Any]


def read_schemas() -> dict[str, Schema]:
    """Return the JSON Schema of every class that the files use, by the class's name."""
    schemas: dict[str, Schema] = {}
    for kind in FILES.values():
        schema = kind.model_json_schema()
        schemas |= {kind.__name__: schema, **schema.get("$defs", {})}
    return {name: schema for name, schema in schemas.items() if "properties" in schema}


def write_key_tables(page: str) -> str:
    """Return the page with the table of each marker replaced by a new one.

    Raises:
        ValueError: a key is in no table or in two, or a marker names a class or key that does not exist.
    """
    schemas, headings = read_schemas(), find_headings(page)
    require_each_key_once(schemas, [read_marker(match, schemas) for match in MARKER.finditer(page)])

    def write(match: re.Match[str]) -> str:
        name, keys = read_marker(match, schemas)
        first_line = match.group().partition("\n")[0]
        return "\n".join([first_line, "", *format_table(schemas, name, keys, headings), "", END])

    return MARKER.sub(write, page)


def read_marker(match: re.Match[str], schemas: dict[str, Schema]) -> tuple[str, list[str]]:
    """Return the class that a marker names, and the keys: those after the colon, or all."""
    name, keys = match.groups()
    if name not in schemas:
        raise ValueError(f"keys of {name}: no class of that name; expected one of {', '.join(sorted(schemas))}")
    return name, [key.strip() for key in keys.split(",")] if keys else list(schemas[name]["properties"])


def require_each_key_once(schemas: dict[str, Schema], markers: list[tuple[str, list[str]]]) -> None:
    """Raise a ValueError that names the keys which stand in no table, in two, or do not exist."""
    found = [f"{name}.{key}" for name, keys in markers for key in keys]
    expected = [f"{name}.{key}" for name, schema in schemas.items() for key in schema["properties"]]
    faults = {
        "in no table": sorted({*expected} - {*found}),
        "unknown": sorted({*found} - {*expected}),
        "in two tables": sorted({key for key in found if found.count(key) > 1}),
    }
    if any(faults.values()):
        raise ValueError("; ".join(f"{fault}: {', '.join(keys)}" for fault, keys in faults.items() if keys))


def find_headings(page: str) -> dict[str, str]:
    """Return the heading above the first table of each class."""
    return {
        match.group(1): HEADING.findall(page[: match.start()])[-1]
        for match in reversed(list(MARKER.finditer(page)))
        if HEADING.search(page[: match.start()])
    }


def format_anchor(heading: str) -> str:
    """Return the address that GitHub gives a heading within its page.

    >>> format_anchor("T5, mT5: `head_size`")
    't5-mt5-head_size'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def format_table(schemas: dict[str, Schema], name: str, keys: list[str], headings: dict[str, str]) -> list[str]:
    """Return the lines of a Markdown table of these keys of a class."""
    schema, rows = schemas[name], ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for key in keys:
        value = schema["properties"][key]
        cells = [
            f"`{key}`",
            format_type(value, headings),
            format_default(value, key in schema.get("required", [])),
            format_meaning(value, schemas),
        ]
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return rows


def format_default(value: Schema, required: bool) -> str:
    """Return a key's default as YAML; empty for a section, whose keys have their own defaults."""
    if required:
        return "required"
    default = value.get("default")
    return "" if isinstance(default, dict) or "default" not in value else f"`{json.dumps(default)}`".replace('"', "")


def format_meaning(value: Schema, schemas: dict[str, Schema]) -> str:
    """Return a key's sentence on one line, with one sentence for each value that it explains, set as code.

    A key whose sentence is its section's has none in the schema.
    """
    text = value.get("description") or schemas.get(str(value.get("$ref")).rsplit("/", 1)[-1], {}).get("description", "")
    text = " ".join(text.split())
    for option in map(str, list_options(value)):
        text = re.sub(rf"(^|; |\. |, | and )({re.escape(option)})(?=[:,;]| and )", r"\1`\2`", text)
    return re.sub(r"; (`\w+`:)", r". \1", text)


def list_options(value: Schema) -> list[Any]:
    """Return the values that a key may have, where they are listed."""
    nested = [option for part in value.get("anyOf", []) for option in list_options(part)]
    return [*value.get("enum", []), *nested, *(["true", "false"] if value.get("type") == "boolean" else [])]


def format_type(value: Schema, headings: dict[str, str]) -> str:
    """Return the values that a key takes."""
    if "enum" in value:
        return ", ".join(f"`{option}`" for option in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if options := value.get("anyOf") or value.get("oneOf"):
        return " or ".join(dict.fromkeys(format_type(option, headings) for option in options))
    if "$ref" in value:
        heading = headings[value["$ref"].rsplit("/", 1)[-1]]
        return f"[{heading}](#{format_anchor(heading)})"
    if value.get("type") == "array" and "items" in value:
        return f"list of {format_type(value['items'], headings)}"
    values = value.get("additionalProperties") or next(iter(value.get("patternProperties", {}).values()), None)
    if value.get("type") == "object" and isinstance(values, dict):
        return f"name: {format_type(values, headings)}"
    return str(value.get("type", "list")).replace("object", "mapping").replace("array", "list").replace("null", "`null`")
