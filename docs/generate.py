"""Write the parts of the documentation that follow from the code: `python docs/generate.py [--check]`.

The rule graph in README.md is Snakemake's own, without the edges that follow from others; the keys in docs/recipes.md are those
of the classes in `relm.recipes`, with their sentences; the compiled programs in docs/tpu.md are those of
docs/compiled.json. Each part stands between two marker lines.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx

from relm.forecast.compilation.compiling import HELD_OUT
from relm.forecast.compilation.shipped_programs import read_shipped
from relm.recipes.datasets import Dataset
from relm.recipes.evaluations import PublishedTest
from relm.recipes.published_models import PretrainedModel
from relm.recipes.recipe import Recipe
from relm.recipes.section import Section

CHECKOUT = Path(__file__).resolve().parent.parent
WORDS = {
    "download_data": "download {dataset}",
    "extract": "extract {shard}",
    "train_tokenizer": "train tokenizer",
    "pregenerate": "pregenerate {shard}",
    "manifest": "manifest {dataset}",
    "pretrain": "pretrain {phase}",
    "evaluate_held_out": "evaluate held out",
    "write_samples": "write samples",
    "publish": "publish: results/NAME",
}


def rule_graph() -> "networkx.DiGraph[str]":
    """Rules and what they need, as Snakemake sees them for the quickstart."""
    command = [str(Path(sys.executable).parent / "snakemake"), "--rulegraph", "mermaid-js", "--forceall", "results/quickstart"]
    text = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    names = dict(re.findall(r"^\t(id\d+)\[(\w+)\]", text, re.M))
    edges = [(names[a], names[b]) for a, b in re.findall(r"^\t(id\d+) --> (id\d+)", text, re.M)]
    return networkx.transitive_reduction(networkx.DiGraph(edges))


def mermaid() -> str:
    """The graph as a Mermaid flowchart, in an order that depends on nothing but the graph."""
    graph = rule_graph()
    order = list(networkx.lexicographical_topological_sort(graph))
    nodes = [f'  {rule}["{WORDS.get(rule, rule)}"]' for rule in order]
    edges = [f"  {a} --> {b}" for a in order for b in order if graph.has_edge(a, b)]
    return "\n".join(["```mermaid", "flowchart LR", *nodes, *edges, "```"])


def type_in_words(schema: dict[str, Any]) -> str:
    """What a key takes, from its JSON Schema."""
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(type_in_words(option) for option in options))
    if "$ref" in schema:
        return f"[{schema['$ref'].rsplit('/', 1)[-1]}](#{schema['$ref'].rsplit('/', 1)[-1].lower()})"
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {type_in_words(schema['items'])}"
    values = schema.get("additionalProperties") or next(iter(schema.get("patternProperties", {}).values()), None)
    if schema.get("type") == "object" and isinstance(values, dict):
        return f"name: {type_in_words(values)}"
    return str(schema.get("type", "list")).replace("object", "mapping")


def key_rows(schema: dict[str, Any]) -> list[str]:
    """A table of a section's keys."""
    rows = ["| key | takes | default | |", "|---|---|---|---|"]
    for key, value in schema["properties"].items():
        default = "required" if key in schema.get("required", []) else json.dumps(value.get("default", ""))
        shown = "" if default.startswith(("{", '""')) else default.replace('"', "")
        rows.append(f"| `{key}` | {type_in_words(value)} | {shown} | {value.get('description', '')} |")
    return rows


def keys(kind: type[Section]) -> str:
    """All keys of one kind of file, section by section."""
    schema = kind.model_json_schema()
    lines = key_rows(schema)
    for name, section in schema.get("$defs", {}).items():
        if "properties" in section:
            lines += ["", f"#### {name}", "", section.get("description", ""), "", *key_rows(section)]
    return "\n".join(lines)


def compiled_programs() -> str:
    """What the TPU's compiler made of the recipes' programs, from docs/compiled.json."""
    shipped = read_shipped()
    rows = ["| recipe | program | HBM, GiB | FLOPs | bytes | sums over devices | sha256 |", "|---|---|---|---|---|---|---|"]
    for row in sorted(shipped.rows, key=lambda row: (row.name == HELD_OUT, row.recipe)):
        found = shipped.of(row)
        if found is None:
            cells = ["not compiled yet", "", "", ""]
        elif found.memory is None:
            cells = [f"refused: {found.refusal.used} of {found.refusal.capacity}" if found.refusal else "", "", "", ""]
        else:
            size = f"{found.memory.peak / 2**30:.1f} of {found.memory.capacity / 2**30:.1f}"
            sums = found.operations.get("all-reduce", 0)
            cells = [size, f"{found.flops:.3g}", f"{found.bytes_accessed:.3g}", f"{sums}"]
        rows.append(f"| `{row.recipe}` | {row.phase}, {row.name} | {' | '.join(cells)} | `{row.program[:12]}` |")
    return "\n".join(rows)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"rule graph": mermaid},
    "docs/tpu.md": {"compiled programs": compiled_programs},
    "docs/recipes.md": {
        "recipe keys": lambda: keys(Recipe),
        "dataset keys": lambda: keys(Dataset),
        "model keys": lambda: keys(PretrainedModel),
        "evaluation keys": lambda: keys(PublishedTest),
    },
}


def with_part(text: str, name: str, content: str) -> str:
    """`text` with what stands between the two markers of a part replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def main() -> None:
    for file, parts in PARTS.items():
        path = CHECKOUT / file
        text = current = path.read_text()
        for name, write in parts.items():
            current = with_part(current, name, write())
        if "--check" in sys.argv and current != text:
            sys.exit(f"{file} is not current; run `python docs/generate.py`")
        path.write_text(current)


if __name__ == "__main__":
    main()
