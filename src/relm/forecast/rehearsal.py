"""A few real training steps of a recipe, at full size, before it runs: does it fit, how fast is it, where does the time go.

The examples are generated, so that nothing need be downloaded or made first, or are the real ones. The weights are random:
their values change no speed. Nothing is written into any run folder.
"""

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.optim import Optimizer
from tqdm import tqdm

from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.examples.generated import GeneratedExamples
from relm.examples.manifest import TokenizerFacts
from relm.examples.tokenizers import SpecialIds
from relm.forecast.profiling import Profile, profiled
from relm.forecast.trial import Trial, write_trial
from relm.formatting import format_bytes
from relm.limits import nearest_existing
from relm.models.configuration import Configuration
from relm.recipes.recipe import Phase, Recipe
from relm.training.architecture import configuration
from relm.training.arithmetic import model_flops
from relm.training.input import Reader, StepInput
from relm.training.learner import Learner, begin
from relm.training.loop import WARM_UP, Forward, take_step
from relm.training.micro_batches import micro_batch_size, shortened
from relm.training.phase_run import PhaseRun, derived_seed, reader_of
from relm.training.resources import require_state_memory

# Steps that are taken where nobody says how many.
STEPS = 10
# With --profile so many further steps are traced, fewer where a step has many micro-batches: a trace must fit into memory.
PROFILED_STEPS, PROFILED_MICRO_BATCHES = 3, 24
# A trial measures steps of so many operations together, but at least one: some seconds on a few cores, and equal on all ranks.
# Before them it takes one that compiles, and takes memory for the first time.
TRIAL_OPERATIONS, MOST_TRIAL_STEPS = 5e10, 20
# A trial and --compile-only take at most so many micro-batches a step: the second adds to the gradients of the first.
FEW_MICRO_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """A request: the phase of a recipe, and how its steps are taken."""

    recipe: Recipe
    phase: str
    tokenizer: TokenizerFacts
    """The recipe's, or what is expected of it."""
    manifest: Path | None = None
    """Of real examples; None: they are generated."""
    steps: int = STEPS
    """With those of the warm-up."""
    few_micro_batches: bool = False
    """Each step has at most two: every program is compiled in the first, and all memory taken that ever will be."""
    trace: Path | None = None
    """Where a trace of a few further steps goes; None: there is none."""

    def taken(self, parts: int) -> "tuple[Rehearsal, Phase]":
        """Return the request and the phase as they are taken where the global batch is dealt out to so many parts."""
        if not self.few_micro_batches:
            return self, self.recipe.pretrain[self.phase]
        recipe, settings = shortened(self.recipe, self.phase, FEW_MICRO_BATCHES, parts)
        return dataclasses.replace(self, recipe=recipe), settings


@dataclasses.dataclass(frozen=True)
class Steps:
    """Measurements of the steps."""

    made_in: float
    """Seconds until the model was where it trains."""
    first_seconds: float
    """Of the first step, compiling included."""
    steady: int
    """Steps after the warm-up."""
    seconds: float
    """Of a step, on average over the steady ones; 0 where there was none."""
    first_terms: dict[str, float]
    """Of the first step, TERM_loss in nats a label and TERM_accuracy."""
    first_loss: float
    last_loss: float
    programs: int
    """How many programs were compiled."""
    memory: int | None
    """Most bytes that were held; None: the device does not report it."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything that the steps of a rehearsal need."""

    rehearsal: Rehearsal
    """As it is taken."""
    run: PhaseRun
    config: Configuration
    learner: Learner
    forward: Forward
    made_in: float
    """Seconds until the model was where it trains."""


def rehearse(rehearsal: Rehearsal) -> str:
    """Take the steps, and return a few lines on what they took.

    Raises:
        RelmError: the recipe does not fit the tokenizer, the examples or the machine; or the loss is no number.
    """
    with prepared(rehearsal) as ready:
        run, count = ready.run, rehearsal.steps
        more = profiled_steps(run.reader) if rehearsal.trace is not None else 0
        with closing(read_ahead(run.reader, count + more)) as inputs:
            steps = taken_steps(ready, inputs, count)
            lines = describe_steps(ready, steps)
            if rehearsal.trace is not None:
                lines += traced_steps(ready, inputs, more, rehearsal.trace).lines()
    return "\n".join(lines)


def measure_trial(rehearsal: Rehearsal, output: Path) -> str:
    """Take one step unmeasured and one or more measured, and write a `Trial` of the latter.

    Raises:
        RelmError: as `rehearse`.
    """
    with prepared(dataclasses.replace(rehearsal, few_micro_batches=True)) as ready:
        run, clock = ready.run, UpdateClock(ready.run.device, ready.learner.optimizer)
        count = 1 + trial_steps(ready.config, run.settings)
        with closing(read_ahead(run.reader, count)) as inputs:
            steps = taken_steps(ready, inputs, count, warm_up=1)
        update = statistics.mean(clock.seconds[1:])
        device = describe_device(run.device)
        trial = Trial(micro_batches(run.reader), steps.seconds - update, update, steps.memory, device)
        if run.writes:
            write_trial(output, trial)
    return f"measured steps: {steps.steady}; {output}"


def trial_steps(config: Configuration, settings: Phase) -> int:
    """Return how many steps of a trial are measured."""
    return max(1, min(MOST_TRIAL_STEPS, int(TRIAL_OPERATIONS / model_flops(config, settings))))


class UpdateClock:
    """Seconds of each of an optimizer's updates; the device is waited for before and after it."""

    def __init__(self, device: Device, optimizer: Optimizer) -> None:
        self.seconds: list[float] = []
        self._device, self._begun = device, math.nan
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._end)

    def _begin(self, *unused: object) -> None:
        self._device.synchronise()
        self._begun = time.perf_counter()

    def _end(self, *unused: object) -> None:
        self._device.synchronise()
        self.seconds.append(time.perf_counter() - self._begun)


@contextmanager
def prepared(rehearsal: Rehearsal) -> Iterator[Prepared]:
    """Open the recipe's device, and make examples and model ready on it.

    Raises:
        RelmError: as `rehearse`.
    """
    with (
        TemporaryDirectory(prefix="relm-rehearsal-") as folder,  # a run folder in which nothing lies
        closing(open_device(rehearsal.recipe.run)) as device,
        device.errors_in_words(),
    ):
        rehearsal, settings = rehearsal.taken(device.parts)
        recipe = rehearsal.recipe
        config = configuration(recipe, rehearsal.tokenizer)
        require_state_memory(config, settings, recipe.run)
        reader = reader_of_rehearsal(rehearsal, settings, device)
        run = PhaseRun(recipe, rehearsal.phase, settings, Path(folder), {}, reader, device)
        started = time.perf_counter()
        learner = begin(run, config, None)
        made_in = time.perf_counter() - started
        learner.model.train()
        yield Prepared(rehearsal, run, config, learner, device.forward(learner.model.terms), made_in)


def reader_of_rehearsal(rehearsal: Rehearsal, settings: Phase, device: Device) -> Reader:
    """Return the batches of the real examples, or of generated ones.

    Raises:
        RelmError: the examples are absent or of another objective.
    """
    if rehearsal.manifest is not None:
        real = reader_of(rehearsal.recipe, rehearsal.phase, rehearsal.manifest, "train", device, check_content=False)
        return dataclasses.replace(real, settings=settings)
    return generated_reader(rehearsal.recipe, rehearsal.phase, settings, rehearsal.tokenizer, device)


def generated_reader(recipe: Recipe, phase: str, settings: Phase, tokens: TokenizerFacts, device: Device) -> Reader:
    """Return batches of random examples, with the names, shapes and types of real ones.

    Args:
        settings: the phase as it is taken, perhaps with fewer sequences a step than its recipe has.
    """
    whole = recipe.pretrain[phase]
    seed = derived_seed(recipe.seed, "rehearsal", phase)
    special, size = SpecialIds(**tokens.specials), whole.global_batch_size * whole.steps
    examples = GeneratedExamples(settings, tokens.vocabulary_size, special, size, seed)
    return Reader(examples, settings, seed, micro_batch_size(settings, recipe.run.micro_batch_size, device.parts), device)


def micro_batches(reader: Reader) -> int:
    """Return how many one process has in a step."""
    return reader.settings.global_batch_size // reader.device.parts // reader.micro_batch_size


def profiled_steps(reader: Reader) -> int:
    """Return how many steps are traced."""
    return max(1, min(PROFILED_STEPS, PROFILED_MICRO_BATCHES // micro_batches(reader)))


def read_ahead(reader: Reader, last: int) -> Generator[StepInput, None, None]:
    """Yield the inputs of the steps 1 to `last`, made ready by the loop's own thread."""
    yield from reader.step_inputs(1, last, lambda: False)


def taken_steps(ready: Prepared, inputs: Iterator[StepInput], count: int, warm_up: int = WARM_UP) -> Steps:
    """Take steps as the loop does; the clock is read after the first, after the warm-up, and at the end."""
    run, device, meter = ready.run, ready.run.device, ready.learner.meter
    clock = {0: time.perf_counter()}
    first_terms, first_loss = {}, math.nan
    for step in tqdm(range(1, count + 1), desc=f"rehearse {run.phase}", unit="step", disable=None):
        take_step(run, ready.learner, ready.forward, next(inputs))
        if step in (1, warm_up, count):
            device.synchronise()
            clock[step] = time.perf_counter()
            meter.read(run.what_was_read)
        if step == 1:
            first_terms, first_loss = meter.terms, meter.loss
    steady = max(0, count - warm_up)
    return Steps(
        made_in=ready.made_in,
        first_seconds=clock[1] - clock[0],
        steady=steady,
        seconds=(clock[count] - clock[warm_up]) / steady if steady else 0.0,
        first_terms=first_terms,
        first_loss=first_loss,
        last_loss=meter.loss,
        programs=device.programs(),
        memory=device.peak_memory(),
    )


def traced_steps(ready: Prepared, inputs: Iterator[StepInput], count: int, trace: Path) -> Profile:
    """Take further steps under the profiler; rank 0 writes the trace."""
    run = ready.run

    def step(forward: Forward, given: StepInput) -> None:
        take_step(run, ready.learner, forward, given)

    found = profiled(step, ready.forward, inputs, count, run.device, trace if run.writes else None)
    ready.learner.meter.read(run.what_was_read)
    return found


def describe_steps(ready: Prepared, steps: Steps) -> list[str]:
    """Return a line for each thing that was found."""
    run, settings, manifest = ready.run, ready.run.settings, ready.rehearsal.manifest
    count = micro_batches(run.reader)
    pieces = f"{count:,} micro-batch{'' if count == 1 else 'es'}" + (" a process" if run.device.parts > 1 else "")
    return [
        f"phase {run.phase}: {ready.learner.model.parameter_count():,} parameters, {settings.global_batch_size:,} sequences of "
        f"{settings.sequence_length:,} tokens a step in {pieces}, {settings.precision}",
        f"examples: {f'of {manifest}' if manifest else 'generated'}",
        f"device: {describe_device(run.device)}",
        f"ready: {describe_first_step(steps)}; {steps.programs} compiled programs",
        *([describe_speed(run, steps)] if steps.steady else []),
        f"memory: {memory_line(steps.memory)}",
        f"loss: {describe_loss(steps, ready.run.settings, ready.config)}",
    ]


def describe_device(device: Device) -> str:
    """Return what a device says of itself."""
    return ", ".join(f"{value}" if key == "device" else f"{key} {value}" for key, value in device.describe().items())


def describe_speed(run: PhaseRun, steps: Steps) -> str:
    """Return the rate of the steady steps."""
    rate = 1 / steps.seconds
    return (
        f"speed: {rate:,.3g} steps/s, {rate * run.tokens_per_step:,.0f} tokens/s, "
        f"{rate * run.settings.global_batch_size:,.1f} samples/s, over {steps.steady} steps of {steps.seconds:.4g} s"
    )


def memory_line(memory: int | None) -> str:
    """Return the most memory that was held, or where to learn it.

    >>> memory_line(None)
    'not reported by this device, which had enough; `relm compile NAME` says what a step needs'
    """
    if memory is None:
        return "not reported by this device, which had enough; `relm compile NAME` says what a step needs"
    return f"{format_bytes(memory)} at most"


def describe_first_step(steps: Steps) -> str:
    """Return what the first step took beyond a steady one: compiling, and taking memory for the first time."""
    first = f"the model was made in {steps.made_in:.2f} s; the first step took {steps.first_seconds:.2f} s"
    return f"{first}, {max(0.0, steps.first_seconds - steps.seconds):.2f} s more than a steady one" if steps.steady else first


def describe_loss(steps: Steps, phase: Phase, config: Configuration) -> str:
    """Return the first loss beside that of a guess; they differ much where weights or data are not what they should be."""
    parts = []
    for name, value in steps.first_terms.items():
        if term := name.removesuffix("_loss") if name.endswith("_loss") else "":
            classes = phase.declaration.classes.get(term, config.vocabulary_size)
            parts.append(f"{term} {value:.3f} (a guess among {classes:,}: {math.log(classes):.3f})")
    return ", ".join(parts) + (f"; of the last: {steps.last_loss:.3f} in all" if steps.steady else "")


def require_options(steps: int | None, compile_only: bool, trace: Path | None) -> None:
    """Raise if options exclude each other, or if a trace could not be written at the end.

    Raises:
        RelmError: they are such.
    """
    if compile_only and (steps is not None or trace is not None):
        extra = "--steps" if steps is not None else "--profile"
        raise RelmError(f"--compile-only stops after what one step compiles; leave {extra} or --compile-only out")
    if steps is not None and steps <= WARM_UP:
        raise RelmError(f"--steps {steps}: the first {WARM_UP} steps are the warm-up; give more, or --compile-only")
    if trace is not None:
        existing = nearest_existing(trace.absolute().parent)
        if trace.is_dir() or not existing.is_dir() or not os.access(existing, os.W_OK):
            raise RelmError(f"--profile {trace}: cannot be written as a file; correct the path or its permissions")
