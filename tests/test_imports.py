"""Imports run one way, down the list of packages in CONTRIBUTING.md, so there is no cycle; torch_xla stays where the TPU is."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import relm
from relm.plan.run_jobs import list_jobs
from relm.recipes.project import Project
from relm.steps import list_steps

PACKAGE = Path(relm.__file__).parent
# From what people call to what everything rests on; each may import what comes after it.
ORDER = [
    "cli",
    "steps",
    "graph",
    "cleaning",
    "terminal",
    "cluster",
    "reporting",
    "provenance",
    "containers",
    "forecast",
    "replay",
    "evaluation",
    "training",
    "devices",
    "models",
    "examples",
    "corpus",
    "plan",
    "recipes",
    "progress",
    "json_shapes",
    "artifact",
    "limits",
    "formatting",
    "errors",
]


def imports_of(path: Path) -> Iterator[str]:
    """Yield the dotted name of each module that a file imports, wherever in it."""
    yield from imports_of_tree(ast.parse(path.read_text(encoding="utf-8")))


def imports_of_tree(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted name of each module that code imports, absolutely."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"a relative import: {node.module}"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> dict[str, Path]:
    """Dotted name -> file, of the whole package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("relm", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> str:
    """The package, or module, right below `relm` that a module belongs to; of relm itself, an empty text."""
    return module.split(".")[1] if "." in module else ""


def test_every_package_has_its_place_in_the_order() -> None:
    assert {package_of(module) for module in modules()} - {"", "__main__"} == set(ORDER)
    contributing = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    positions = [contributing.index(f"`{name}.py`" if (PACKAGE / f"{name}.py").exists() else f"| `{name}/`") for name in ORDER]
    assert positions == sorted(positions), "CONTRIBUTING.md lists them in another order"


def test_imports_run_down_the_order() -> None:
    known = modules()
    wrong = [
        f"{module} imports {imported}"
        for module, path in known.items()
        for imported in imports_of(path)
        if imported in known and package_of(module) in ORDER and package_of(imported) in ORDER
        if ORDER.index(package_of(imported)) < ORDER.index(package_of(module))
    ]
    assert wrong == []


FORECASTS = {"report", "publish"}
"""Jobs that describe a run: a report quotes what a compiler forecast, and what is published is checked like any folder."""


def test_jobs_of_a_run_need_neither_forecast_nor_replay() -> None:
    known = modules()
    graph = {module: set(imports_of(path)) & known.keys() for module, path in known.items()}
    plan, steps, wrong = Project().plan("quickstart"), list_steps(), []
    for step in sorted({job.step for job in list_jobs(plan)} - FORECASTS):
        job = steps[step].job
        reached = set(imports_of_tree(ast.parse(inspect.getsource(getattr(job, "func", job))))) & known.keys()
        while more := set().union(*(graph[module] for module in reached)) - reached:
            reached |= more
        wrong += [f"{step}: {module}" for module in sorted(reached) if package_of(module) in ("forecast", "replay")]
    assert wrong == []


def test_models_import_nothing_else_of_the_package() -> None:
    wrong = [
        f"{path.name} imports {imported}"
        for path in (PACKAGE / "models").rglob("*.py")
        for imported in imports_of(path)
        if imported.split(".")[0] == "relm" and not imported.startswith("relm.models")
    ]
    assert wrong == []


def test_torch_xla_is_imported_only_by_the_tpu_device_and_the_tracer() -> None:
    users = {
        module for module, path in modules().items() for imported in imports_of(path) if imported.split(".")[0] == "torch_xla"
    }
    assert {user for user in users if not user.startswith("relm.devices.xla")} <= {"relm.forecast.compilation.tracing"}
