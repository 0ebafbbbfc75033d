"""Write the snapshot that `test_snapshot.py` compares with: `.venv/bin/python tests/write_snapshot.py`.

`data/snapshot.json` has the facts of every shipped recipe and of its smoke twin: fingerprint, keys, paths of all products, and
each value of the resolved recipe that is not null. `data/help.txt` has the help of every command, and `data/keys.txt` every key
that a YAML file can have, with its default.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.steps import list_steps
from relm.steps.parser import Parser

CHECKOUT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data"
# The shell's own settings must not change the files.
ENVIRONMENT = {"COLUMNS": "100", "RELM_WORK": "", "PJRT_DEVICE": ""}
Facts = dict[str, Any]
# Of a dataset with more shards, the first and the last are listed.
MOST_SHARDS = 20


def collect_facts(plan: Plan) -> Facts:
    """Return everything that follows from a recipe, by dotted name."""
    facts = {"fingerprint": plan.fingerprint, "documents_key": plan.documents_job.key, "tokenizer_key": plan.tokenizer_job.key}
    facts |= {f"examples_key.{phase}": key for key, phase in plan.examples_keys.items()}
    paths = [*list_data_paths(plan), *list_model_paths(plan), *list_run_paths(plan)]
    facts |= {f"path.{role}": format_path(path, plan.run_folder) for role, path in paths}
    return facts | {f"recipe.{key}": value for key, value in flatten_value(plan.recipe.model_dump(mode="json"))}


def format_path(path: Path, run_folder: Path) -> str:
    """Return a path, with `RUN` for the run's folder if the path lies inside: then recipes of a family share the line."""
    return f"RUN/{path.relative_to(run_folder)}" if run_folder in path.parents else str(path)


def list_data_paths(plan: Plan) -> Iterator[tuple[str, Path]]:
    """Yield the role and the path of downloaded data, documents, examples and manifests."""
    shards = plan.shards if len(plan.shards) <= MOST_SHARDS else [plan.shards[0], plan.shards[-1]]
    for shard in shards if plan.dataset.files else ():
        yield f"download.data.{shard}", plan.documents_job.download(shard)
    for test in plan.tests:
        for name, path in plan.test_downloads(test).items():
            yield f"download.evaluation.{test}{'' if name == 'file' else f'.{name}'}", path
    for split in ("train", "held_out"):
        for shard in (shard for shard in shards if split in plan.documents_job.splits(shard)):
            if not plan.dataset.is_tokenized:
                yield f"documents.{shard}.{split}", plan.kept_job.documents(shard, split)
            for phase in plan.phases:
                yield f"examples.{phase}.{shard}.{split}", plan.examples(phase, shard, split)
    for phase in plan.phases:
        yield f"manifest.{phase}", plan.manifest(phase)


def list_model_paths(plan: Plan) -> Iterator[tuple[str, Path]]:
    """Yield the role and the path of each file of the tokenizer and of published weights, downloaded and as it is read."""
    recipe = plan.recipe
    named = (
        ("tokenizer", recipe.tokenizer.from_model, plan.tokenizer_model),
        ("init_from", recipe.init_from, plan.init_model),
        ("reference", recipe.expect_reference, plan.reference_model),
    )
    for role, name, model in named:
        for file in (*model.tokenizer_files, *model.weights_files) if name and model else ():
            if file in model.files:
                yield f"download.{role}.{file}", plan.model_download(name, model, file)
    yield "tokenizer", plan.tokenizer
    for phase in plan.phases:
        for path in plan.starting_weights(phase):
            yield f"starting_weights.{phase}.{path.name}", path
    for path in plan.evaluated_model("reference") if plan.reference_model else ():
        yield f"reference_weights.{path.name}", path


def list_run_paths(plan: Plan) -> Iterator[tuple[str, Path]]:
    """Yield the role and the path of the run's folder, its models and its evaluations."""
    yield "run_folder", plan.run_folder
    for phase in plan.phases:
        yield f"model.{phase}", plan.model_folder(phase)
    for weights in ("eval", "before", "reference"):
        for task, path in plan.evaluations(weights).items():
            yield f"evaluation.{weights}.{task}", path


def flatten_value(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each part of a nested value that is not null."""
    if isinstance(value, dict | list) and value:
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flatten_value(part, f"{key}.{name}" if key else str(name))
    elif value is not None:
        yield key, value


def subtract_facts(facts: Facts, base: Facts) -> Facts:
    """Return the facts that differ from the base's, with null for those that only the base has."""
    keys = {*facts, *base}
    return {key: facts.get(key) for key in keys if repr(facts.get(key)) != repr(base.get(key))}  # 1, 1.0 and True differ


def choose_base(name: str, names: list[str]) -> str | None:
    """Return the recipe from which another differs in few facts: the first of those whose names begin with the same word.

    A twin's base is that recipe's twin. The first recipe has none, and is written in full; its twin differs from it.
    """
    plain = name.removeprefix("smoke/")
    first = next(other for other in names if other.split("_")[0] == plain.split("_")[0])
    if plain == first:
        return None if plain == name else first
    return first if plain == name else f"smoke/{first}"


def format_snapshot() -> str:
    """Return the facts of all recipes and twins as JSON, one fact a line."""
    project = Project(CHECKOUT)
    names = project.names()
    facts = {name: collect_facts(project.plan(name)) for plain in names for name in (plain, f"smoke/{plain}")}
    bases = {name: choose_base(name, names) for name in facts}
    written = {
        name: {"differs_from": base, **subtract_facts(found, facts[base])} if (base := bases[name]) else found
        for name, found in facts.items()
    }
    return json.dumps(written, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def format_help() -> str:
    """Return the help of `relm` and of every `relm STEP`, concatenated."""
    top = Parser(list_steps())
    commands = next(action.choices for action in top._actions if action.dest == "step")
    assert isinstance(commands, dict)
    every: list[argparse.ArgumentParser] = [top, *commands.values()]
    return "\n\n".join(command.format_help() for command in every)


def format_keys() -> str:
    """Return FILE SECTION.KEY = DEFAULT of every key in the JSON schemas of YAML files, one a line."""
    lines = []
    for path in sorted((CHECKOUT / "envs").glob("*.schema.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        sections = {"": schema, **{f"{name}.": section for name, section in schema.get("$defs", {}).items()}}
        for name, section in sorted(sections.items()):
            for key, described in section.get("properties", {}).items():
                default = json.dumps(described["default"]) if "default" in described else "required or computed"
                lines.append(f"{path.name.partition('.')[0]} {name}{key} = {default}")
    return "\n".join(lines) + "\n"


SNAPSHOTS: dict[str, Callable[[], str]] = {"snapshot.json": format_snapshot, "help.txt": format_help, "keys.txt": format_keys}


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    for file_name, format_file in SNAPSHOTS.items():
        (DATA / file_name).write_text(format_file(), encoding="utf-8")
