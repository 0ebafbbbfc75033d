"""The plan of one recipe: the resolved recipe, its dataset and models, its jobs, and every path of its products.

Both the graph's rules and the commands use it, so that each path is defined once.
"""

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from relm.errors import RelmError
from relm.recipes import identity
from relm.recipes.curves import Curve
from relm.recipes.datasets import Dataset
from relm.recipes.evaluation.evaluations import EvaluationDeclaration, names_in_recipes, task_of
from relm.recipes.evaluation.published_tests import PublishedTest, find_evaluation
from relm.recipes.evaluation.reference_runs import LoadedRuns
from relm.recipes.files.own_folders import require_consent
from relm.recipes.jobs import SPLITS, DataJob, DocumentsJob, ExamplesJob, KeptDocumentsJob, SoughtTest, TokenizerJob
from relm.recipes.machine.machines import Machine
from relm.recipes.phase import Phase
from relm.recipes.published_models import WEIGHTS_FILES, ModelFile, PretrainedModel
from relm.recipes.recipe import Recipe, choose_seed
from relm.recipes.run_folder import DEVICE_FIGURES, LOG, VERIFY, checkpoint_folder, final_logs
from relm.recipes.run_name import SMOKE, RunName
from relm.recipes.variation import Change

# The evaluated weights (trained, starting, or released by the authors), and the folder of their figures.
TRAINED, BEFORE, REFERENCE = "eval", "before", "reference"
SMOKE_EXAMPLES = 20
NamedModel = tuple[str, PretrainedModel]


@dataclass(frozen=True)
class Plan:
    """One recipe with everything that it names, and the paths of its products."""

    name: str
    """Name of the run: a smoke twin's begins with `smoke/`, a variation has its settings after the recipe's name, and one
    with a machine ends with `@MACHINE`."""
    recipe: Recipe
    dataset: Dataset
    tokenizer_model: PretrainedModel | None
    init_model: PretrainedModel | None
    reference_model: PretrainedModel | None = None
    """The authors' released weights."""
    tests: Mapping[str, PublishedTest] = field(default_factory=dict)
    """Published test files that the recipe evaluates, by name."""
    work: Path = field(default_factory=identity.work_folder)
    machine: Machine | None = None
    """Machine of the run; None if the recipe names none."""
    own_machine: bool = True
    """True on the recipe's own machine, where `NAME@MACHINE` and `NAME` are one run."""
    curve: Curve | None = None
    """Published curve against which training is watched; None if the recipe names none."""
    reference_runs: Mapping[str, LoadedRuns] = field(default_factory=dict)
    """Runs of originals' own programs that `expect` names, by name."""
    changes: tuple[Change, ...] = ()
    """Differences of a variation from the recipe's file."""
    removed_tests: Mapping[str, PublishedTest] = field(default_factory=dict)
    """Published tests with which no document may share words, by name."""
    number: int = 0
    """Position of the run among the recipe's `seeds`; the first is published as the model."""

    @functools.cached_property
    def runs(self) -> tuple["Plan", ...]:
        """Plans of the runs of `seeds`, of which this is the first; they have the same data and other fingerprints."""
        others = range(1, self.recipe.seeds)
        return self, *(replace(self, recipe=choose_seed(self.recipe, number), number=number) for number in others)

    def find_run(self, fingerprint: str) -> "Plan | None":
        """Return the run with this fingerprint; None if no seed of the recipe has it."""
        return next((run for run in self.runs if run.fingerprint == fingerprint), None)

    @functools.cached_property
    def documents_job(self) -> DocumentsJob:
        """The job that extracts the documents."""
        try:
            if self.dataset.folder is not None:
                require_consent(self.dataset.folder, "folder", self._command)
            document = identity.documents_identity(self.dataset, self.recipe.data.documents, self.work / "folders")
        except RelmError as error:  # of a local folder
            raise RelmError(f"recipes/data/{self.recipe.data.dataset}.yaml: {error}") from None
        return DocumentsJob(document, self.recipe.data.dataset, self.dataset, self.work)

    @functools.cached_property
    def kept_job(self) -> DocumentsJob:
        """The job of the documents that tokenizers and examples are made of: without removed ones if the recipe removes any."""
        remove = self.recipe.data.remove
        if remove is None:
            return self.documents_job
        tests = {name: SoughtTest(test, self._downloads_of(name, test)["file"]) for name, test in self.removed_tests.items()}
        identities = {name: sought.identity for name, sought in tests.items()}
        document = identity.kept_identity(self.documents_job.document, remove.duplicates, identities)
        return KeptDocumentsJob(document, self.recipe.data.dataset, self.dataset, self.work, self.documents_job, tests)

    @property
    def _command(self) -> str:
        """The command that makes the run, for messages."""
        return f"snakemake {shlex.quote(str(self.results))}"

    @functools.cached_property
    def tokenizer_job(self) -> TokenizerJob:
        """The job that trains or imports the tokenizer."""
        parts = self.recipe.tokenizer, self.tokenizer_model, self.kept_job.document
        document = identity.tokenizer_identity(*parts, self.work / "folders", self._command)
        texts = [self.kept_job.documents(shard, "train") for shard in self.shards]
        return TokenizerJob(document, tuple(self.tokenizer_files if self.tokenizer_model else texts), self.work)

    @functools.cached_property
    def examples_jobs(self) -> dict[str, ExamplesJob]:
        """Phase -> the job that pregenerates its examples; phases with the same examples share a job."""
        return {name: self._examples_job(phase) for name, phase in self.recipe.pretrain.items()}

    def _examples_job(self, phase: Phase) -> ExamplesJob:
        parts = self.kept_job.document, self.tokenizer_job.document, phase, self.dataset.language
        return ExamplesJob(identity.examples_identity(*parts), self.kept_job, self.tokenizer_job, phase.suffix)

    def evaluated_examples(self, task: str) -> ExamplesJob:
        """Return the job of the examples that an evaluation reads: the last phase's, unless the evaluation makes others."""
        phase, last = identity.evaluated_phase(self.recipe, self.evaluation(task).name), self.phases[-1]
        return self.examples_jobs[last] if phase is self.recipe.pretrain[last] else self._examples_job(phase)

    @property
    def data_jobs(self) -> list[DataJob]:
        """All jobs that prepare data."""
        evaluated = [self.evaluated_examples(task_of(name)) for name in self.recipe.evaluate]
        return list(
            dict.fromkeys([self.documents_job, self.kept_job, self.tokenizer_job, *self.examples_jobs.values(), *evaluated])
        )

    @property
    def examples_keys(self) -> dict[str, str]:
        """Key of pregenerated examples in their path -> the first phase that reads them."""
        keys: dict[str, str] = {}
        for phase, job in self.examples_jobs.items():
            keys.setdefault(job.key, phase)
        return keys

    @functools.cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the run, in its path."""
        weights = self._content(self._init_from, self.init_model.weights_files) if self.init_model else None
        return identity.fingerprint(self.recipe, [job.document for job in self.examples_jobs.values()], weights)

    @property
    def shards(self) -> list[str]:
        """Names of the dataset's shards: one for each of its files, or one for a folder."""
        return self.documents_job.shards

    @property
    def phases(self) -> list[str]:
        """Names of the training phases, in order."""
        return list(self.recipe.pretrain)

    def model_download(self, name: str, model: PretrainedModel, file: ModelFile) -> Path:
        """Return the path of a file of a published model, in a folder named after the content of the files used together."""
        together = next(files for files in (model.weights_files, model.tokenizer_files) if file in files)
        return self.work / "downloads" / "models" / name / identity.digest(self._content((name, model), together)) / file

    @property
    def tokenizer_files(self) -> list[Path]:
        """Files of the imported tokenizer."""
        model = cast(PretrainedModel, self.tokenizer_model)
        return self._model_files((str(self.recipe.tokenizer.from_model), model), model.tokenizer_files)

    def starting_weights(self, phase: str) -> list[Path]:
        """Return the starting weights and configuration of a phase: the previous phase's, those of `init_from`, or none."""
        before = self.phase_before(phase)
        if before is not None:
            return [self.model_folder(before) / file for file in ("model.safetensors", "config.json")]
        return [] if self.init_model is None else self._model_files(self._init_from, self.init_model.weights_files)

    @property
    def _init_from(self) -> NamedModel:
        return str(self.recipe.init_from), cast(PretrainedModel, self.init_model)

    @property
    def _reference(self) -> NamedModel:
        return str(self.recipe.expect_reference), cast(PretrainedModel, self.reference_model)

    def _content(self, named: NamedModel, files: Sequence[ModelFile]) -> dict[str, str]:
        return identity.part_of(identity.model_content(*named, self.work / "folders", self._command), files)

    def _model_files(self, named: NamedModel, files: Sequence[ModelFile]) -> list[Path]:
        """Return the paths of files that are downloaded, converted, or copied from a folder; they include the content's key."""
        name, model = named
        if model.converted and files == model.weights_files:
            folder = self.work / "converted" / f"{name}-{identity.digest(self._content(named, files))}"
            return [folder / file for file in WEIGHTS_FILES]
        if model.folder is None:
            return [self.model_download(name, model, file) for file in files]
        folder = self.work / "models" / f"{name}-{identity.digest(self._content(named, files))}"
        return [folder / file for file in files]

    def starting_sha256(self, phase: str) -> dict[str, str]:
        """Return file name -> sha256 in the recipe, of the weights a phase starts from; empty for weights trained here."""
        if self.init_model is None or self.phase_before(phase) is not None:
            return {}
        return self._weights_sha256(self._init_from)

    def evaluated_sha256(self, of: str) -> dict[str, str]:
        """Return file name -> sha256 in the recipe, of the evaluated weights; empty for weights trained here."""
        if of == TRAINED:
            return {}
        return self.starting_sha256(self.phases[0]) if of == BEFORE else self._weights_sha256(self._reference)

    def _weights_sha256(self, named: NamedModel) -> dict[str, str]:
        return {} if named[1].converted else self._content(named, named[1].weights_files)

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, in the format of the `tokenizers` library."""
        return self.tokenizer_job.tokenizer

    def examples(self, phase: str, shard: str, split: str) -> Path:
        """Return the path of the pregenerated examples of one shard and split: a stream of tokens, or a table."""
        return self.examples_jobs[phase].examples(shard, split)

    @property
    def document_files(self) -> list[Path]:
        """Paths of all documents, without removed ones; a dataset of tokens has none."""
        if self.dataset.is_tokenized:
            return []
        return [self.kept_job.documents(shard, split) for shard in self.shards for split in SPLITS]

    def manifest(self, phase: str) -> Path:
        """Return the path of the manifest, which lists all shards of a phase's examples with their hashes."""
        return self.examples_jobs[phase].manifest

    def phase_before(self, phase: str) -> str | None:
        """Return the phase whose weights a phase starts from; None for the first."""
        position = self.phases.index(phase)
        return self.phases[position - 1] if position else None

    @property
    def process_hosts(self) -> int:
        """Number of hosts on which Slurm starts the processes of training; 1 where no machine is named."""
        return 1 if self.machine is None else self.machine.process_hosts

    @property
    def run_name(self) -> str:
        """Name of the run in `work/runs/`: the published one, without `@MACHINE` on the recipe's own machine."""
        published = RunName.parse(self.published_name)
        return str(published._replace(machine=None) if self.own_machine else published)

    @property
    def published_name(self) -> str:
        """Name in `results/NAME`: without settings of how the run is executed, with which it is the same run."""
        return str(RunName.parse(self.name).published)

    @property
    def run_folder(self) -> Path:
        """Folder of the products that only this recipe has."""
        return self.work / "runs" / self.run_name / self.fingerprint

    def model_folder(self, phase: str) -> Path:
        """Return the folder of the trained model of a phase, in the format of `transformers`."""
        return self.run_folder / phase / "model"

    @property
    def logs(self) -> list[Path]:
        """Paths of the `train.jsonl` of all finished phases, in order."""
        return [final_logs(self.run_folder / phase)[LOG] for phase in self.phases]

    def device_figures(self) -> dict[str, Path]:
        """Return phase -> its `device.json`, for phases that have one because their device compiles programs."""
        files = {phase: self.run_folder / phase / DEVICE_FIGURES for phase in self.phases}
        return {phase: path for phase, path in files.items() if path.is_file()}

    @property
    def compilation(self) -> Path:
        """Path of the findings of `relm compile`, if it was run."""
        return self.run_folder / "compile.json"

    def kept_optimizer(self, phase: str) -> Path | None:
        """Return the checkpoint whose optimizer state a phase keeps, the last of the phase before; None: a fresh optimizer."""
        before = self.phase_before(phase)
        if before is None or self.recipe.pretrain[phase].optimizer_state == "fresh":
            return None
        return checkpoint_folder(self.run_folder / before / "checkpoints", self.recipe.pretrain[before].steps)

    def evaluations(self, of: str = TRAINED) -> dict[str, Path]:
        """Return task -> path of its figures, for the trained weights, the starting weights or the authors' released ones."""
        return {task: self.run_folder / of / key / f"{task}.json" for task, key in self.evaluation_keys(of).items()}

    def evaluation_keys(self, of: str) -> dict[str, str]:
        """Return task -> key in the path of its figures; empty without such weights."""
        if (of == BEFORE and self.init_model is None) or (of == REFERENCE and self.reference_model is None):
            return {}
        return self._evaluation_keys[of]

    @functools.cached_property
    def _evaluation_keys(self) -> dict[str, dict[str, str]]:
        trained = {task_of(name): identity.digest(self.evaluation_document(task_of(name))) for name in self.recipe.evaluate}
        others = [task for task in trained if not self.evaluation(task).trained_only]
        released = {} if self.reference_model is None else self._content(self._reference, self._reference[1].weights_files)
        of_released = {task: identity.digest([trained[task], released]) for task in others}
        return {TRAINED: trained, BEFORE: {task: trained[task] for task in others}, REFERENCE: of_released}

    def evaluation_document(self, task: str) -> dict[str, Any]:
        """Return what decides the figures of an evaluation, except the weights: its identity, and the files that it reads."""
        test = self.tests.get(task)
        files = {} if test is None else {name: test.files[name].identity for name in test.inputs.values()}
        examples = self.evaluated_examples(task).key if "manifest" in self.evaluation(task).inputs else None
        return {"job": self.evaluation_identity(task), "files": files, "examples": examples, "limit": self.evaluation_limit}

    def verdict(self, of: str = TRAINED) -> Path:
        """Return the path of the verdict on the trained weights of all seeds, or on the authors' released ones."""
        figures = {run.fingerprint: run.evaluation_keys(of) for run in (self.runs if of == TRAINED else (self,))}
        key = identity.verdict_key(self.recipe, figures, self.reference_runs)
        return self.run_folder / VERIFY / key / f"verify{'' if of == TRAINED else f'_{of}'}.json"

    @property
    def report_folder(self) -> Path:
        """Folder of the report, whose key is also in its `recipe.json`."""
        return self.run_folder / "report" / self.report_key

    @property
    def report_key(self) -> str:
        """Key in the path of the report."""
        return identity.report_key(self._reported)

    @functools.cached_property
    def _reported(self) -> str:
        """Digest of the rest of a report's identity: the verdict, and the words of the recipe and of what it names."""
        named = [self.dataset, self.tokenizer_model, self.init_model, *self.tests.values()]
        parts = [self.verdict().parent.name, self.evaluation_keys(BEFORE), {}]  # {} keeps the keys of earlier reports
        return identity.reported_digest(self.recipe, named, parts)

    def evaluation(self, task: str) -> EvaluationDeclaration:
        """Return the declaration of the evaluation with a result of this name."""
        declaration = find_evaluation(task, self.tests)
        if declaration is None:
            known = ", ".join([*names_in_recipes(), *self.tests])
            raise RelmError(f"recipe {self.name} has no evaluation {task}: give evaluate: [...] one of {known}")
        return declaration

    def evaluation_identity(self, task: str) -> dict[str, Any]:
        """Return the identity of the evaluation with a result of this name, as its command takes it in `--job`."""
        declaration, test = self.evaluation(task), self.tests.get(task)
        return identity.evaluation_identity(declaration, task, self.recipe, test=test, language=self.dataset.language)

    def evaluated_model(self, of: str) -> list[Path]:
        """Return the paths of the evaluated weights and their configuration."""
        if of == TRAINED:
            folder = self.model_folder(self.phases[-1])
            return [folder / "model.safetensors", folder / "config.json"]
        if of == BEFORE:
            return self.starting_weights(self.phases[0])
        return self._model_files(self._reference, self._reference[1].weights_files)

    @property
    def evaluation_limit(self) -> int | None:
        """Number of examples that each evaluation of a smoke twin reads; None: all."""
        return SMOKE_EXAMPLES if self.name.startswith(SMOKE) else None

    def test_downloads(self, test: str) -> dict[str, Path]:
        """Return each input of the test's protocol that is a file -> its path, in a folder named after its identity."""
        return self._downloads_of(test, self.tests[test])

    def _downloads_of(self, test: str, spec: PublishedTest) -> dict[str, Path]:
        folder = self.work / "downloads" / "evaluations" / test
        return {key: folder / spec.files[name].key / name for key, name in spec.inputs.items()}

    @property
    def results(self) -> Path:
        """Folder of the published results."""
        return Path("results") / self.published_name

    @property
    def reference_results(self) -> Path:
        """Folder of the figures of the authors' released weights."""
        return Path("results") / "reference" / self.published_name
