"""A project: the recipes of a folder, the plan of each, and the job of each key."""

import contextlib
import difflib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from relm.errors import RelmError
from relm.recipes.curves import Curve, load_curve, require_band
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluation.evaluations import HARNESS, names_in_recipes, task_of
from relm.recipes.evaluation.published_tests import PublishedTest, load_test
from relm.recipes.evaluation.reference_runs import LoadedRuns, load_reference_runs
from relm.recipes.jobs import DataJob
from relm.recipes.machine.machines import (
    Machine,
    describe_deviation,
    find_own_machine,
    load_machine,
    place_on,
    require_division,
    require_ipus,
)
from relm.recipes.names_in_recipe import NamedFile, list_names, names_test, value_at
from relm.recipes.parts_of_recipe import require_sound_parts
from relm.recipes.plan import Plan
from relm.recipes.published_models import PretrainedModel, load_model
from relm.recipes.recipe import Recipe, load_recipe
from relm.recipes.run_name import SMOKE, RunName, describe_misnamed, is_recipe_name
from relm.recipes.section import NAME, raise_together, read_extended
from relm.recipes.smoke import smoke_test, smoke_twin
from relm.recipes.variation import Change, format_value, require_effect, require_short_name, vary_recipe

J = TypeVar("J", bound=DataJob)
T = TypeVar("T")
# Kind of the job, its key, and the dataset in the path.
JobKey = tuple[type, str, str | None]


class Project:
    """A folder with `recipes/`, and the plans of the recipes in it."""

    def __init__(self, root: Path = Path()) -> None:
        self.recipes = root / "recipes"
        # Settings of `run` that apply to every run, and names of varied runs whose jobs are to be found.
        self.execution: tuple[str, ...] = ()
        self.varied: tuple[str, ...] = ()
        self._plans: dict[str, Plan] = {}
        self._files: dict[Path, Any] = {}
        self._jobs: dict[JobKey, DataJob] = {}
        self._indexed: set[str] = set()

    def planned(self) -> list[str]:
        """Return the names of the runs that were planned so far."""
        return list(self._plans)

    def names(self) -> list[str]:
        """Return the sorted names of all recipes, without smoke twins."""
        return sorted(path.stem for path in self.recipes.glob("*.yaml") if is_recipe_name(path.stem))

    def misnamed(self, kind: str = "recipe") -> list[str]:
        """Return a fault for each file whose name cannot be a recipe's or machine's; an editor's hidden files do not count."""
        is_name: Callable[[str], object] = is_recipe_name if kind == "recipe" else NAME.fullmatch
        found = sorted((self.recipes if kind == "recipe" else self.recipes / "machines").glob("*.yaml"))
        return [describe_misnamed(path, kind) for path in found if not is_name(path.stem) and not path.name.startswith(".")]

    def faults(self) -> list[str]:
        """Return a line for each recipe that cannot be used, and for each file whose name cannot be a recipe's."""
        lines = self.misnamed()
        for name in self.names():
            try:
                self.plan(name)
            except RelmError as error:
                line, path = shorten_error(error), str(self.recipe_path(name))
                lines.append(line if path in line else f"{path}: {line}")
        return lines

    def recipe_path(self, name: str) -> Path:
        """Return the path of the recipe's file for a run's name: `NAME`, `smoke/NAME`, `NAME@MACHINE`."""
        run = RunName.parse(name)
        path = self.recipes / f"{run.recipe}.yaml"
        if not is_recipe_name(run.recipe) or not os.path.lexists(path):  # reading the file reports a broken link
            absent = f" ({path} does not exist)" if is_recipe_name(run.recipe) else ""
            raise RelmError(f"there is no recipe {run.recipe!r}{absent}; {self._suggest_recipe(run)}")
        return path

    def paper_and_control(self, name: str) -> tuple[str | None, bool]:
        """Return the key of a recipe's paper, None without a valid one, and whether it has a control; check nothing else."""
        content = read_extended(self.recipe_path(name))
        key = value_at(content, "paper", "key")
        return key if isinstance(key, str) and NAME.fullmatch(key) else None, content.get("control") is not None

    def _suggest_recipe(self, run: RunName) -> str:
        """Return a sentence with the target that an unknown name may mean."""
        near = difflib.get_close_matches(Path(run.recipe).name.removesuffix(".yaml"), self.names(), n=1, cutoff=0.5)
        return (
            f"did you mean results/{run._replace(recipe=near[0])}?"
            if near
            else f"there are: {', '.join(self.names()) or 'none in this folder; go to the folder with the Snakefile'}"
        )

    def machine_names(self) -> list[str]:
        """Return the sorted names of all machines."""
        return sorted(path.stem for path in (self.recipes / "machines").glob("*.yaml") if NAME.fullmatch(path.stem))

    def _read(self, path: Path, load: Callable[[Path], T]) -> T:
        """Return the content of a file, which is read once: a graph needs it for each shard and each machine."""
        if path not in self._files:
            self._files[path] = load(path)
        found: T = self._files[path]
        return found

    def machine(self, name: str, named_by: str) -> Machine:
        """Return the machine with this name; errors begin with `named_by`, the target or the recipe's file and key."""
        path = self.recipes / "machines" / f"{name}.yaml"
        if not NAME.fullmatch(name) or not os.path.lexists(path):
            raise RelmError(
                f"{named_by}: there is no machine {name!r}; {suggest_name(name, self.machine_names(), path.parent)}"
            )
        return self._read(path, load_machine)

    def machines(self) -> dict[str, Machine]:
        """Return the machines by name; a file with faults is left out, and reported where it is named."""
        found = {}
        for name in self.machine_names():
            with contextlib.suppress(RelmError):
                found[name] = self.machine(name, f"@{name}")
        return found

    def path_of(self, folder: str, name: str) -> Path:
        """Return the path of a file in a folder of `recipes/`, such as data, models or evaluations."""
        return self.recipes / folder / f"{name}.yaml"

    def dataset(self, name: str) -> Dataset:
        """Return the dataset with this name."""
        return self._read(self.path_of("data", name), load_dataset)

    def model(self, name: str) -> PretrainedModel:
        """Return the pretrained model with this name."""
        return self._read(self.path_of("models", name), load_model)

    def test(self, name: str) -> PublishedTest:
        """Return the published test with this name."""
        return self._read(self.path_of("evaluations", name), load_test)

    def reference_runs(self, name: str) -> LoadedRuns:
        """Return the runs of an original's own program with this name."""
        return self._read(self.recipes / "reference_runs" / f"{name}.yaml", load_reference_runs)

    def _curve_of(self, recipe: Recipe, path: Path) -> Curve | None:
        """Return the published curve against which a recipe is watched, if it names one."""
        expected = recipe.expect_curve
        if expected is None:
            return None
        name, file = expected.curve, self.recipes / "curves" / f"{expected.curve}.tsv"
        if not os.path.lexists(file):
            hint = suggest_name(name, sorted(other.stem for other in file.parent.glob("*.tsv")), file.parent)
            raise RelmError(f"{path}: expect_curve.curve: there is no curve {name!r} ({file}); {hint}")
        curve = self._read(file, load_curve)
        require_band(expected, curve, list(recipe.pretrain), str(path))
        return curve

    def _require_test(self, named: NamedFile, path: Path) -> None:
        """Raise unless a published test that a recipe names exists and can be read."""
        name, file = named.name, self.path_of("evaluations", named.name)
        if name.startswith(task_of(HARNESS)):
            raise RelmError(
                f"{path}: {named.key}: {name}: {task_of(HARNESS)} begins names of the harness's results; write {HARNESS}TASK"
            )
        if not os.path.lexists(file):
            others = [*names_in_recipes(), f"{HARNESS}TASK"] if named.key == "evaluate" else []
            hint = suggest_name(name, [*others, *sorted(other.stem for other in file.parent.glob("*.yaml"))], file.parent)
            raise RelmError(f"{path}: {named.key}: there is no evaluation {name!r} ({file}); {hint}")
        self.test(name)

    def plan(self, name: str) -> Plan:
        """Return the plan of a run: `NAME`, `smoke/NAME` for the smoke twin, `NAME@MACHINE`; its files are read once."""
        if name not in self._plans:
            run, path = RunName.parse(name).vary(self.execution), self.recipe_path(name)
            recipe, changes = self._varied_recipe(run, path)
            recipe, machine, own_machine = self._placed_recipe(recipe, run, path)
            if changes:
                require_effect(changes, recipe, self._placed_recipe(self._read(path, self._load_recipe), run, path)[0], run)
            named = [recipe.tokenizer.from_model, recipe.init_from, recipe.expect_reference]
            tokenizer_model, init_model, reference = [self.model(model) if model else None for model in named]
            dataset = self.dataset(recipe.data.dataset)
            tests = {name: self.test(name) for name in recipe.evaluate if names_test(name)}
            if run.is_twin:
                tests = {name: smoke_test(test, recipe.model, recipe.run.pipeline) for name, test in tests.items()}
            plan = Plan(
                require_short_name(run._replace(settings=tuple(change.setting for change in changes))),
                with_substitution(recipe, dataset),
                dataset,
                tokenizer_model,
                init_model,
                reference,
                tests,
                machine=machine,
                own_machine=own_machine,
                curve=self._curve_of(recipe, path),
                removed_tests={name: self.test(name) for name in recipe.data.remove.tests} if recipe.data.remove else {},
                changes=changes,
                reference_runs={
                    row.reference_runs: self.reference_runs(row.reference_runs) for row in recipe.expect if row.reference_runs
                },
            )
            require_sound_parts(path, plan)
            self._plans[name] = plan
        return self._plans[name]

    def _varied_recipe(self, run: RunName, path: Path) -> tuple[Recipe, tuple[Change, ...]]:
        """Return the recipe of a run with its settings, and its differences from the file, which are deviations of the run."""
        recipe = self._read(path, self._load_recipe)
        if not run.settings:
            return recipe, ()
        varied, changes = vary_recipe(recipe, run.settings, path)
        raise_together(self._readers(varied.model_dump(), path), RelmError)
        self._check_pipelines(varied, path)
        sentences = [
            f"This variation sets {change.key} to {format_value(change.value)}; {path} has {format_value(change.before)}."
            for change in changes
        ]
        return varied.model_copy(update={"deviations": [*varied.deviations, *sentences]}), changes

    def _placed_recipe(self, recipe: Recipe, run: RunName, path: Path) -> tuple[Recipe, Machine | None, bool]:
        """Return the recipe of a run on its machine, the machine, and True if it is the recipe's own."""
        own = find_own_machine(recipe)
        named = own if own in recipe.on else recipe.run.machine  # `on` may have keys for the machine at hand, too
        machine = None if named is None else self.machine(named, f"{path}: run.machine")
        if machine is not None and (run.is_twin or run.machine in (None, own)):
            recipe = place_on(recipe, str(own), machine, path)
        if run.is_twin:  # it trains on the CPU, or on the recipe's device where the CPU emulates it
            recipe = smoke_twin(recipe, self.dataset(recipe.data.dataset))
            own, machine = find_own_machine(recipe), None
        if run.machine in (None, own):
            return recipe, machine, True
        name, target = str(run.machine), f"results/{run}"
        machine = self.machine(name, target)
        require_division(recipe, name, machine, path, self.machines)
        placed = place_on(recipe, name, machine, path)
        deviations = [*placed.deviations, describe_deviation(placed, own, name, machine)]
        return placed.model_copy(update={"deviations": deviations}), machine, False

    def _load_recipe(self, path: Path) -> Recipe:
        """Return the recipe in a file, all of whose machines exist."""
        content, loaded = read_extended(path), []
        raise_together([lambda: loaded.append(load_recipe(path, content)), *self._readers(content, path)], RelmError)
        self._check_pipelines(loaded[0], path)
        return loaded[0]

    def _readers(self, content: Mapping[str, Any], path: Path) -> list[Callable[[], None]]:
        """Return a function for each file that a recipe names, which reads it."""
        return [functools.partial(self._read_named, named, path) for named in list_names(content)]

    def _read_named(self, named: NamedFile, path: Path) -> None:
        """Read a file that a recipe names."""
        if named.kind == "machine":
            self.machine(named.name, f"{path}: {named.key}")
        elif named.kind == "test":
            self._require_test(named, path)
        else:
            read: dict[str, Callable[[str], Any]]
            read = {"dataset": self.dataset, "model": self.model, "reference_runs": self.reference_runs}
            read[named.kind](named.name)

    def _check_pipelines(self, recipe: Recipe, path: Path) -> None:
        """Raise an error if a recipe has a pipeline that its machine cannot run."""
        for name, keys in recipe.on.items():
            if keys.pipeline is not None:
                require_ipus(keys.pipeline, name, self.machine(name, f"{path}: on.{name}"), path)

    def find_job(self, kind: type[J], key: str, dataset: str | None = None) -> J:
        """Return the job of a kind with a key; a tokenizer's path has no dataset.

        Search planned recipes first, because a requested `results/NAME` has been planned. Skip recipes with faults, which
        cannot have requested a job, and those whose folders cannot be read.
        """
        wanted = (kind, key, dataset)
        if wanted not in self._jobs:
            self._index_jobs(wanted)
        job = self._jobs.get(wanted)
        if not isinstance(job, kind):
            product = f"{kind.product} with key {key}"
            raise RelmError(f"no recipe makes {product}: was a recipe edited during the run? Run the same command again")
        return job

    def _index_jobs(self, wanted: JobKey) -> None:
        names = self.names()
        for name in dict.fromkeys([*self._plans, *self.varied, *names, *(f"{SMOKE}{name}" for name in names)]):
            if name not in self._indexed:
                self._indexed.add(name)
                with contextlib.suppress(RelmError, OSError):
                    for job in self.plan(name).data_jobs:
                        self._jobs.setdefault((type(job), job.key, job.dataset_name), job)
            if wanted in self._jobs:
                return


def suggest_name(name: str, known: Sequence[str], folder: Path) -> str:
    """Return the known name that a wrong one may mean, or the list of all."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or f'none in {folder}/'}"


def shorten_error(error: Exception) -> str:
    """Return an error message in one line: its first line with the first fault that it lists, and the count of the others."""
    first, *others = str(error).splitlines()
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{first}: {others[0].strip()}{more}" if others else first


def with_substitution(recipe: Recipe, dataset: Dataset) -> Recipe:
    """Return a recipe whose first deviation says in whose place its dataset stands, if it names an `original_corpus`."""
    if recipe.original_corpus is None:
        return recipe
    corpus = recipe.original_corpus.rstrip(".")
    sentence = f"The original was trained on {corpus}. The dataset {recipe.data.dataset} stands in its place: {dataset.title}."
    others = [other for other in recipe.deviations if other != sentence]  # a resolved recipe, read again, has it already
    return recipe.model_copy(update={"deviations": [sentence, *others]})
