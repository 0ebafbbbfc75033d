"""A project: the recipes of a folder, the plan of each, and the job of each key."""

import contextlib
import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from relm.errors import RelmError
from relm.recipes.curves import Curve, load_curve, require_band
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluations import HARNESS, names_in_recipes, task_of
from relm.recipes.jobs import DataJob
from relm.recipes.machine_use import describe_deviation, require_division
from relm.recipes.machines import Machine, find_own_machine, load_machine, place_on, require_ipus
from relm.recipes.plan import Plan
from relm.recipes.published_models import PretrainedModel, load_model
from relm.recipes.published_tests import PublishedTest, load_test
from relm.recipes.recipe import Recipe, load_recipe
from relm.recipes.run_name import SMOKE, RunName
from relm.recipes.section import NAME, read_extended
from relm.recipes.smoke import smoke_twin

# Folders of `results/` that do not belong to a recipe.
NOT_RECIPES = ("smoke", "reference")
J = TypeVar("J", bound=DataJob)
# Kind of the job, its key, and the dataset in the path.
JobKey = tuple[type, str, str | None]


class Project:
    """A folder with `recipes/`, and the plans of the recipes in it."""

    def __init__(self, root: Path = Path()) -> None:
        self.recipes = root / "recipes"
        self._plans: dict[str, Plan] = {}
        # A graph needs the same file for each shard; it is read once.
        self._datasets: dict[str, Dataset] = {}
        self._machines: dict[str, Machine] = {}
        # A recipe is placed on many machines.
        self._recipes: dict[Path, Recipe] = {}
        self._models: dict[str, PretrainedModel] = {}
        self._tests: dict[str, PublishedTest] = {}
        self._curves: dict[str, Curve] = {}
        self._jobs: dict[JobKey, DataJob] = {}
        self._indexed: set[str] = set()

    def names(self) -> list[str]:
        """Return the sorted names of all recipes, without smoke twins."""
        return sorted(path.stem for path in self.recipes.glob("*.yaml") if _is_name(path.stem))

    def misnamed(self) -> list[Path]:
        """Return the sorted files whose names cannot be a recipe's; hidden ones, such as an editor's locks, are ignored."""
        found = self.recipes.glob("*.yaml")
        return sorted(path for path in found if not _is_name(path.stem) and not path.name.startswith("."))

    def misnamed_machines(self) -> list[Path]:
        """Return the sorted files of `recipes/machines/` whose names cannot be a machine's; hidden ones are ignored."""
        found = (self.recipes / "machines").glob("*.yaml")
        return sorted(path for path in found if not NAME.fullmatch(path.stem) and not path.name.startswith("."))

    def faults(self) -> list[str]:
        """Return a line for each recipe that cannot be used, and for each file whose name cannot be a recipe's."""
        lines = [describe_misnamed(path) for path in self.misnamed()]
        for name in self.names():
            try:
                self.plan(name)
            except RelmError as error:
                line, path = shorten_error(error), str(self.recipe_path(name))
                lines.append(line if path in line else f"{path}: {line}")
        return lines

    def recipe_path(self, name: str) -> Path:
        """Return the path of the recipe's file for a run's name: `NAME`, `smoke/NAME`, `NAME@MACHINE`.

        Raises:
            RelmError: the recipe is unknown; suggests the nearest name.
        """
        run = RunName.parse(name)
        path = self.recipes / f"{run.recipe}.yaml"
        if not _is_name(run.recipe) or not os.path.lexists(path):  # reading the file reports a broken link
            absent = f" ({path} does not exist)" if _is_name(run.recipe) else ""
            raise RelmError(f"there is no recipe {run.recipe!r}{absent}; {self._suggest_recipe(run)}")
        return path

    def paper_key(self, name: str) -> str | None:
        """Return the key of the paper that a recipe names; None if it names none, or no valid one. The rest is not checked.

        Raises:
            RelmError: the file is absent, or no recipe.
        """
        paper = read_extended(self.recipe_path(name)).get("paper")
        key = paper.get("key") if isinstance(paper, dict) else None
        return key if isinstance(key, str) and NAME.fullmatch(key) else None

    def _suggest_recipe(self, run: RunName) -> str:
        """Return a sentence with the target that an unknown name may mean."""
        for machine in self.machine_names():  # names of recipes ended once in those of machines
            for other in self.machine_names() if machine in run.recipe else ():
                if (known := run.recipe.replace(machine, other)) in self.names() and known != run.recipe:
                    return f"the machine is now written behind an @: results/{run._replace(recipe=known, machine=machine)}"
        near = difflib.get_close_matches(Path(run.recipe).name.removesuffix(".yaml"), self.names(), n=1, cutoff=0.5)
        if near:
            return f"did you mean results/{run._replace(recipe=near[0])}?"
        return f"there are: {', '.join(self.names()) or 'none'}"

    def machine_names(self) -> list[str]:
        """Return the sorted names of all machines."""
        return sorted(path.stem for path in (self.recipes / "machines").glob("*.yaml") if NAME.fullmatch(path.stem))

    def machine(self, name: str, named_by: str) -> Machine:
        """Return the machine with this name.

        Args:
            name: the name of a file in `recipes/machines/`.
            named_by: the target, or the recipe's file and key, with this name, for the message.

        Raises:
            RelmError: the machine is unknown, or its file has faults; suggests the nearest name.
        """
        if name not in self._machines:
            path = self.recipes / "machines" / f"{name}.yaml"
            if not NAME.fullmatch(name) or not os.path.lexists(path):
                known = self.machine_names()
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none in recipes/machines/'}"
                raise RelmError(f"{named_by}: there is no machine {name!r}; {hint}")
            self._machines[name] = load_machine(path)
        return self._machines[name]

    def machines(self) -> dict[str, Machine]:
        """Return the machines by name; a file with faults is left out, and reported where it is named."""
        found = {}
        for name in self.machine_names():
            with contextlib.suppress(RelmError):
                found[name] = self.machine(name, f"@{name}")
        return found

    def dataset_path(self, name: str) -> Path:
        """Return the path of a dataset's file."""
        return self.recipes / "data" / f"{name}.yaml"

    def model_path(self, name: str) -> Path:
        """Return the path of a pretrained model's file."""
        return self.recipes / "models" / f"{name}.yaml"

    def dataset(self, name: str) -> Dataset:
        """Return the dataset with this name."""
        if name not in self._datasets:
            self._datasets[name] = load_dataset(self.dataset_path(name))
        return self._datasets[name]

    def model(self, name: str) -> PretrainedModel:
        """Return the pretrained model with this name."""
        if name not in self._models:
            self._models[name] = load_model(self.model_path(name))
        return self._models[name]

    def test_path(self, name: str) -> Path:
        """Return the path of the YAML file of a published test."""
        return self.recipes / "evaluations" / f"{name}.yaml"

    def test(self, name: str) -> PublishedTest:
        """Return the published test with this name."""
        if name not in self._tests:
            self._tests[name] = load_test(self.test_path(name))
        return self._tests[name]

    def _curve_of(self, recipe: Recipe, path: Path) -> Curve | None:
        """Return the published curve against which a recipe is watched, if it names one."""
        expected = recipe.expect_curve
        if expected is None:
            return None
        name, file = expected.curve, self.recipes / "curves" / f"{expected.curve}.tsv"
        if name not in self._curves:
            if not os.path.lexists(file):
                known = sorted(other.stem for other in file.parent.glob("*.tsv"))
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none in recipes/curves/'}"
                raise RelmError(f"{path}: expect_curve.curve: there is no curve {name!r} ({file}); {hint}")
            self._curves[name] = load_curve(file)
        require_band(expected, self._curves[name], list(recipe.pretrain), str(path))
        return self._curves[name]

    def _tests_of(self, recipe: Recipe, path: Path) -> dict[str, PublishedTest]:
        """Return the published tests that a recipe evaluates."""
        names = [name for name in recipe.evaluate if name not in names_in_recipes() and not name.startswith(HARNESS)]
        for name in names:
            if name.startswith(task_of(HARNESS)):
                raise RelmError(
                    f"{path}: evaluate: {name}: {task_of(HARNESS)} begins names of the harness's results; write {HARNESS}TASK"
                )
            if not os.path.lexists(self.test_path(name)):
                known = [*names_in_recipes(), *sorted(other.stem for other in self.test_path(name).parent.glob("*.yaml"))]
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}, and {HARNESS}TASK"
                raise RelmError(f"{path}: evaluate: there is no evaluation {name!r} ({self.test_path(name)}); {hint}")
        return {name: self.test(name) for name in names}

    def plan(self, name: str) -> Plan:
        """Return the plan of a run: `NAME`, `smoke/NAME` for the smoke twin, `NAME@MACHINE`; its files are read once.

        Raises:
            RelmError: the recipe, or a dataset, a model or a machine it names, is absent or has faults.
        """
        if name not in self._plans:
            run, path = RunName.parse(name), self.recipe_path(name)
            recipe, machine, own_machine = self._placed_recipe(run, path)
            models = [recipe.tokenizer.from_model, recipe.init_from, recipe.expect_reference]
            tokenizer_model, init_model, reference = [self.model(model) if model else None for model in models]
            self._check_uses(name, recipe, tokenizer_model, {"init_from": init_model, "expect_reference": reference})
            self._plans[name] = Plan(
                name,
                recipe,
                self.dataset(recipe.data.dataset),
                tokenizer_model,
                init_model,
                reference,
                self._tests_of(recipe, path),
                machine=machine,
                own_machine=own_machine,
                curve=self._curve_of(recipe, path),
            )
        return self._plans[name]

    def _placed_recipe(self, run: RunName, path: Path) -> tuple[Recipe, Machine | None, bool]:
        """Return the recipe of a run on its machine, the machine, and True if it is the recipe's own."""
        recipe = self._recipe(path)
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

    def _recipe(self, path: Path) -> Recipe:
        """Return the recipe in a file, read once, all of whose machines exist."""
        if path not in self._recipes:
            recipe = load_recipe(path)
            self._check_machines(recipe, path)
            self._recipes[path] = recipe
        return self._recipes[path]

    def _check_machines(self, recipe: Recipe, path: Path) -> None:
        """Raise an error if a recipe names a machine that does not exist, or has a pipeline that its machine cannot run."""
        for name, keys in recipe.on.items():
            machine = self.machine(name, f"{path}: on.{name}")
            if keys.pipeline is not None:
                require_ipus(keys.pipeline, name, machine, path)
        for number, row in enumerate(recipe.expect):
            if row.measured_on is not None:
                self.machine(row.measured_on, f"{path}: expect.{number}.measured_on")

    def _check_uses(
        self,
        name: str,
        recipe: Recipe,
        tokenizer: PretrainedModel | None,
        weights: Mapping[str, PretrainedModel | None],
    ) -> None:
        path = self.recipe_path(name)
        if tokenizer is not None and tokenizer.tokenizer is None:
            raise RelmError(f"{path}: tokenizer.from_model: {recipe.tokenizer.from_model} has no tokenizer among its files")
        self._check_tokens(path, recipe)
        for key, model in weights.items():
            if model is not None and not model.weights:
                found = getattr(recipe, key)
                raise RelmError(f"{path}: {key}: {found} declares no weights; set weights: true in its file if it has them")

    def _check_tokens(self, path: Path, recipe: Recipe) -> None:
        """Raise an error if a recipe asks for what a dataset of tokens, which has no documents, cannot give."""
        dataset = self.dataset(recipe.data.dataset)
        if not dataset.is_tokenized:
            return
        wrong = [f"pretrain.{name}.objective" for name, phase in recipe.pretrain.items() if phase.suffix != ".bin"]
        wrong += ["data.documents"] if recipe.data.documents is not None else []
        wrong += ["tokenizer.train"] if recipe.tokenizer.train is not None else []
        if wrong:
            raise RelmError(
                f"{path}: {wrong[0]}: needs documents, and {recipe.data.dataset} has tokens ({dataset.format}); expected a "
                "tokenizer with from_model, no limit of documents, and an objective that reads a stream, such as causal"
            )

    def find_job(self, kind: type[J], key: str, dataset: str | None = None) -> J:
        """Return the job of a kind with a key; a tokenizer's path has no dataset.

        Recipes that are already planned are searched first, because a requested `results/NAME` has been planned; then the
        others, one after another. A recipe with faults is skipped, because it cannot have requested a job, and so is one whose
        folders cannot be read.

        Raises:
            RelmError: no recipe has this job.
        """
        wanted = (kind, key, dataset)
        if wanted not in self._jobs:
            self._index_jobs(wanted)
        job = self._jobs.get(wanted)
        if not isinstance(job, kind):
            product = f"{kind.product} with key {key}"
            raise RelmError(f"no recipe makes {product}: was a recipe edited during the run? Give the same command again")
        return job

    def _index_jobs(self, wanted: JobKey) -> None:
        names = self.names()
        for name in dict.fromkeys([*self._plans, *names, *(f"{SMOKE}{name}" for name in names)]):
            if name not in self._indexed:
                self._indexed.add(name)
                with contextlib.suppress(RelmError, OSError):
                    for job in self.plan(name).data_jobs:
                        self._jobs.setdefault((type(job), job.key, job.dataset_name), job)
            if wanted in self._jobs:
                return


def _is_name(stem: str) -> bool:
    return NAME.fullmatch(stem) is not None and stem not in NOT_RECIPES


def describe_misnamed(path: Path) -> str:
    """Return an error message about a file whose name cannot be a recipe's."""
    return (
        f"{path.parent}/{path.name!r}: cannot be a recipe's name, which has letters, digits, '.', '_' and '-' and is none of "
        f"{', '.join(NOT_RECIPES)}; rename the file"
    )


def describe_misnamed_machine(path: Path) -> str:
    """Return an error message about a file whose name cannot be a machine's."""
    return (
        f"{path.parent}/{path.name!r}: cannot be a machine's name, which begins with a letter or digit and has letters, "
        "digits, '.', '_' and '-'; rename the file"
    )


def shorten_error(error: RelmError) -> str:
    """Return an error message in one line: its first line with the first fault that it lists, and the count of the others."""
    first, *others = str(error).splitlines()
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{first}: {others[0].strip()}{more}" if others else first
