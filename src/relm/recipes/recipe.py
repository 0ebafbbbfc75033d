"""What a recipe is: one run, in `recipes/NAME.yaml`.

Every key has a sentence here; the JSON Schema for editors is generated from these classes. Nothing heavy is imported: Snakemake
reads recipes whenever it starts.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.architectures import Architecture
from relm.recipes.declaration import NameIn
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.evaluations import Diacritics, Evaluation, MaskedLm, PseudoPerplexity, RandomWindows, objectives_of
from relm.recipes.objectives import OBJECTIVES, Objective
from relm.recipes.optimization import LossScaling, Optimizer, Schedule
from relm.recipes.section import Section, Slug, read_extended, validate


class Paper(Section):
    """The publication whose run this is."""

    key: Slug
    """A short name; `snakemake paper_KEY` makes all recipes of the paper."""
    title: str
    """As published."""
    url: str = Field(pattern=r"^https://")
    """Where it can be read."""


class DataChoice(Section):
    """Which documents are trained on."""

    dataset: Slug
    """Name of a file in `recipes/data/`."""
    documents: int | None = Field(default=None, gt=0)
    """Read only so many documents of each shard; null: all."""


class TokenizerChoice(Section):
    """The tokenizer: taken from a model in `recipes/models/`, or trained on the training documents."""

    from_model: Slug | None = None
    """Name of a file in `recipes/models/`."""
    train: Literal["byte_level_bpe", "wordpiece", "characters"] | None = None
    """Train one of this kind instead."""
    vocabulary_size: int | None = Field(default=None, gt=256)
    """Of a trained tokenizer, special tokens included; characters are as many as the text has."""
    lower_case: bool = False
    """Of a WordPiece trained here: letters lose their case and accents, as in BERT's uncased models."""
    special_tokens: bool = True
    """Of characters: false leaves out the end of text and the unknown character, so that the vocabulary is the text's own;
    phases then have causal.end_of_text: never."""
    training_bytes: int = Field(default=50_000_000, gt=0)
    """How much text, from the first shard's beginning on, a tokenizer is trained on."""

    @model_validator(mode="after")
    def taken_or_trained(self) -> Self:
        if (self.from_model is None) == (self.train is None):
            raise ValueError("a tokenizer has either from_model or train")
        if (self.train in (None, "characters")) != (self.vocabulary_size is None):
            raise ValueError("vocabulary_size goes with train: byte_level_bpe or wordpiece, and these with vocabulary_size")
        if self.train is None and self.training_bytes != type(self).model_fields["training_bytes"].default:
            raise ValueError("training_bytes goes with train; leave it out")
        if self.lower_case and self.train != "wordpiece":
            raise ValueError("lower_case goes with train: wordpiece")
        if not self.special_tokens and self.train != "characters":
            raise ValueError("special_tokens: false goes with train: characters; leave it out")
        return self


class Phase(Objective):
    """One stretch of training with one objective, length and schedule; the next phase goes on from its weights."""

    global_batch_size: int = Field(gt=0)
    """Sequences per optimizer step, over all devices."""
    steps: int = Field(gt=0)
    """Optimizer steps."""
    optimizer: Optimizer
    """How gradients become updates."""
    schedule: Schedule = Schedule()
    """The learning rate over the steps."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the computation; master weights and optimizer state are float32, unless optimizer.state_precision says otherwise."""
    loss_scaling: LossScaling = LossScaling()
    """By what the loss is multiplied, so that small gradients do not vanish in float16."""
    loss_normalisation: Literal["global_tokens", "per_replica", "per_micro_batch"] = "global_tokens"
    """global_tokens: the mean over all scored tokens of the global batch, however it is cut; per_replica, per_micro_batch: the
    mean of the means over equal shares of it, as an original with so many replicas or micro-batches had it."""
    loss_shares: int = Field(default=1, gt=0)
    """How many shares those are, replicas times micro-batches for per_micro_batch."""
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    """fresh: begin as a new optimizer does; kept: go on with what the phase before left, its count of updates included."""

    @property
    def share_size(self) -> int:
        """Sequences of one share of the global batch."""
        return self.global_batch_size // self.loss_shares

    @model_validator(mode="after")
    def shares_are_equal(self) -> Self:
        if (self.loss_normalisation == "global_tokens") != (self.loss_shares == 1):
            raise ValueError(
                f"loss_shares ({self.loss_shares}) goes with loss_normalisation: per_replica or per_micro_batch, at least two "
                f"of them; found {self.loss_normalisation}"
            )
        if self.global_batch_size % self.loss_shares:
            raise ValueError(f"loss_shares ({self.loss_shares}) must divide global_batch_size ({self.global_batch_size})")
        return self

    @model_validator(mode="after")
    def warms_up_within_the_phase(self) -> Self:
        length = self.schedule.length(self.steps)
        if self.schedule.warmup(self.steps) >= length:
            raise ValueError(f"schedule.warmup_steps ({self.schedule.warmup(self.steps)}) must be below steps ({length})")
        end = self.schedule.decay_end
        if end is not None and end <= self.schedule.warmup(self.steps):
            raise ValueError(f"schedule.decay_end ({end}) must lie after the warm-up ({self.schedule.warmup(self.steps)})")
        return self


class Run(Section):
    """Where and how it runs. Nothing here changes what the run means, and nothing here is in the fingerprint."""

    device: Annotated[str, NameIn(DEVICES)] = HOST
    """Which accelerator trains."""
    processes: int = Field(default=1, gt=0)
    """How many processes share each global batch: one a GPU, or on a CPU as many as are wanted."""
    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass of one process; null: the process's part of the global batch, or of one of its loss_shares."""
    topology: str | None = None
    """Of a TPU: which slice, such as v3-8, in Google Cloud's words; null: whatever is there."""
    threads: int | None = Field(default=None, gt=0)
    """CPU threads of each process; null: all the cores it may use. Another number rounds differently."""
    compile: bool | None = None
    """Have torch.compile make one program of the forward and backward pass, which rounds differently; null: on cuda."""
    deterministic: bool = True
    """The same steps give the same bits again on the same kind of device; false lets cuda take whatever kernel is fastest."""
    activation_checkpointing: bool = False
    """Compute each layer anew in the backward pass: less memory, a third more arithmetic, the same numbers."""
    checkpoint_interval: int = Field(default=500, gt=0)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """How many of the newest stay on disk."""
    keep_every: int | None = Field(default=None, gt=0)
    """Beside these, every so-manyth checkpoint stays; null: none."""
    log_interval: int = Field(default=10, gt=0)
    """Steps between lines of train.jsonl."""
    validation_interval: int | None = Field(default=None, gt=0)
    """Steps between looks at the held-out examples, whose loss goes into train.jsonl; null: never."""
    validation_batches: int = Field(default=20, gt=0)
    """Global batches of each look, always the same ones; fewer where there are not so many."""
    loggers: list[Literal["tensorboard", "wandb"]] = Field(default_factory=list)
    """Where the lines of train.jsonl go as well; wandb writes to the disk unless WANDB_MODE=online."""
    peak_teraflops: float | None = Field(default=None, gt=0)
    """What one device can do at most, in 10^12 operations a second, for the utilisation in train.jsonl; null: what is published
    of a known accelerator, and nothing for a CPU."""

    @model_validator(mode="after")
    def topologies_are_of_the_device(self) -> Self:
        if self.topology is None:
            return self
        owners = [declaration.name for declaration in DEVICES if self.topology in declaration.topologies]
        if not owners:
            known = ", ".join(name for declaration in DEVICES for name in declaration.topologies)
            raise ValueError(f"topology: expected one of {known}; found {self.topology}")
        if self.device not in owners:
            expected = " or ".join(owners)
            raise ValueError(f"topology ({self.topology}) goes with device: {expected}, found {self.device}; leave it out")
        return self

    @property
    def devices_of_process(self) -> int:
        """How many devices one process splits its micro-batch over: those of its topology, otherwise 1."""
        return DEVICES[self.device].topologies[self.topology].devices if self.topology else 1


class Noise(Section):
    """How much a figure moves from seed to seed."""

    standard_deviation: float = Field(gt=0)
    """Of single runs."""
    runs: int = Field(ge=2)
    """How many runs it was computed from."""
    source: str
    """Our own seeds, or the study it is taken from."""


class Expectation(Section):
    """One published figure, and how near is near enough."""

    metric: str = Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$")
    """TASK.FIGURE, as in eval/TASK.json."""
    value: float
    """As published."""
    tolerance: float = Field(gt=0)
    """A difference up to this counts as the same."""
    basis: str
    """Why this tolerance; a figure without a basis is refused."""
    place: str
    """Table, figure or page that states it."""
    noise: Noise | None = None
    """Seed-to-seed noise; without it the row shows the difference and no verdict beyond it."""
    published_runs: int = Field(default=1, gt=0)
    """Over how many runs the published value is a mean."""
    comparable: bool = True
    """False where the published protocol differs from ours; the row then says so."""
    measured_on: str | None = None
    """Of a time or a speed: the `run.topology` on which it was measured; on any other, and on none, the row is not compared."""


class Recipe(Section):
    """`recipes/NAME.yaml`: one run."""

    title: str
    """What it trains, on what."""
    paper: Paper | None = None
    """The publication whose run this is."""
    source: str | None = None
    """The original's code: repository and revision."""
    data: DataChoice
    """Which documents."""
    tokenizer: TokenizerChoice
    """How text becomes ids."""
    model: Architecture
    """What is trained."""
    init_from: Slug | None = None
    """Starting weights, from `recipes/models/`; null: random."""
    seed: int = Field(default=0, ge=0)
    """Of the initial weights, the order of the data and dropout."""
    pretrain: dict[Slug, Phase] = Field(min_length=1)
    """Phase name -> phase, in this order."""
    evaluate: list[Evaluation] = Field(default_factory=list)
    """On the held-out documents: held_out, perplexity by token, word and byte; random_windows, the loss on some windows;
    masked_lm, the loss of masked tokens; pseudo_perplexity, each token masked alone; diacritics, how well they are restored;
    samples, text the model writes. training: what training took, by its log. On a published test file: the name of a file
    in `recipes/evaluations/`. By the language-model evaluation harness: lm_eval:TASK."""
    random_windows: RandomWindows = RandomWindows()
    """How many windows, where they are evaluated."""
    masked_lm: MaskedLm = MaskedLm()
    """Which masks, where the loss of masked tokens is evaluated."""
    pseudo_perplexity: PseudoPerplexity = PseudoPerplexity()
    """How many examples, where it is evaluated."""
    diacritics: Diacritics = Diacritics()
    """How many texts, where they are evaluated."""
    expect_reference: Slug | None = None
    """The authors' released weights, from `recipes/models/`: `snakemake results/reference/NAME` evaluates these with the same
    code, so that a wrong evaluation is found before a run is paid for."""
    run: Run = Run()
    """Where and how it runs."""
    expect: list[Expectation] = Field(default_factory=list)
    """The published figures."""
    deviations: list[str] = Field(default_factory=list)
    """What differs from the paper and why, a sentence each."""

    @model_validator(mode="after")
    def objectives_fit_the_model(self) -> Self:
        terms = set(self.model.declaration.terms)
        possible = [objective.name for objective in OBJECTIVES if terms & set(objective.labels)]
        for name, phase in self.pretrain.items():
            if phase.objective not in possible:
                raise ValueError(
                    f"pretrain.{name}.objective: a {self.model.architecture} is trained with {' or '.join(possible)}, "
                    f"found {phase.objective}"
                )
        return self

    @model_validator(mode="after")
    def all_phases_have_pairs_or_none(self) -> Self:
        pairs = {name: phase.masked.packing == "sentence_pairs" for name, phase in self.pretrain.items()}
        if len(set(pairs.values())) > 1:
            without = next(name for name, has in pairs.items() if not has)
            raise ValueError(f"pretrain.{without}.masked.packing: sentence_pairs in one phase needs them in all")
        return self

    @model_validator(mode="after")
    def evaluations_fit_the_objective(self) -> Self:
        last = list(self.pretrain.values())[-1].objective
        for evaluation in self.evaluate:
            if last not in objectives_of(evaluation):
                wanted = " or ".join(objectives_of(evaluation))
                raise ValueError(f"evaluate: {evaluation}: for objective {wanted}; the last phase has {last}")
        if twice := next((task for task in self.evaluate if self.evaluate.count(task) > 1), None):
            raise ValueError(f"evaluate: {twice} is there twice; leave one out")
        return self

    @model_validator(mode="after")
    def sequences_fit(self) -> Self:
        for name, phase in self.pretrain.items():
            longest = self.model.longest_sequence
            if longest is not None and phase.sequence_length > longest:
                raise ValueError(
                    f"pretrain.{name}.sequence_length ({phase.sequence_length}) exceeds model.positions ({longest})"
                )
        return self

    @model_validator(mode="after")
    def batches_fall_into_pieces(self) -> Self:
        for name, phase in self.pretrain.items():
            processes, batch = self.run.processes, f"pretrain.{name}.global_batch_size ({phase.global_batch_size})"
            if phase.global_batch_size % processes:
                raise ValueError(f"run.processes ({processes}) must divide {batch}")
            if phase.global_batch_size % (devices := self.run.devices_of_process):
                raise ValueError(f"the {devices} devices of run.topology ({self.run.topology}) must divide {batch}")
            if self.run.micro_batch_size is None:
                continue
            if phase.share_size % self.run.micro_batch_size:
                shares = f" / loss_shares ({phase.loss_shares})" if phase.loss_shares > 1 else ""
                raise ValueError(f"run.micro_batch_size ({self.run.micro_batch_size}) must divide {batch}{shares}")
            if (phase.global_batch_size // processes) % self.run.micro_batch_size:
                raise ValueError(
                    f"run.micro_batch_size ({self.run.micro_batch_size}) must divide {batch} / run.processes ({processes})"
                )
        return self

    @model_validator(mode="after")
    def kept_optimizers_go_on(self) -> Self:
        before: Phase | None = None
        for name, phase in self.pretrain.items():
            if phase.optimizer_state == "kept" and (before is None or before.optimizer.name != phase.optimizer.name):
                found = "is the first" if before is None else f"follows one with {before.optimizer.name}"
                raise ValueError(
                    f"pretrain.{name}.optimizer_state: kept goes on with the optimizer of the phase before; this phase {found}"
                )
            before = phase
        return self


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file, `extends` resolved."""
    return validate(Recipe, read_extended(path), path)
