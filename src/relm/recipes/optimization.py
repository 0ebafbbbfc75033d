"""The sections of a recipe for optimizer, learning-rate schedule and loss scaling, and their declarations."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from relm.recipes.declaration import NameIn, Registry, refuse_keys_of_others, register_with_options
from relm.recipes.section import Section

Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
# The normal numbers of float32: beyond them a factor, or its inverse, is 0 or infinite, and all gradients are NaN.
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**128 - 2.0**104


def _require_float32(scale: float) -> float:
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise ValueError(f"expected a factor that float32 can hold, from {SMALLEST_SCALE:.3g} to {LARGEST_SCALE:.3g}")
    return scale


Scale = Annotated[float, Field(gt=0), AfterValidator(_require_float32)]


@dataclass(frozen=True)
class OptimizerDeclaration:
    """An optimizer that a phase may name."""

    name: str
    build: str
    """Reference to a class or function: (parameter groups, `Optimizer` section) -> `torch.optim.Optimizer`."""
    count_state: Callable[[tuple[int, ...], "Optimizer"], int]
    """Function (shape of a parameter, section) -> number of values in its optimizer state."""
    keys: tuple[str, ...] = ()
    """Keys of `Optimizer` that not every optimizer reads."""
    options: type[Section] | None = None
    """Section of its options, under the key of its name."""


@dataclass(frozen=True)
class ScheduleDeclaration:
    """A learning-rate schedule that a phase may name."""

    name: str
    scale: str
    """Reference to a function (`Schedule`, index of the step, number of the phase's updates) -> share of the peak."""
    keys: tuple[str, ...] = ()
    """Keys of `Schedule` that not every schedule reads."""
    options: type[Section] | None = None
    """Section of its options, under the key of its name."""


class LambOptions(Section):
    """Options of LAMB (You et al. 2020)."""

    adapted: Literal["matrices", "all"] = "matrices"
    """Parameters with a trust ratio. matrices: all but vectors (biases, normalisation); all: every parameter."""
    weight_norm_clip: Positive | None = None
    """Upper limit of a weight's norm in its trust ratio; null: no limit."""
    normalise_gradient: bool = False
    """Divide the whole gradient by its norm first, if that exceeds 1 (NVLAMB)."""


class MuonOptions(Section):
    """Options of Muon (Jordan et al. 2024), with the formulas of modded-nanogpt's optimization track."""

    momentum: Share = 0.95
    """Decay of the average of gradients; the update is Nesterov's."""
    norm_epsilon: float = Field(default=1e-7, gt=0)
    """Constant added to the norm by which an update is divided before it is orthogonalised."""


class ParameterGroup(Section):
    """Settings of some parameters, in place of the optimizer's."""

    learning_rate: float = Field(gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of all of them, whatever `decayed` selects."""
    betas: tuple[Share, Share] | None = None
    """Decay rates of the first and second moment; null: the optimizer's."""


class AdafactorOptions(Section):
    """Options of Adafactor (Shazeer and Stern 2018), with the names and formulas of transformers' optimizer."""

    epsilons: tuple[Positive, Positive] = (1e-30, 1e-3)
    """Constant added to the squared gradient, and lower limit of a parameter's root mean square with scale_parameter."""
    clip_threshold: float = Field(default=1.0, gt=0)
    """Upper limit of an update's root mean square; larger updates are scaled down to it."""
    decay_rate: float = Field(default=-0.8, lt=0)
    """Exponent of the second moment's decay, which is 1 - step ** decay_rate."""
    beta1: Share | None = None
    """Decay of the first moment; null: no first moment."""
    scale_parameter: bool = True
    """Multiply the learning rate by the root mean square of each parameter."""
    relative_step: bool = False
    """Use the learning rate min(0.01, 1 / sqrt(step)); learning_rate must be 1 and multiplies it."""
    warmup_init: bool = False
    """With relative_step, use min(1e-6 * step, 1 / sqrt(step)) instead."""

    @model_validator(mode="after")
    def warms_up_the_relative_step(self) -> Self:
        if self.warmup_init and not self.relative_step:
            raise ValueError("warmup_init: needs relative_step: true; set it, or remove warmup_init")
        return self


class SgdOptions(Section):
    """Options of stochastic gradient descent."""

    momentum: Share = 0.0
    """Momentum: share of the previous step that is added to each step."""


def count_moments(shape: tuple[int, ...], settings: "Optimizer") -> int:
    """Return the number of values in the two moments of a parameter that Adam and LAMB keep, and Muon at most."""
    return 2 * math.prod(shape)


def count_velocity(shape: tuple[int, ...], settings: "Optimizer") -> int:
    """Return the number of values in the velocity of a parameter, which SGD keeps if it has momentum."""
    return math.prod(shape) if settings.sgd.momentum > 0 else 0


def count_factors(shape: tuple[int, ...], settings: "Optimizer") -> int:
    """Return the number of values in the row and column means of Adafactor, and in its first moment if it has one."""
    return (math.prod(shape) if settings.adafactor.beta1 is not None else 0) + sum(shape)


_MOMENTS = ("betas", "epsilon", "bias_correction")
OPTIMIZERS: Registry[OptimizerDeclaration] = Registry(
    "optimizer",
    OptimizerDeclaration(
        "adamw", "relm.training.optimizers.adam:build_adamw", count_moments, keys=(*_MOMENTS, "form", "groups")
    ),
    OptimizerDeclaration("adam", "relm.training.optimizers.adam:Adam", count_moments, keys=(*_MOMENTS, "form", "groups")),
    OptimizerDeclaration("lamb", "relm.training.optimizers.lamb:Lamb", count_moments, keys=_MOMENTS, options=LambOptions),
    OptimizerDeclaration("adafactor", "relm.training.optimizers.adafactor:Adafactor", count_factors, options=AdafactorOptions),
    OptimizerDeclaration(
        "muon", "relm.training.optimizers.muon:Muon", count_moments, keys=(*_MOMENTS, "groups"), options=MuonOptions
    ),
    OptimizerDeclaration("sgd", "relm.training.optimizers.sgd:Sgd", count_velocity, options=SgdOptions),
)


class Optimizer(Section):
    """Optimizer of a phase."""

    name: Annotated[str, NameIn(OPTIMIZERS)] = "adamw"
    """Name of the optimizer. adamw: Adam with decoupled weight decay; adam: Adam with weight decay as a part of the gradient;
    lamb: AdamW's step of each parameter scaled to its norm; adafactor: Adam with a second moment factored into row and column
    means; muon: orthogonalised momentum for the matrices of layers, and adamw for all else; sgd: stochastic gradient
    descent."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay rates of the first and second moment; for adamw, adam, lamb and muon."""
    epsilon: float = Field(default=1e-8, gt=0)
    """Constant added to the root of the second moment; for adamw, adam, lamb and muon."""
    bias_correction: bool = True
    """Correct the bias of the moments towards their initial value 0; for adamw, adam, lamb and muon."""
    form: Literal["pytorch", "transformers", "graphcore_bert"] = "pytorch"
    """Variant of the formulas of adamw and adam. pytorch: epsilon is added to the root of the corrected second moment, and
    weights decay before the step; transformers: epsilon is added to the root before the correction (end of section 2 of Kingma
    and Ba 2015), and weights decay after the step, as in AdamW of transformers 1 to 4; graphcore_bert: epsilon as in
    transformers, the correction is that of one step later and multiplies the decay too, which comes before the step, as in
    Graphcore's BERT for TensorFlow 1 (adamw only)."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of the parameters that `decayed` selects."""
    decayed: Literal["matrices", "all_but_biases", "tpu_pretrain"] = "matrices"
    """Parameters with weight decay. matrices: matrices and embeddings; all_but_biases: the scales of normalisations as well;
    tpu_pretrain: matrices, embeddings and the scale of the head's normalisation, whose name in RoBERTa the original's list of
    exceptions lacks."""
    gradient_clipping: float | None = Field(default=None, gt=0)
    """Largest norm of the whole gradient; null: no clipping."""
    state_precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the optimizer's state and the weights that it updates. bfloat16 reproduces PyTorch/XLA's XLA_USE_BF16, where
    small updates are lost by rounding; use it only for that."""
    lamb: LambOptions = LambOptions()
    """Options of lamb."""
    groups: dict[Literal["embeddings", "head", "vectors", "matrices"], ParameterGroup] = Field(default_factory=dict)
    """Kind of parameters -> their settings, for adamw, adam and muon. Kinds are embeddings (of tokens and positions, with a
    tied head), head (the weights of an untied projection to the vocabulary), vectors (biases and scales of normalisation) and
    matrices (all else). All share one schedule."""
    muon: MuonOptions = MuonOptions()
    """Options of muon."""
    adafactor: AdafactorOptions = AdafactorOptions()
    """Options of adafactor."""
    sgd: SgdOptions = SgdOptions()
    """Options of sgd."""

    @model_validator(mode="after")
    def keys_belong_to_the_optimizer(self) -> Self:
        refuse_keys_of_others(self, "name", {one.name: (*one.keys, one.name) for one in OPTIMIZERS})
        if self.form == "graphcore_bert" and self.name != "adamw":
            raise ValueError(f"form: graphcore_bert needs name: adamw, found {self.name}; remove form")
        return self

    @model_validator(mode="after")
    def the_relative_step_is_the_learning_rate(self) -> Self:
        if self.adafactor.relative_step and self.learning_rate != 1:
            raise ValueError(
                f"learning_rate: multiplies the step of adafactor.relative_step, found {self.learning_rate}; "
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
    ScheduleDeclaration(
        "trapezoid", "relm.training.schedules:trapezoid", keys=(*_WARMUP, "floor", "decay_ahead", "decay_share")
    ),
    ScheduleDeclaration("by_step", "relm.training.schedules:by_step", keys=("floor", "by_step")),
)


class Schedule(Section):
    """Learning-rate schedule of a phase."""

    name: Annotated[str, NameIn(SCHEDULES)] = "constant"
    """Shape of the decay after the warm-up, which reaches floor at the last step. constant: no decay; linear: a line; cosine:
    half a cycle; polynomial: (remaining share of the steps) ** power; natural_exponential: a factor of exp(-decay_rate) each
    decay_period steps; trapezoid: a line over the last decay_share of the steps; by_step: a table."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of warm-up steps, in which the learning rate increases from 0."""
    warmup_share: Share | None = None
    """Number of warm-up steps as a share of the phase; null: warmup_steps."""
    warmup_rounding: Literal["down", "nearest"] = "down"
    """Rounding of warmup_share times the steps to an integer; nearest rounds a half up."""
    warmup_power: float = Field(default=1.0, gt=0)
    """Exponent of the warm-up, which is (step / warm-up steps) ** warmup_power; 1: linear."""
    floor: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""
    floor_cuts_off: bool = False
    """false: the decay is rescaled to end at the floor; true: the decay ends at 0, and all values below the floor, those of the
    warm-up included, are replaced by it."""
    power: float = Field(default=1.0, gt=0)
    """Exponent of the decay; for polynomial."""
    decay_rate: Positive | None = None
    """Rate of the decay; for natural_exponential, which requires it."""
    decay_period: int = Field(default=1, gt=0)
    """Steps between two decreases; for natural_exponential."""
    decay_end: int | None = Field(default=None, gt=0)
    """Step at which floor is reached, which may be beyond the phase; null: the last step. warmup_share is a share of it."""
    decay_share: float = Field(default=0.5, gt=0, le=1)
    """Share of the steps in which the learning rate decays; for trapezoid."""
    by_step: dict[Annotated[int, Field(strict=False)], Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """Step -> share of the peak from that step on; for by_step."""
    first_step: Literal[0, 1] = 1
    """Index of the first update. 1: the last update has the final learning rate, and the first of a warm-up is above 0; 0: the
    first update of a warm-up has learning rate 0, and the decay ends one step after the last update, as in transformers."""
    decay_ahead: Literal[-1, 0, 1] = 0
    """Offset of the step index after the warm-up. 1: as in Graphcore's BERT, where the last update has index steps - 1 and the
    linear decay ends there; -1: as in llm.c, where the first update after the warm-up has the peak as well."""
    updates_per_step: int = Field(default=1, gt=0)
    """Number of updates with the same learning rate. They are one step of the schedule, and its other keys count such steps (in
    Graphcore's GPT-2, the updates of one call of the device)."""

    @model_validator(mode="after")
    def keys_belong_to_the_schedule(self) -> Self:
        refuse_keys_of_others(self, "name", {one.name: (*one.keys, one.name) for one in SCHEDULES})
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
                f"warmup_steps ({self.warmup_steps}) and warmup_share ({self.warmup_share}) exclude each other; remove one"
            )
        if self.warmup_rounding != "down" and self.warmup_share is None:
            raise ValueError(f"warmup_rounding: {self.warmup_rounding} needs warmup_share; give that, or remove this")
        return self

    def length(self, updates: int) -> int:
        """Return the number of steps of the schedule in a phase of `updates` updates."""
        return math.ceil(updates / self.updates_per_step)

    def warmup(self, updates: int) -> int:
        """Return the number of warm-up steps in a phase of `updates` updates.

        >>> [Schedule(warmup_share=0.06, warmup_rounding=rounding).warmup(125) for rounding in ("down", "nearest")]
        [7, 8]
        """
        if self.warmup_share is None:
            return self.warmup_steps
        steps = self.warmup_share * (self.decay_end or self.length(updates))
        return int(steps + 0.5) if self.warmup_rounding == "nearest" else int(steps)


class LossScaling(Section):
    """Factor that multiplies the loss before the backward pass, and divides the gradients after it.

    Without it, small gradients underflow in float16 (Micikevicius et al. 2018). An update whose gradients overflow is skipped.
    """

    name: Literal["static", "by_step", "automatic"] = "static"
    """Kind of scaling. static: one factor; by_step: a table; automatic: the factor is halved when gradients overflow, and
    doubled after growth_interval updates without overflow."""
    scale: Scale = 1.0
    """Factor, or the first one."""
    by_step: dict[Annotated[int, Field(gt=0, strict=False)], Scale] = Field(default_factory=dict)
    """Update, counted from 1 -> factor from that update on; `scale` before the first. For by_step."""
    growth_interval: int = Field(default=2000, gt=0)
    """Number of updates without overflow after which the factor doubles; for automatic."""

    @model_validator(mode="after")
    def keys_belong_to_the_scaling(self) -> Self:
        refuse_keys_of_others(self, "name", {"by_step": ["by_step"], "automatic": ["growth_interval"]})
        if self.name == "by_step" and not self.by_step:
            raise ValueError("by_step needs a table of factors, such as {1: 32768}; found none")
        return self


def register_optimizer(declaration: OptimizerDeclaration) -> None:
    """Add an optimizer to those that recipes may name; its options get a key of its name."""
    register_with_options(OPTIMIZERS, declaration, Optimizer, f"Keys of {declaration.name}.")


def register_schedule(declaration: ScheduleDeclaration) -> None:
    """Add a learning-rate schedule to those that recipes may name; its options get a key of its name."""
    register_with_options(SCHEDULES, declaration, Schedule, f"Keys of {declaration.name}.")
