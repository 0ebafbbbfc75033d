"""Write the parts of the documentation that follow from code or data: `python docs/generate.py [--check]`.

The rule graph in README.md is Snakemake's own, without the edges that others imply. The keys in docs/recipes.md are those
of the classes of recipes, datasets, models and evaluations (key_tables.py). The compiled programs in docs/tpu.md are those of
docs/compiled.json, the comparisons in docs/trust.md those of docs/oracles.json, the rows of docs/where-it-ran.md those of
docs/where-it-ran.yaml. Each part stands between two marker lines.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import networkx
from key_tables import write_key_tables
from where_it_ran import format_rows, read_rows

from relm.forecast.compilation.compiling import HELD_OUT
from relm.reporting.oracles import format_difference, read_oracles
from relm.training.machine.compile_record import read_shipped

CHECKOUT = Path(__file__).resolve().parent.parent
LABELS = {
    "download_data": "download {dataset}",
    "extract": "extract {shard}",
    "train_tokenizer": "train tokenizer",
    "pregenerate": "pregenerate {shard}",
    "manifest": "manifest {dataset}",
    "pretrain": "pretrain {phase}",
    "evaluate": "evaluate {task}",
    "publish": "publish: results/NAME",
}


def read_rule_graph() -> "networkx.DiGraph[str]":
    """Return Snakemake's graph of the quickstart's rules."""
    command = [str(Path(sys.executable).parent / "snakemake"), "--rulegraph", "mermaid-js", "--forceall", "results/quickstart"]
    text = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    names = dict(re.findall(r"^\t(id\d+)\[(\w+)\]", text, re.M))
    edges = [(names[a], names[b]) for a, b in re.findall(r"^\t(id\d+) --> (id\d+)", text, re.M)]
    return networkx.transitive_reduction(networkx.DiGraph(edges))


def format_rule_graph() -> str:
    """Return the graph as a Mermaid flowchart, in an order that depends only on the graph."""
    graph = read_rule_graph()
    order = list(networkx.lexicographical_topological_sort(graph))
    nodes = [f'  {rule}["{LABELS.get(rule, rule)}"]' for rule in order]
    edges = [f"  {a} --> {b}" for a in order for b in order if graph.has_edge(a, b)]
    return "\n".join(["```mermaid", "flowchart LR", *nodes, *edges, "```"])


def format_compiled_programs() -> str:
    """Return the table of the runs' programs with the TPU compiler's figures, from docs/compiled.json."""
    shipped = read_shipped()
    rows = ["| run | program | HBM, GiB | FLOPs | bytes | all-reduces | sha256 |", "|---|---|---|---|---|---|---|"]
    for row in sorted(shipped.rows, key=lambda row: (row.name == HELD_OUT, row.run)):
        found = shipped.programs[row.key]
        if found.memory is None:
            cells = [f"refused: {found.refusal.used} of {found.refusal.capacity}" if found.refusal else "", "", "", ""]
        else:
            size = f"{found.memory.peak / 2**30:.1f} of {found.memory.capacity / 2**30:.1f}"
            reductions = found.operations.get("all-reduce", 0)
            cells = [size, f"{found.flops:.3g}", f"{found.bytes_accessed:.3g}", f"{reductions}"]
        rows.append(f"| `{row.run}` | {row.phase}, {row.name} | {' | '.join(cells)} | `{found.program[:12]}` |")
    return "\n".join(rows)


def format_oracles() -> str:
    """Return the table of the comparisons with originals, from docs/oracles.json."""
    rows = ["| original | recipes | steps | loss | gradient norm | weights | |", "|---|---|---|---|---|---|---|"]
    for oracle in read_oracles():
        names = ", ".join(f"`{name}`" for name in oracle.recipes)
        figures = [format_difference(value) for value in (oracle.loss, oracle.gradient_norm, oracle.weights)]
        cells = [f"{oracle.original} at {oracle.commit[:8]}", names, str(oracle.steps), *figures, oracle.note]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def replace_part(page: str, name: str, write: Callable[[], str]) -> str:
    """Return `page` with the text between the two markers of a part replaced by a new one."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{write()}\n\n{end}{rest.partition(end)[2]}"


PAGES: dict[str, Callable[[str], str]] = {
    "README.md": partial(replace_part, name="rule graph", write=format_rule_graph),
    "docs/trust.md": partial(replace_part, name="oracles", write=format_oracles),
    "docs/tpu.md": partial(replace_part, name="compiled programs", write=format_compiled_programs),
    "docs/recipes.md": write_key_tables,
    "docs/where-it-ran.md": partial(replace_part, name="where it ran", write=lambda: format_rows(read_rows())),
}


def main() -> None:
    for file, write in PAGES.items():
        path = CHECKOUT / file
        before = path.read_text()
        after = write(before)
        if "--check" in sys.argv and after != before:
            sys.exit(f"{file} is not current; run `python docs/generate.py`")
        path.write_text(after)


if __name__ == "__main__":
    main()
