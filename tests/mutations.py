"""Draw mutations of the package, and see which of them the tests find: `.venv/bin/python tests/mutations.py run --rows 1-10`.

`data/mutations.json` lists them. A row names a function and a segment of its source, so it survives moved lines and files.
It is gone where no function of that name has the segment exactly once. `draw` wrote the list, once.
"""

import argparse
import ast
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
SOURCE, LIST = Path("src/relm"), CHECKOUT / "tests" / "data" / "mutations.json"
ROWS, FEWEST, SEED, SECONDS = 100, 2, 2026, 3600
TESTS = {(): "test_[aflc]*.py", ("graph",): "workflow/test_[grv]*.py"}  # of packages without a folder of tests; (): the root
PAIRS = [(ast.Eq, ast.NotEq), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.In, ast.NotIn), (ast.Is, ast.IsNot)]
PAIRS += [(ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.And, ast.Or)]
OTHER = dict(PAIRS) | {second: first for first, second in PAIRS}


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the qualified name and the node of each function, nested ones included."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if isinstance(node, ast.FunctionDef | ast.ClassDef) else prefix)


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Yield the kind, the changed node and its new source, for each mutation of one node."""
    changed, texts = copy.copy(node), [getattr(part, "value", None) for part in ast.walk(node)]
    if isinstance(changed, ast.Compare) and len(changed.ops) == 1:
        changed.ops = [OTHER[type(changed.ops[0])]()]
        yield "comparison", node, f"({ast.unparse(changed)})"
    if isinstance(changed, ast.BinOp | ast.BoolOp) and type(changed.op) in OTHER and not any(isinstance(t, str) for t in texts):
        changed.op = OTHER[type(changed.op)]()
        yield "arithmetic" if isinstance(node, ast.BinOp) else "boolean", node, f"({ast.unparse(changed)})"
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        flag = isinstance(node.value, bool)
        yield ("boolean", node, str(not node.value)) if flag else ("constant", node, str(node.value + 1))
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "negated", node.test, f"(not ({ast.unparse(node.test)}))"
    if isinstance(node, ast.AugAssign | ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield "removed", node, "pass"
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield "removed", node, "return None"


def mutations_of(path: Path) -> Iterator[dict[str, str]]:
    """Yield every mutation inside the functions of a file, with the smallest segment that stands once in its function."""
    source = path.read_text()
    for name, function in functions(ast.parse(source)):
        whole, stack = ast.get_source_segment(source, function) or "", [[statement] for statement in function.body]
        while stack:
            chain = stack.pop()
            if isinstance(chain[-1], ast.FunctionDef | ast.ClassDef | ast.JoinedStr):
                continue
            stack += [[*chain, child] for child in ast.iter_child_nodes(chain[-1])]
            for kind, node, new in changes(chain[-1]):
                old, *around = [ast.get_source_segment(source, part) or "" for part in (node, *reversed(chain))]
                before = next((text for text in (old, *around) if whole.count(text) == 1 == text.count(old)), None)
                if before and before.count("\n") < 3:
                    values = [str(path.relative_to(CHECKOUT)), name, kind, before, before.replace(old, new)]
                    yield dict(zip(["path", "function", "kind", "before", "after"], values, strict=True))


def mutate(row: dict[str, str], root: Path) -> tuple[Path, str] | None:
    """Return the file and its source after the mutation of a row, or None where its segment is gone."""
    for path in sorted((root / SOURCE).rglob("*.py"), key=lambda path: (path != root / row["path"], path)):
        source = path.read_text()
        for name, function in functions(ast.parse(source)):
            whole = ast.get_source_segment(source, function) or ""
            if name == row["function"] and whole.count(row["before"]) == 1 and source.count(whole) == 1:
                return path, source.replace(whole, whole.replace(row["before"], row["after"]))
    return None


def draw() -> list[dict[str, str]]:
    """Return the rows: as many of each package as its share of the lines, no function twice, each file still importable."""
    rng, packages, rows = random.Random(SEED), defaultdict(list), {}
    for path in sorted((CHECKOUT / SOURCE).rglob("*.py")):
        packages[path.relative_to(CHECKOUT / SOURCE).parts[:-1][:1]].append(path)
    lines = {name: sum(path.read_text().count("\n") for path in paths) for name, paths in packages.items()}
    shares = {name: ROWS * count / sum(lines.values()) for name, count in lines.items()}
    wanted = {name: max(FEWEST, int(share)) for name, share in shares.items()}
    for name in sorted(shares, key=lambda name: wanted[name] - shares[name])[: ROWS - sum(wanted.values())]:
        wanted[name] += 1
    for name, paths in packages.items():
        found = [row for path in paths for row in mutations_of(path)]
        while wanted[name]:
            kind = rng.choice(sorted({row["kind"] for row in found}))
            row = rng.choice([row for row in found if row["kind"] == kind])
            if (changed := mutate(row, CHECKOUT)) and (row["path"], row["function"]) not in rows:
                name_of_module = row["path"][4:-3].replace("/", ".")
                exec(compile(changed[1], row["path"], "exec"), {"__name__": name_of_module})
                rows[row["path"], row["function"]] = row
                wanted[name] -= 1
    return list(rows.values())


def run(row: dict[str, str], root: Path, tests: str | None) -> str:
    """Return what the tests of its package say of a row: found, with the test that found it, survived, or gone."""
    subprocess.run(["git", "checkout", "-q", "."], cwd=root, check=True)
    if not (found := mutate(row, root)):
        return "gone"
    found[0].write_text(found[1])
    package = found[0].relative_to(root / SOURCE).parts[:-1][:1]
    files = (root / "tests").glob(TESTS.get(package) or f"{package[0]}/**/test_*.py")
    # Those that name the module first: most mutations are found there. XLA's need another environment.
    files = sorted(files, key=lambda file: (found[0].stem not in file.read_text(), file))
    chosen = tests.split() if tests else [file for file in files if "xla" not in file.parts]
    pytest = f"timeout {SECONDS} {sys.executable} -m pytest -xqm".split()
    command = [*pytest, "not (full or quickstart or containers or gpu)", *chosen]
    done = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root / "src")}, capture_output=True, text=True)
    first = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "no end")
    return {0: "survived", 4: "no tests", 5: "no tests"}.get(done.returncode, f"found\t{first}")


def main() -> None:
    """Draw the list, or run some of its rows in a clone of the last commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["draw", "run"])
    parser.add_argument("--rows", default=f"1-{ROWS}", help="which rows: A-B, counted from 1")
    parser.add_argument("--tests", help="tests instead of those of the package")
    options = parser.parse_args()
    if options.action == "draw":
        LIST.write_text(json.dumps(draw(), indent=1) + "\n")
        return
    first, last = map(int, options.rows.split("-"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkout"
        subprocess.run(["git", "clone", "-q", "--shared", CHECKOUT, root], check=True)
        for name in (".venv", ".venv-tpu", "../shared"):
            (root / name).symlink_to((CHECKOUT / name).resolve())
        for number, row in enumerate(json.loads(LIST.read_text())[first - 1 : last], start=first):
            print(number, row["path"], row["function"], run(row, root, options.tests), sep="\t", flush=True)


if __name__ == "__main__":
    main()
