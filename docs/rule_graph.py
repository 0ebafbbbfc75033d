"""Draw the rule graph into README.md, as Mermaid text between its two markers: `python docs/rule_graph.py [--check]`.

The graph is Snakemake's own (`--rulegraph`), without the edges that follow from others.
"""

import re
import subprocess
import sys
from pathlib import Path

import networkx

CHECKOUT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- rule graph: begin -->", "<!-- rule graph: end -->"
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
    command = [str(Path(sys.executable).parent / "snakemake"), "--rulegraph", "mermaid-js", "results/quickstart"]
    text = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    names = dict(re.findall(r"^\t(id\d+)\[(\w+)\]", text, re.M))
    edges = [(names[a], names[b]) for a, b in re.findall(r"^\t(id\d+) --> (id\d+)", text, re.M)]
    return networkx.transitive_reduction(networkx.DiGraph(edges))


def mermaid(graph: "networkx.DiGraph[str]") -> str:
    """The graph as a Mermaid flowchart, in an order that depends on nothing but the graph."""
    order = list(networkx.lexicographical_topological_sort(graph))
    nodes = [f'  {rule}["{WORDS.get(rule, rule)}"]' for rule in order]
    edges = [f"  {a} --> {b}" for a in order for b in order if graph.has_edge(a, b)]
    return "\n".join(["```mermaid", "flowchart LR", *nodes, *edges, "```"])


def main() -> None:
    readme = CHECKOUT / "README.md"
    text = readme.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    current = f"{before}{BEGIN}\n{mermaid(rule_graph())}\n{END}{after}"
    if "--check" in sys.argv:
        sys.exit(None if current == text else "README.md: the rule graph is not current; run `python docs/rule_graph.py`")
    readme.write_text(current)


if __name__ == "__main__":
    main()
