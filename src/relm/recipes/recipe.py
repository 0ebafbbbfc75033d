"""The sections of a recipe, `recipes/NAME.yaml`, which describes one run.

Every key is documented here; the JSON Schema for editors is generated from these classes. Nothing heavy is imported, because
Snakemake reads recipes whenever it starts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from relm.errors import RelmError
from relm.recipes.architectures import Architecture
from relm.recipes.curves import ExpectedCurve
from relm.recipes.declaration import refuse_keys_of_others, register_with_options
from relm.recipes.devices import DEVICES
from relm.recipes.evaluation.evaluations import (
    EVALUATIONS,
    PROTOCOLS,
    Diacritics,
    Evaluation,
    EvaluationDeclaration,
    MaskedLm,
    RandomWindows,
    objectives_of,
)
from relm.recipes.evaluation.expectations import Expectation
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.files.web_address import WebAddress
from relm.recipes.machine.pipeline_rules import find_broken_rule
from relm.recipes.names_in_recipe import names_test
from relm.recipes.objectives import OBJECTIVES
from relm.recipes.phase import Phase
from relm.recipes.run import OnMachine, Run
from relm.recipes.section import Section, Slug, raise_together, read_extended, validate

Metric = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$")]


class Paper(Section):
    """The publication that reports the run."""

    key: Slug
    """Short name; `snakemake paper_KEY` runs all recipes of the paper and writes `results/papers/KEY/`."""
    title: str
    """Title as published."""
    url: WebAddress
    """Address of the publication."""


class Removal(Section):
    """The documents that are removed before a tokenizer or a model sees them."""

    duplicates: bool = False
    """Remove all but the first of documents whose texts are equal but for case and white space; held-out ones come first."""
    tests: list[Slug] = Field(default_factory=list)
    """Tests: the names of files in `recipes/evaluations/`. The words that a document shares with an item, 13 in a row, and what
    is near them are cut out, by the rules of Megatron-LM's filter_ngrams.py; what is left is one document or several."""


class DataChoice(Section):
    """The documents of the run."""

    dataset: Slug
    """Dataset: the name of a file in `recipes/data/`."""
    documents: int | None = Field(default=None, gt=0)
    """Largest number of documents read from each shard; null: all."""
    remove: Removal | None = None
    """Documents that are removed; null: none."""


class TokenizerChoice(Section):
    """The tokenizer: imported from a model in `recipes/models/`, or trained on the training documents."""

    from_model: Slug | None = None
    """Published model whose tokenizer is imported: the name of a file in `recipes/models/`."""
    train: Literal["byte_level_bpe", "roberta_byte_level_bpe", "wordpiece", "characters"] | None = None
    """Kind of tokenizer that is trained instead; roberta_byte_level_bpe has RoBERTa's special tokens, for masked sequences."""
    vocabulary_size: int | None = Field(default=None, gt=256)
    """Vocabulary size of a trained tokenizer, special tokens included; for all kinds but characters."""
    lower_case: bool = False
    """Remove case and accents, as in BERT's uncased models; for a trained wordpiece."""
    special_tokens: bool = True
    """Include an end-of-text token and a token for unknown characters; for characters. If false, phases must have
    causal.end_of_text: never."""
    training_bytes: int = Field(default=50_000_000, gt=0)
    """Bytes of text, from the beginning of the first shard on, that the tokenizer is trained on."""

    @model_validator(mode="after")
    def taken_or_trained(self) -> Self:
        if (self.from_model is None) == (self.train is None):
            raise ValueError("a tokenizer has either from_model or train")
        trained = ("vocabulary_size", "training_bytes")
        keys = {"byte_level_bpe": trained, "roberta_byte_level_bpe": trained, "wordpiece": (*trained, "lower_case")}
        refuse_keys_of_others(self, "train", {**keys, "characters": ("training_bytes", "special_tokens")})
        if self.train in keys and self.vocabulary_size is None:
            raise ValueError(f"vocabulary_size: train: {self.train} needs one, such as 1024")
        return self


class Control(Section):
    """The recipe with which this one is compared, each run with that of the same seed, where both have the same paper key."""

    recipe: Slug
    """Name of the other recipe."""
    change: str
    """The one thing in which this recipe differs, as the paper's table names it."""
    metrics: list[Metric] = Field(min_length=1)
    """Metrics whose differences the paper's table shows: TASK.FIGURE, as in eval/TASK.json."""


class Recipe(Section):
    """`recipes/NAME.yaml`: one run."""

    title: str
    """Title of the run: the model and its data."""
    paper: Paper | None = None
    """Publication that reports the run."""
    source: str | None = None
    """Original code: repository and revision."""
    data: DataChoice
    """Documents of the run."""
    tokenizer: TokenizerChoice
    """Tokenizer of the run."""
    model: Architecture
    """Model architecture and its sizes."""
    init_from: Slug | None = None
    """Starting weights: the name of a file in `recipes/models/`; null: random weights."""
    seed: int = Field(default=0, ge=0)
    """Random seed of the initial weights, the order of the data and dropout."""
    seeds: int = Field(default=1, gt=0)
    """Number of runs with one verdict on the mean of their figures: seed, seed + 1 and so on, and random_windows.seed likewise.
    Their spread is the noise of the figures; the published model is the first run's. Not part of the fingerprint."""
    pretrain: dict[Slug, Phase] = Field(min_length=1)
    """Phase name -> phase, in the order of training."""
    evaluate: list[Evaluation] = Field(default_factory=list)
    """Evaluations. On held-out documents: held_out, perplexity by token, word and byte; random_windows, the loss on random
    windows; masked_lm, the loss of masked tokens; diacritics, the accuracy of restored diacritics; samples, generated text.
    From the training log: training, the time and speed of training. On a published test file: the name of a file in
    `recipes/evaluations/`. With the language-model evaluation harness: lm_eval:TASK."""
    random_windows: RandomWindows = RandomWindows()
    """Options of the evaluation random_windows."""
    masked_lm: MaskedLm = MaskedLm()
    """Options of the evaluation masked_lm."""
    diacritics: Diacritics = Diacritics()
    """Options of the evaluation diacritics."""
    expect_reference: Slug | None = None
    """The authors' released weights: the name of a file in `recipes/models/`. `snakemake results/reference/NAME` evaluates them
    with the same code, so that a wrong evaluation is found before an expensive run."""
    run: Run = Run()
    """Machine, parallelism, logging and checkpoints."""
    on: dict[Slug, OnMachine] = Field(default_factory=dict)
    """Machine -> the keys of `run` that it needs for this model, where `results/NAME@MACHINE` runs on it."""
    expect: list[Expectation] = Field(default_factory=list)
    """Published figures with which the results are compared."""
    expect_curve: ExpectedCurve | None = None
    """Published loss curve against which training is watched, step by step; null: none."""
    control: Control | None = None
    """Recipe from which this one differs in one thing, compared seed by seed; null: none. Not part of the fingerprint."""
    original_corpus: str | None = None
    """Corpus of the original in whose place the dataset stands; a sentence on it is the first of the deviations in the report.
    null: the dataset is the original's, or another deviation says what it is. Not part of the fingerprint."""
    deviations: list[str] = Field(default_factory=list)
    """Differences from the paper and their reasons, one sentence each."""

    @model_validator(mode="after")
    def keys_go_together(self) -> Self:
        """Check all rules between keys, so that one broken rule hides no other."""
        raise_together((
            self.objectives_fit_the_model, self.all_phases_have_pairs_or_none,
            self.evaluations_fit_the_objective, self.sequences_fit, self.batches_are_divisible, self.pipelines_keep_their_rules,
            self.kept_optimizers_follow_the_same_kind,
        ))  # fmt: skip
        return self

    def objectives_fit_the_model(self) -> None:
        terms = set(self.model.declaration.terms)
        fitting = [objective for objective in OBJECTIVES if terms & set(objective.labels)]
        possible = [objective.name for objective in fitting if not objective.is_of_task]
        for name, phase in self.pretrain.items():
            if phase.declaration not in fitting:
                raise ValueError(
                    f"pretrain.{name}.objective: architecture {self.model.architecture} trains with {' or '.join(possible)}, "
                    f"found {phase.objective}"
                )

    def all_phases_have_pairs_or_none(self) -> None:
        pairs = {name: phase.masked.packing == "sentence_pairs" for name, phase in self.pretrain.items()}
        if len(set(pairs.values())) > 1:
            without = next(name for name, has in pairs.items() if not has)
            raise ValueError(f"pretrain.{without}.masked.packing: sentence_pairs in one phase needs them in all")

    def evaluations_fit_the_objective(self) -> None:
        last = list(self.pretrain.values())[-1].objective
        for evaluation in self.evaluate:
            if not names_test(evaluation) and last not in objectives_of(evaluation):
                wanted = " or ".join(objectives_of(evaluation))
                raise ValueError(f"evaluate: {evaluation}: for objective {wanted}; the last phase has {last}")
        if twice := next((task for task in self.evaluate if self.evaluate.count(task) > 1), None):
            raise ValueError(f"evaluate: {twice} is there twice; remove one")

    def sequences_fit(self) -> None:
        for name, phase in self.pretrain.items():
            longest = self.model.longest_sequence
            if longest is not None and phase.sequence_length > longest:
                raise ValueError(
                    f"pretrain.{name}.sequence_length ({phase.sequence_length}) exceeds model.positions ({longest})"
                )

    def batches_are_divisible(self) -> None:
        processes, devices, micro = self.run.processes, self.run.devices_of_process, self.run.micro_batch_size
        for name, phase in self.pretrain.items():
            size, batch = phase.global_batch_size, f"pretrain.{name}.global_batch_size ({phase.global_batch_size})"
            rules = [
                (size % processes, f"run.processes ({processes}) must divide {batch}"),
                (size % devices, f"the {devices} devices of run.topology ({self.run.topology}) must divide {batch}"),
            ]
            if micro is not None:
                key, shares = f"run.micro_batch_size ({micro})", f" / loss_shares ({phase.loss_shares})"
                slice_ = f"{devices} devices of {self.run.topology}, which share each micro-batch"
                rules += [
                    (phase.share_size % micro, f"{key} must divide {batch}{shares if phase.loss_shares > 1 else ''}"),
                    (size // processes % micro, f"{key} must divide {batch} / run.processes ({processes})"),
                    (micro % devices, f"{key} must be a multiple of the {slice_}"),
                ]
            if broken := next((words for rest, words in rules if rest), None):
                raise ValueError(broken)

    def pipelines_keep_their_rules(self) -> None:
        pipelined = DEVICES[self.run.device].pipelined
        if self.run.pipeline is not None and not pipelined:
            devices = " or ".join(device.name for device in DEVICES if device.pipelined)
            raise ValueError(
                f"run.pipeline: needs device: {devices}, found {self.run.device}; for a machine with IPUs write it "
                "under on.MACHINE.pipeline"
            )
        if self.run.pipeline is None and pipelined:
            raise ValueError(
                f"run.pipeline: missing, and device: {self.run.device} needs one; give layers_per_ipu (the number of layers on "
                "each IPU) and gradient_accumulation at least, under on.MACHINE.pipeline if the run is on a machine"
            )
        for machine, keys in self.on.items():
            if (rule := find_broken_rule(f"on.{machine}", keys, self.model, self.pretrain)) is not None:
                raise ValueError(rule)
        if (rule := find_broken_rule("run", self.run, self.model, self.pretrain, self.run.checkpoint_interval)) is not None:
            raise ValueError(rule)

    def kept_optimizers_follow_the_same_kind(self) -> None:
        before: Phase | None = None
        for name, phase in self.pretrain.items():
            if phase.optimizer_state == "kept" and (before is None or before.optimizer.name != phase.optimizer.name):
                found = "is the first" if before is None else f"follows one with {before.optimizer.name}"
                raise ValueError(
                    f"pretrain.{name}.optimizer_state: kept needs the same optimizer in the phase before; this phase {found}"
                )
            before = phase


def register_evaluation(declaration: EvaluationDeclaration) -> None:
    """Add an evaluation; one with options gets a key of its name in recipes or, if it is a protocol, in test files."""
    owner = PublishedTest if declaration.is_protocol else Recipe
    register_with_options(EVALUATIONS, declaration, owner, f"Options of the evaluation {declaration.name}.")
    if declaration.is_protocol:
        PROTOCOLS.register(declaration)


def load_recipe(path: Path, content: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe in a YAML file, with `extends` resolved; `content` is that of the file if it has been read."""
    recipe = validate(Recipe, read_extended(path) if content is None else content, path)
    if task := next((name for name, phase in recipe.pretrain.items() if phase.declaration.is_of_task), None):
        raise RelmError(
            f"{path}: pretrain.{task}.objective: {recipe.pretrain[task].objective} is that of an evaluation by "
            "fine-tuning, which trains by itself; give another one"
        )
    return recipe


def choose_seed(recipe: Recipe, number: int) -> Recipe:
    """Return the recipe of one of the runs of `seeds`, counted from 0; the first is that of the recipe itself."""
    if number == 0:
        return recipe
    update: dict[str, Any] = {"seed": recipe.seed + number, "seeds": 1}
    for declaration in EVALUATIONS:
        if declaration.seed_of_run:
            options = getattr(recipe, declaration.name)
            update[declaration.name] = options.model_copy(update={"seed": options.seed + number})
    return recipe.model_copy(update=update)
