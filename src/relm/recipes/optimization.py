"""How a phase's gradients become updates: the sections of a recipe for optimizer, learning rate and loss scaling."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn, Registry, add_options
from relm.recipes.section import Section

Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class OptimizerDeclaration:
    """An optimizer that a phase may name."""

    name: str
    build: str
    """Reference to a function of parameter groups and an `Optimizer` section that returns a `torch.optim.Optimizer`."""
    count_state: Callable[[tuple[int, ...], "Optimizer"], int]
    """Returns the count of numbers that it keeps for a parameter of a shape."""
    keys: tuple[str, ...] = ()
    """The keys of `Optimizer` that it reads beside those that every optimizer reads."""
    options: type[Section] | None = None
    """A section of keys of its own, which lies under the optimizer's name."""


@dataclass(frozen=True)
class ScheduleDeclaration:
    """A learning-rate schedule that a phase may name."""

    name: str
    scale: str
    """Reference to a function of a `Schedule`, the step's number and the phase's updates that returns the share of the peak."""
    keys: tuple[str, ...] = ()
    """The keys of `Schedule` that it reads beside those that every schedule reads."""
    options: type[Section] | None = None
    """A section of keys of its own, which lies under the schedule's name."""


class LambOptions(Section):
    """Keys of LAMB alone (You et al. 2020)."""

    adapted: Literal["matrices", "all"] = "matrices"
    """Which parameters get a trust ratio: all but vectors (biases, normalisation), or every one."""
    weight_norm_clip: Positive | None = None
    """A weight's norm counts as at most this in its trust ratio; null: as it is."""
    normalise_gradient: bool = False
    """Divide the whole gradient by its norm first, where that exceeds 1 (NVLAMB)."""


class AdafactorOptions(Section):
    """Keys of Adafactor alone (Shazeer and Stern 2018), with the names and formulas of transformers' optimizer."""

    epsilons: tuple[Positive, Positive] = (1e-30, 1e-3)
    """Added to the squared gradient; least root mean square of a parameter under scale_parameter."""
    clip_threshold: float = Field(default=1.0, gt=0)
    """An update whose root mean square exceeds this is scaled down to it."""
    decay_rate: float = Field(default=-0.8, lt=0)
    """The second moment decays by 1 - step ** decay_rate."""
    beta1: Share | None = None
    """Decay of the first moment; null: none is kept."""
    scale_parameter: bool = True
    """Multiply the learning rate by the root mean square of each parameter."""
    relative_step: bool = False
    """The learning rate is min(0.01, 1 / sqrt(step)); learning_rate is then 1, and multiplies it."""
    warmup_init: bool = False
    """With relative_step: min(1e-6 * step, 1 / sqrt(step)) instead."""

    @model_validator(mode="after")
    def warms_up_the_relative_step(self) -> Self:
        if self.warmup_init and not self.relative_step:
            raise ValueError("warmup_init goes with relative_step: true; set it, or leave warmup_init out")
        return self


class SgdOptions(Section):
    """Keys of stochastic gradient descent alone."""

    momentum: Share = 0.0
    """Share of the step before that is taken again."""
    nesterov: bool = False
    """Look ahead by the momentum (Sutskever et al. 2013)."""

    @model_validator(mode="after")
    def looks_ahead_by_a_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov goes with a momentum above 0; give one, or leave nesterov out")
        return self


def count_moments(shape: tuple[int, ...], settings: "Optimizer") -> int:
    """Return the count of numbers in two moments of a parameter: those of Adam and LAMB."""
    return 2 * math.prod(shape)


def count_velocity(shape: tuple[int, ...], settings: "Optimizer") -> int:
    """Return the count of numbers in the velocity of a parameter, which SGD has with momentum alone."""
    return math.prod(shape) if settings.sgd.momentum > 0 else 0


def count_factors(shape: tuple[int, ...], settings: "Optimizer") -> int:
    """Return the count of numbers in the row and column means of Adafactor, and in its first moment where it has one."""
    return (math.prod(shape) if settings.adafactor.beta1 is not None else 0) + sum(shape)


_MOMENTS = ("betas", "epsilon", "bias_correction")
OPTIMIZERS: Registry[OptimizerDeclaration] = Registry(
    "optimizer",
    OptimizerDeclaration("adamw", "relm.training.optimizers.adam:build_adamw", count_moments, keys=(*_MOMENTS, "form")),
    OptimizerDeclaration("adam", "relm.training.optimizers.adam:build_adam", count_moments, keys=(*_MOMENTS, "form")),
    OptimizerDeclaration("lamb", "relm.training.optimizers.lamb:build_lamb", count_moments, keys=_MOMENTS, options=LambOptions),
    OptimizerDeclaration(
        "adafactor", "relm.training.optimizers.adafactor:build_adafactor", count_factors, options=AdafactorOptions
    ),
    OptimizerDeclaration("sgd", "relm.training.optimizers.sgd:build_sgd", count_velocity, options=SgdOptions),
)


class Optimizer(Section):
    """How gradients become updates."""

    name: Annotated[str, NameIn(OPTIMIZERS)] = "adamw"
    """adamw: Adam with decoupled weight decay; adam: Adam with weight decay as a part of the gradient; lamb: AdamW's step of
    each parameter scaled to its norm; adafactor: a second moment kept as row and column means; sgd: gradient descent."""
    learning_rate: float = Field(gt=0)
    """At its peak."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay of the first and second moment; of adamw, adam and lamb."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment; of adamw, adam and lamb."""
    bias_correction: bool = True
    """Divide the moments by what they lack for having begun at 0; of adamw, adam and lamb."""
    form: Literal["pytorch", "transformers", "graphcore_bert"] = "pytorch"
    """Of adamw and adam. pytorch: epsilon joins the root of the corrected second moment, and weights decay before the step;
    transformers: it joins the root before the correction (end of section 2 of Kingma and Ba 2015), and weights decay after the
    step, as in AdamW of transformers 1 to 4; graphcore_bert: epsilon as in transformers, the correction is that of one step
    later and multiplies the decay too, which comes before the step, as in Graphcore's BERT for TensorFlow 1 (adamw only)."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of matrices and embeddings; vectors (biases, normalisation) are never decayed, unless `decayed` says so."""
    decayed: Literal["matrices", "all_but_biases"] = "matrices"
    """What weight_decay is for: matrices and embeddings, or also the scales of normalisations."""
    gradient_clipping: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient; null: none."""
    state_precision: Literal["float32", "bfloat16"] = "float32"
    """Of the optimizer's state and the weights that it updates. bfloat16 is what PyTorch/XLA's XLA_USE_BF16 did: small updates
    are rounded away, so it is for reproducing that alone."""
    lamb: LambOptions = LambOptions()
    """Keys of lamb alone."""
    adafactor: AdafactorOptions = AdafactorOptions()
    """Keys of adafactor alone."""
    sgd: SgdOptions = SgdOptions()
    """Keys of sgd alone."""

    @model_validator(mode="after")
    def keys_belong_to_the_optimizer(self) -> Self:
        _refuse_keys_of_others(self, OPTIMIZERS)
        if self.form == "graphcore_bert" and self.name != "adamw":
            raise ValueError(f"form: graphcore_bert is of adamw; found name: {self.name}; leave form out")
        return self

    @model_validator(mode="after")
    def the_relative_step_is_the_learning_rate(self) -> Self:
        if self.adafactor.relative_step and self.learning_rate != 1:
            raise ValueError(
                f"learning_rate: with adafactor.relative_step it multiplies the relative step, found {self.learning_rate}; "
                "give 1.0, or set relative_step: false"
            )
        return self


_WARMUP = ("warmup_steps", "warmup_share", "warmup_rounding", "warmup_power")
_FLOOR = ("floor", "floor_cuts_off")
_END = ("decay_ahead", "decay_end")
SCHEDULES: Registry[ScheduleDeclaration] = Registry(
    "schedule",
    ScheduleDeclaration("constant", "relm.training.schedules:constant", keys=_WARMUP),
    ScheduleDeclaration("linear", "relm.training.schedules:linear", keys=(*_WARMUP, *_FLOOR, *_END)),
    ScheduleDeclaration("cosine", "relm.training.schedules:cosine", keys=(*_WARMUP, *_FLOOR, *_END)),
    ScheduleDeclaration("polynomial", "relm.training.schedules:polynomial", keys=(*_WARMUP, *_FLOOR, *_END, "power")),
    ScheduleDeclaration(
        "natural_exponential",
        "relm.training.schedules:natural_exponential",
        keys=(*_WARMUP, *_FLOOR, "decay_rate", "decay_period"),
    ),
    ScheduleDeclaration("by_step", "relm.training.schedules:by_step", keys=("floor", "by_step")),
)


class Schedule(Section):
    """The learning rate over the steps of a phase."""

    name: Annotated[str, NameIn(SCHEDULES)] = "constant"
    """Its shape after the warm-up, down to floor at the last step: constant; linear; cosine: half a cycle; polynomial:
    (share of the way left) ** power; natural_exponential: exp(-decay_rate) times the value before, each decay_period steps;
    by_step: a table."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear increase from 0."""
    warmup_share: Share | None = None
    """The same as a share of the phase; null: warmup_steps."""
    warmup_rounding: Literal["down", "nearest"] = "down"
    """How warmup_share times the steps becomes a whole number; nearest: a half goes up."""
    warmup_power: float = Field(default=1.0, gt=0)
    """The increase is (step / warm-up steps) ** warmup_power."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Where it ends, as a share of the peak."""
    floor_cuts_off: bool = False
    """false: the shape is squeezed, so that it arrives at the floor; true: it falls to 0, and what is below the floor, the
    warm-up included, is raised to it."""
    power: float = Field(default=1.0, gt=0)
    """Of polynomial."""
    decay_rate: Positive | None = None
    """Of natural_exponential, which needs it."""
    decay_period: int = Field(default=1, gt=0)
    """Of natural_exponential: steps between two decreases."""
    decay_end: int | None = Field(default=None, gt=0)
    """The step at which floor is reached, which may lie beyond the phase; null: the last. warmup_share is a share of it."""
    by_step: dict[int, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Of by_step: step -> share of the peak from there on."""
    first_step: Literal[0, 1] = 1
    """The first update's number. 1: the last update takes place at the end of the shape, and the warm-up's first is above 0;
    0: as in transformers, the first update of a warm-up has learning rate 0, and the end lies one step after the last."""
    decay_ahead: Literal[0, 1] = 0
    """1: after the warm-up the steps are numbered one higher, as in Graphcore's BERT, where the number of the last update is
    steps - 1 and the linear decay arrives there."""
    updates_per_step: int = Field(default=1, gt=0)
    """How many updates share a learning rate: one step of the schedule, in which its other keys are counted (Graphcore's GPT-2:
    the updates of one call of the device)."""

    @model_validator(mode="after")
    def keys_belong_to_the_schedule(self) -> Self:
        _refuse_keys_of_others(self, SCHEDULES)
        if self.name == "natural_exponential" and self.decay_rate is None:
            raise ValueError("natural_exponential needs decay_rate; give one, such as 0.1")
        if self.name == "by_step" and min(self.by_step, default=math.inf) > self.first_step:
            found = sorted(self.by_step) or "none"
            raise ValueError(f"by_step needs a share from step {self.first_step} on; found steps {found}")
        return self

    @model_validator(mode="after")
    def warm_up_is_given_once(self) -> Self:
        if self.warmup_steps and self.warmup_share is not None:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) and warmup_share ({self.warmup_share}) say the same thing; leave one out"
            )
        if self.warmup_rounding != "down" and self.warmup_share is None:
            raise ValueError(f"warmup_rounding: {self.warmup_rounding} goes with warmup_share; give it, or leave this out")
        return self

    def length(self, updates: int) -> int:
        """Steps of the schedule in a phase of so many updates."""
        return math.ceil(updates / self.updates_per_step)

    def warmup(self, updates: int) -> int:
        """Steps of the warm-up in a phase of so many updates.

        >>> [Schedule(warmup_share=0.06, warmup_rounding=rounding).warmup(125) for rounding in ("down", "nearest")]
        [7, 8]
        """
        if self.warmup_share is None:
            return self.warmup_steps
        steps = self.warmup_share * (self.decay_end or self.length(updates))
        return int(steps + 0.5) if self.warmup_rounding == "nearest" else int(steps)


class LossScaling(Section):
    """By what the loss is multiplied before the backward pass, and the gradients divided after it.

    Small gradients are 0 in float16 otherwise (Micikevicius et al. 2018). An update whose gradients overflow is skipped.
    """

    name: Literal["static", "by_step", "automatic"] = "static"
    """static: one factor; by_step: a table; automatic: halved where gradients overflow, doubled after growth_interval updates
    without."""
    scale: float = Field(default=1.0, gt=0)
    """The factor, or the first one."""
    by_step: dict[Annotated[int, Field(gt=0)], Positive] = Field(default_factory=dict)
    """Of by_step: number of an update, counted from 1 -> factor from there on; `scale` before the first."""
    growth_interval: int = Field(default=2000, gt=0)
    """Of automatic: updates without overflow after which the factor doubles."""

    @model_validator(mode="after")
    def keys_belong_to_the_scaling(self) -> Self:
        _refuse_strange_keys(self, {"by_step": ("by_step",), "growth_interval": ("automatic",)})
        if self.name == "by_step" and not self.by_step:
            raise ValueError("by_step needs a table of factors, such as {1: 32768}; found none")
        return self


def _refuse_strange_keys(section: Any, owners: dict[str, tuple[str, ...]]) -> None:
    """Refuse keys that another choice of `name` would read, and this one does not.

    Raises:
        ValueError: names the key, what it is, and where it belongs.
    """
    fields = type(section).model_fields
    for key, names in owners.items():
        value = getattr(section, key)
        if section.name not in names and value != fields[key].get_default(call_default_factory=True):
            shown = value.model_dump(exclude_defaults=True) if isinstance(value, Section) else value
            raise ValueError(
                f"{key}: read with name: {' or '.join(names)} only, found {shown!r} with name: {section.name}; "
                "leave it out, or change name"
            )


def _refuse_keys_of_others(section: Any, registry: Registry[Any]) -> None:
    """Refuse keys that another optimizer or schedule than the named one reads.

    Raises:
        ValueError: names the key, its value, and the names that it belongs to.
    """
    keys = {declaration.name: _keys(declaration) for declaration in registry}
    owned = set().union(*keys.values())
    fields = [key for key in type(section).model_fields if key in owned]
    _refuse_strange_keys(section, {key: tuple(name for name, own in keys.items() if key in own) for key in fields})


def _keys(declaration: OptimizerDeclaration | ScheduleDeclaration) -> set[str]:
    return {*declaration.keys, *([declaration.name] if declaration.options is not None else [])}


def register_optimizer(declaration: OptimizerDeclaration) -> None:
    """Let recipes name another optimizer; its options get a key of its name.

    Raises:
        RelmError: the name is taken.
    """
    OPTIMIZERS.register(declaration)
    if declaration.options is not None:
        add_options(Optimizer, declaration.name, declaration.options, f"Keys of {declaration.name} alone.")


def register_schedule(declaration: ScheduleDeclaration) -> None:
    """Let recipes name another learning-rate schedule; its options get a key of its name.

    Raises:
        RelmError: the name is taken.
    """
    SCHEDULES.register(declaration)
    if declaration.options is not None:
        add_options(Schedule, declaration.name, declaration.options, f"Keys of {declaration.name} alone.")
