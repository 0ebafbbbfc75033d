"""Check the language of the code: what a program can see of section "Style" in CONTRIBUTING.md. `make check` runs it."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGE = CHECKOUT / "src" / "relm"
HEADLESS = {"What", "Of", "How", "Whether", "Where", "Which"}
# Names of classes that sibling models share.
SHARED_CLASSES = {"Attention", "Block", "FeedForward", "SelfAttention"}


def faults_of_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each docstring that opens with a fragment without a subject and a verb."""
    for node in ast.walk(tree):
        for text in _docstrings(node):
            words = str(text.value).split()
            if words and words[0].strip(",:;") in HEADLESS:
                yield (
                    text.lineno,
                    f"a docstring opens with {' '.join(words[:4])!r}; write a sentence with a verb, or name the data",
                )


def _docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstring of a module, class or function, and those that follow the fields of a class."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    statements = node.body if isinstance(node, ast.ClassDef | ast.Module) else node.body[:1]
    for statement in statements:
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            yield statement.value


def faults_of_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each function that is named after words, and of each call with `*places`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("in_words") and not node.name.startswith("test_"):
            yield node.lineno, f"a function is called {node.name}; name it by a verb and an object, such as format_duration"
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Name) and node.value.id == "places":
            yield node.lineno, "*places hides the arguments of a call; pass them by keyword"


def doubled_classes(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Yield a fault for each class name that two modules of the package give to different ideas."""
    locations: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASSES:
                locations[node.name].append(f"{path.relative_to(CHECKOUT)}:{node.lineno}")
    for name, found in sorted(locations.items()):
        if len(found) > 1:
            yield f"{found[0]}: class {name} is also the name of one in {', '.join(found[1:])}; give each idea its own name"


def faults() -> list[str]:
    """Return a line for each fault in the package, the tests, the benchmarks and the programs of the documentation."""
    files = sorted(
        path for folder in ("src", "tests", "benchmarks", "docs", "envs") for path in (CHECKOUT / folder).rglob("*.py")
    )
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    found = [
        f"{path.relative_to(CHECKOUT)}:{line}: {fault}"
        for path, tree in trees.items()
        for line, fault in sorted([*faults_of_docstrings(tree), *faults_of_names(tree)])
    ]
    return [*found, *doubled_classes({path: tree for path, tree in trees.items() if path.is_relative_to(PACKAGE)})]


if __name__ == "__main__":
    lines = faults()
    print("\n".join(lines) or "the language of the code is plain", file=sys.stderr if lines else sys.stdout)
    sys.exit(min(len(lines), 1))
