"""Everything that follows from a recipe's name: the resolved recipe, its datasets and models, and every path of its products.

The graph's rules and the commands both ask here, so a path is written down once. A project is a folder with `recipes/`.
"""

import contextlib
import difflib
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from relm.errors import RelmError
from relm.recipes import identity
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluations import (
    HARNESS,
    EvaluationDeclaration,
    PublishedTest,
    find_evaluation,
    is_of_trained_weights_alone,
    load_test,
    names_in_recipes,
    task_of,
)
from relm.recipes.jobs import DataJob, DocumentsJob, ExamplesJob, TokenizerJob
from relm.recipes.published_models import WEIGHTS_FILES, ModelFile, PretrainedModel, load_model
from relm.recipes.recipe import Recipe, load_recipe
from relm.recipes.run_folder import DEVICE_FIGURES, LOG, checkpoint_folder
from relm.recipes.section import NAME
from relm.recipes.smoke import smoke_twin

SPLITS = ("train", "held_out")
# Which weights are evaluated, and the folder inside the run's that has the figures: the trained ones, those that training
# started from, the authors' released ones.
TRAINED, BEFORE, REFERENCE = "eval", "before", "reference"
SMOKE_EXAMPLES = 20
# Folders of `results/` that are no recipe's.
NOT_RECIPES = ("smoke", "reference")
J = TypeVar("J", bound=DataJob)
# Kind, key, and the dataset in the path.
JobKey = tuple[type, str, str | None]


@dataclass(frozen=True)
class Plan:
    """One recipe with all it names, and where its products lie."""

    name: str
    """As in `results/NAME`; a smoke twin's begins with `smoke/`."""
    recipe: Recipe
    dataset: Dataset
    tokenizer_model: PretrainedModel | None
    init_model: PretrainedModel | None
    reference_model: PretrainedModel | None = None
    """The authors' released weights."""
    tests: Mapping[str, PublishedTest] = field(default_factory=dict)
    """Those of the recipe's evaluations that are on published files."""
    work: Path = field(default_factory=identity.work_folder)

    @functools.cached_property
    def documents_job(self) -> DocumentsJob:
        """The job that extracts the documents."""
        document = identity.documents_identity(self.dataset, self.recipe.data.documents, self.work / "folders")
        return DocumentsJob(document, self.recipe.data.dataset, self.dataset, self.work)

    @functools.cached_property
    def tokenizer_job(self) -> TokenizerJob:
        """The job that trains or imports the tokenizer."""
        parts = self.recipe.tokenizer, self.tokenizer_model, self.documents_job.document
        document = identity.tokenizer_identity(*parts, self.work / "folders")
        texts = [self.documents(shard, "train") for shard in self.shards]
        return TokenizerJob(document, tuple(self.tokenizer_files if self.tokenizer_model else texts), self.work)

    @functools.cached_property
    def examples_jobs(self) -> dict[str, ExamplesJob]:
        """Phase -> the job that pregenerates its examples; phases that read the same ones share it."""
        jobs: dict[str, ExamplesJob] = {}
        for name, phase in self.recipe.pretrain.items():
            parts = self.documents_job.document, self.tokenizer_job.document, phase, self.dataset.language
            jobs[name] = ExamplesJob(identity.examples_identity(*parts), self.documents_job, self.tokenizer_job, phase.suffix)
        return jobs

    @property
    def data_jobs(self) -> list[DataJob]:
        """All jobs that prepare data."""
        return [self.documents_job, self.tokenizer_job, *self.examples_jobs.values()]

    @property
    def documents_key(self) -> str:
        """Identity of the extracted documents, in their path."""
        return self.documents_job.key

    @property
    def tokenizer_key(self) -> str:
        """Identity of the tokenizer, in its path."""
        return self.tokenizer_job.key

    @property
    def examples_keys(self) -> dict[str, str]:
        """Identity of the pregenerated examples, in their path -> the first phase that reads them."""
        keys: dict[str, str] = {}
        for phase, job in self.examples_jobs.items():
            keys.setdefault(job.key, phase)
        return keys

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the run means, in its path."""
        weights = self._content(self._init_from, self.init_model.weights_files) if self.init_model else None
        return identity.fingerprint(self.recipe, [job.document for job in self.examples_jobs.values()], weights)

    @property
    def shards(self) -> list[str]:
        """Names of the dataset's shards: its files, or one for a folder."""
        return self.documents_job.shards

    @property
    def phases(self) -> list[str]:
        """Names of the training phases, in order."""
        return list(self.recipe.pretrain)

    def download(self, shard: str) -> Path:
        """Return the path of a source file of the dataset, in a folder named by its content."""
        return self.documents_job.download(shard)

    def documents(self, shard: str, split: str) -> Path:
        """Return the path of the extracted documents of one shard and split, JSON lines."""
        return self.documents_job.documents(shard, split)

    def model_download(self, name: str, model: PretrainedModel, file: ModelFile) -> Path:
        """Return the path of a file of a published model, in a folder named by the content of those used together."""
        together = next(files for files in (model.weights_files, model.tokenizer_files) if file in files)
        return self.work / "downloads" / "models" / name / identity.digest(self._content((name, model), together)) / file

    @property
    def tokenizer_files(self) -> list[Path]:
        """The files of the tokenizer that is imported."""
        assert self.tokenizer_model is not None
        named = str(self.recipe.tokenizer.from_model), self.tokenizer_model
        return self._model_files(named, self.tokenizer_model.tokenizer_files)

    def starting_weights(self, phase: str) -> list[Path]:
        """Weights and configuration that a phase starts from: the previous phase's, the recipe's `init_from`, or none."""
        before = self.phase_before(phase)
        if before is not None:
            return [self.model_folder(before) / file for file in ("model.safetensors", "config.json")]
        return [] if self.init_model is None else self._model_files(self._init_from, self.init_model.weights_files)

    @property
    def _init_from(self) -> tuple[str, PretrainedModel]:
        assert self.init_model is not None
        return str(self.recipe.init_from), self.init_model

    @property
    def _reference(self) -> tuple[str, PretrainedModel]:
        assert self.reference_model is not None
        return str(self.recipe.expect_reference), self.reference_model

    def _content(self, named: tuple[str, PretrainedModel], files: Sequence[ModelFile]) -> dict[str, str]:
        return identity.part_of(identity.model_content(*named, self.work / "folders"), files)

    def _model_files(self, named: tuple[str, PretrainedModel], files: Sequence[ModelFile]) -> list[Path]:
        """Return the paths of files that are downloaded, converted, or copied out of a folder; their content is in the path."""
        name, model = named
        if model.converted and files == model.weights_files:
            folder = self.work / "converted" / f"{name}-{identity.digest(self._content(named, files))}"
            return [folder / file for file in WEIGHTS_FILES]
        if model.folder is None:
            return [self.model_download(name, model, file) for file in files]
        folder = self.work / "models" / f"{name}-{identity.digest(self._content(named, files))}"
        return [folder / file for file in files]

    @property
    def tokenizer_sha256(self) -> dict[str, str]:
        """File name -> sha256 that the recipe gives, of the tokenizer that is imported."""
        assert self.tokenizer_model is not None
        named = str(self.recipe.tokenizer.from_model), self.tokenizer_model
        return self._content(named, self.tokenizer_model.tokenizer_files)

    def starting_sha256(self, phase: str) -> dict[str, str]:
        """Return file name -> sha256 that the recipe gives for the weights a phase starts from; empty: they are made here."""
        if self.init_model is None or self.phase_before(phase) is not None:
            return {}
        return self._weights_sha256(self._init_from)

    def evaluated_sha256(self, of: str) -> dict[str, str]:
        """Return file name -> sha256 that the recipe gives for the weights that are evaluated; empty: they are made here."""
        if of == TRAINED:
            return {}
        return self.starting_sha256(self.phases[0]) if of == BEFORE else self._weights_sha256(self._reference)

    def _weights_sha256(self, named: tuple[str, PretrainedModel]) -> dict[str, str]:
        return {} if named[1].converted else self._content(named, named[1].weights_files)

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, in the format of the `tokenizers` library."""
        return self.tokenizer_job.tokenizer

    def examples_folder(self, phase: str) -> Path:
        """Return the folder of a phase's examples, their sidecars and the manifest; phases that read the same ones share it."""
        return self.examples_jobs[phase].folder

    def examples(self, phase: str, shard: str, split: str) -> Path:
        """Return the path of the pregenerated examples of one shard and split: a stream of tokens, or a table."""
        return self.examples_jobs[phase].examples(shard, split)

    def manifest(self, phase: str) -> Path:
        """What all shards of a phase's examples hold, with their hashes."""
        return self.examples_folder(phase) / "manifest.json"

    def phase_before(self, phase: str) -> str | None:
        """The phase that a phase goes on from; None for the first."""
        position = self.phases.index(phase)
        return self.phases[position - 1] if position else None

    @property
    def run_folder(self) -> Path:
        """Everything that is this recipe's alone."""
        return self.work / "runs" / self.name / self.fingerprint

    def model_folder(self, phase: str) -> Path:
        """The trained model of a phase, as `transformers` reads it."""
        return self.run_folder / phase / "model"

    @property
    def logs(self) -> list[Path]:
        """The `train.jsonl` of each phase, in order."""
        return [self.run_folder / phase / LOG for phase in self.phases]

    def device_figures(self) -> dict[str, Path]:
        """Phase -> its `device.json`, where there is one: of phases that trained on a device that compiles."""
        files = {phase: self.run_folder / phase / DEVICE_FIGURES for phase in self.phases}
        return {phase: path for phase, path in files.items() if path.is_file()}

    @property
    def compilation(self) -> Path:
        """What `relm compile` found of the recipe, where it was asked for it."""
        return self.run_folder / "compile.json"

    def kept_optimizer(self, phase: str) -> Path | None:
        """The checkpoint whose optimizer a phase goes on with: of the last step of the phase before; None: a fresh one."""
        before = self.phase_before(phase)
        if before is None or self.recipe.pretrain[phase].optimizer_state == "fresh":
            return None
        return checkpoint_folder(self.run_folder / before / "checkpoints", self.recipe.pretrain[before].steps)

    def evaluations(self, of: str = TRAINED) -> dict[str, Path]:
        """Task -> its figures, of the trained model, of the weights it started from, or of the authors' released ones."""
        if (of == BEFORE and self.init_model is None) or (of == REFERENCE and self.reference_model is None):
            return {}
        names = [name for name in self.recipe.evaluate if of == TRAINED or not is_of_trained_weights_alone(name)]
        return {task_of(name): self.run_folder / of / f"{task_of(name)}.json" for name in names}

    def evaluation(self, task: str) -> EvaluationDeclaration:
        """Return the declaration of the evaluation that gives a result its figures.

        Raises:
            RelmError: the recipe has none of this name.
        """
        declaration = find_evaluation(task, self.tests)
        if declaration is None:
            known = ", ".join([*names_in_recipes(), *self.tests])
            raise RelmError(f"recipe {self.name} evaluates no {task}: give evaluate: [...] one of {known}")
        return declaration

    def evaluation_identity(self, task: str) -> dict[str, Any]:
        """Return the identity of the evaluation that gives a result its figures, as `relm evaluate --job` takes it."""
        declaration, test = self.evaluation(task), self.tests.get(task)
        return identity.evaluation_identity(declaration, task, self.recipe, test=test, language=self.dataset.language)

    def evaluated_model(self, of: str) -> list[Path]:
        """The weights that are evaluated, and their configuration."""
        if of == TRAINED:
            folder = self.model_folder(self.phases[-1])
            return [folder / "model.safetensors", folder / "config.json"]
        if of == BEFORE:
            return self.starting_weights(self.phases[0])
        return self._model_files(self._reference, self._reference[1].weights_files)

    @property
    def evaluation_limit(self) -> int | None:
        """How many examples of each evaluation a smoke twin looks at; None: all."""
        return SMOKE_EXAMPLES if self.name.startswith("smoke/") else None

    def test_download(self, test: str) -> Path:
        """Return the path of a published test's file, in a folder named by its content."""
        spec = self.tests[test]
        return self.work / "downloads" / "evaluations" / test / spec.files[spec.file].sha256[:12] / spec.file

    @property
    def results(self) -> Path:
        """The published folder."""
        return Path("results") / self.name

    @property
    def reference_results(self) -> Path:
        """The figures of the authors' released weights."""
        return Path("results") / "reference" / self.name


class Project:
    """A folder with `recipes/`, and the plans of the recipes in it."""

    def __init__(self, root: Path = Path()) -> None:
        self.recipes = root / "recipes"
        self._plans: dict[str, Plan] = {}
        # A graph asks for the same file once a shard; it is read once.
        self._datasets: dict[str, Dataset] = {}
        self._models: dict[str, PretrainedModel] = {}
        self._tests: dict[str, PublishedTest] = {}
        self._jobs: dict[JobKey, DataJob] = {}
        self._indexed: set[str] = set()

    def names(self) -> list[str]:
        """All recipes, smoke twins not included, sorted."""
        return sorted(path.stem for path in self.recipes.glob("*.yaml") if _is_name(path.stem))

    def misnamed(self) -> list[Path]:
        """Return files whose names cannot be a recipe's, sorted; hidden ones, such as an editor's locks, are passed over."""
        found = self.recipes.glob("*.yaml")
        return sorted(path for path in found if not _is_name(path.stem) and not path.name.startswith("."))

    def faults(self) -> list[str]:
        """Return a line for each recipe that cannot be used, and for each file whose name cannot be a recipe's."""
        lines = [misnamed_in_words(path) for path in self.misnamed()]
        for name in self.names():
            try:
                self.plan(name)
            except RelmError as error:
                line, path = in_one_line(error), str(self.recipe_path(name))
                lines.append(line if path in line else f"{path}: {line}")
        return lines

    def recipe_path(self, name: str) -> Path:
        """The recipe's file; for a smoke twin, that of its recipe.

        Raises:
            RelmError: there is no such recipe; suggests the nearest name.
        """
        plain = name.removeprefix("smoke/")
        path = self.recipes / f"{plain}.yaml"
        if not _is_name(plain) or not os.path.lexists(path):  # reading says what is wrong with a broken link
            near = difflib.get_close_matches(Path(plain).name.removesuffix(".yaml"), self.names(), n=1, cutoff=0.5)
            prefix = name[: len(name) - len(plain)]
            hint = f"did you mean results/{prefix}{near[0]}?" if near else f"there are: {', '.join(self.names()) or 'none'}"
            absent = f" ({path} does not exist)" if _is_name(plain) else ""
            raise RelmError(f"there is no recipe {plain!r}{absent}; {hint}")
        return path

    def dataset_path(self, name: str) -> Path:
        """A dataset's file."""
        return self.recipes / "data" / f"{name}.yaml"

    def model_path(self, name: str) -> Path:
        """A pretrained model's file."""
        return self.recipes / "models" / f"{name}.yaml"

    def dataset(self, name: str) -> Dataset:
        """The dataset of a name."""
        if name not in self._datasets:
            self._datasets[name] = load_dataset(self.dataset_path(name))
        return self._datasets[name]

    def model(self, name: str) -> PretrainedModel:
        """The pretrained model of a name."""
        if name not in self._models:
            self._models[name] = load_model(self.model_path(name))
        return self._models[name]

    def test_path(self, name: str) -> Path:
        """The file of an evaluation on published data."""
        return self.recipes / "evaluations" / f"{name}.yaml"

    def test(self, name: str) -> PublishedTest:
        """The published test of a name."""
        if name not in self._tests:
            self._tests[name] = load_test(self.test_path(name))
        return self._tests[name]

    def _tests_of(self, recipe: Recipe, path: Path) -> dict[str, PublishedTest]:
        """The published tests that a recipe evaluates."""
        names = [name for name in recipe.evaluate if name not in names_in_recipes() and not name.startswith(HARNESS)]
        for name in names:
            if name.startswith(task_of(HARNESS)):
                raise RelmError(f"{path}: evaluate: {name}: names with {task_of(HARNESS)} are the harness's: {HARNESS}TASK")
            if not os.path.lexists(self.test_path(name)):
                known = [*names_in_recipes(), *sorted(other.stem for other in self.test_path(name).parent.glob("*.yaml"))]
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}, and {HARNESS}TASK"
                raise RelmError(f"{path}: evaluate: there is no evaluation {name!r} ({self.test_path(name)}); {hint}")
        return {name: self.test(name) for name in names}

    def plan(self, name: str) -> Plan:
        """The plan of a recipe, or of its smoke twin for ``smoke/NAME``; read once.

        Raises:
            RelmError: the recipe, or a dataset or model it names, is absent or has faults.
        """
        if name not in self._plans:
            recipe = load_recipe(self.recipe_path(name))
            if name.startswith("smoke/"):
                recipe = smoke_twin(recipe, self.dataset(recipe.data.dataset))
            models = [recipe.tokenizer.from_model, recipe.init_from, recipe.expect_reference]
            tokenizer_model, init_model, reference = [self.model(model) if model else None for model in models]
            self._check_uses(name, recipe, tokenizer_model, {"init_from": init_model, "expect_reference": reference})
            dataset, tests = self.dataset(recipe.data.dataset), self._tests_of(recipe, self.recipe_path(name))
            self._plans[name] = Plan(name, recipe, dataset, tokenizer_model, init_model, reference, tests)
        return self._plans[name]

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
        for key, model in weights.items():
            if model is not None and not model.weights:
                found = getattr(recipe, key)
                raise RelmError(f"{path}: {key}: {found} has no weights among its files; weights: true says it has")

    def find_job(self, kind: type[J], key: str, dataset: str | None = None) -> J:
        """Return the job of a kind with a key; a tokenizer's has no dataset in its path.

        Recipes that were planned already are asked first: whoever asks for `results/NAME` planned it. Then the others, one
        after the other. One with faults is passed over, for it cannot have requested anything, and so is one whose folders
        cannot be read.

        Raises:
            RelmError: no recipe makes it.
        """
        wanted = (kind, key, dataset)
        if wanted not in self._jobs:
            self._index_jobs(wanted)
        job = self._jobs.get(wanted)
        if not isinstance(job, kind):
            product = f"{kind.product} with key {key}"
            raise RelmError(f"no recipe makes {product}: was a recipe edited while this ran? Give the same command again")
        return job

    def _index_jobs(self, wanted: JobKey) -> None:
        names = self.names()
        for name in dict.fromkeys([*self._plans, *names, *(f"smoke/{name}" for name in names)]):
            if name not in self._indexed:
                self._indexed.add(name)
                with contextlib.suppress(RelmError, OSError):
                    for job in self.plan(name).data_jobs:
                        self._jobs.setdefault((type(job), job.key, job.dataset_name), job)
            if wanted in self._jobs:
                return


def _is_name(stem: str) -> bool:
    return NAME.fullmatch(stem) is not None and stem not in NOT_RECIPES


def misnamed_in_words(path: Path) -> str:
    """Return a sentence about a file whose name cannot be a recipe's."""
    return (
        f"{path.parent}/{path.name!r}: cannot be a recipe's name, which has letters, digits, '.', '_' and '-' and is none of "
        f"{', '.join(NOT_RECIPES)}; rename the file"
    )


def in_one_line(error: RelmError) -> str:
    """Return an error with the first of the faults that it lists, for a place where others stand beside it."""
    first, *others = str(error).splitlines()
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    return f"{first}: {others[0].strip()}{more}" if others else first
