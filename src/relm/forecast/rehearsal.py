"""A few real training steps of a recipe, at full size, before it runs: they show whether it fits, and its speed.

The examples are generated, so that nothing has to be downloaded or pregenerated first, or are the real ones. The weights are
random: their values do not change the speed. Nothing is written into any run folder.
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

from relm.devices.contract import Device, UpdatingDevice, open_device
from relm.errors import RelmError
from relm.examples.generated import GeneratedExamples
from relm.examples.manifest import TokenizerFacts
from relm.examples.tokenizers import SpecialIds
from relm.forecast.profiling import Profile, profile_steps
from relm.forecast.trial import Trial, write_trial
from relm.formatting import format_bytes
from relm.limits import nearest_existing
from relm.models.configuration import Configuration
from relm.recipes.recipe import Phase, Recipe
from relm.training.architecture import configuration
from relm.training.arithmetic import model_flops
from relm.training.input import Reader, Round
from relm.training.learner import Learner, begin
from relm.training.loop import WARM_UP
from relm.training.micro_batches import micro_batch_size, shortened, wanted_micro_batch_size
from relm.training.phase_run import PhaseRun, derived_seed, open_reader
from relm.training.resources import require_state_memory
from relm.training.updates import DeviceUpdates, Forward, TorchUpdates, Updates, open_updates, take_step

# Default of --steps.
STEPS = 10
# Steps that --profile traces after the others, fewer where a step has many micro-batches: a trace must fit into memory.
PROFILED_STEPS, PROFILED_MICRO_BATCHES = 3, 24
# Operations of the steps that a trial measures, at least one step: some seconds on a few cores, and equal on all ranks. Before
# them it takes one step that compiles, and allocates memory for the first time.
TRIAL_OPERATIONS, MOST_TRIAL_STEPS = 5e10, 20
# The most micro-batches in a step of a trial or of --compile-only: the second adds to the gradients of the first.
FEW_MICRO_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """A request: the phase of a recipe, and the options with which its steps are taken."""

    recipe: Recipe
    phase: str
    tokenizer: TokenizerFacts
    """The recipe's tokenizer, or the facts that are expected of it."""
    manifest: Path | None = None
    """The manifest of real examples; None: they are generated."""
    steps: int = STEPS
    """The count of steps, those of the warm-up included."""
    few_micro_batches: bool = False
    """Each step has at most two micro-batches: the first step compiles every program and reaches the peak memory."""
    compile_only: bool = False
    """Stop once everything is compiled; a device that takes whole updates need not be attached to this machine."""
    trace: Path | None = None
    """The path of a trace of a few further steps; None: no trace."""

    def resolve(self, device: Device) -> "tuple[Rehearsal, Phase]":
        """Return the request and its phase, shortened if requested and if the device's program does not depend on it."""
        if not self.few_micro_batches or isinstance(device, UpdatingDevice):
            return self, self.recipe.pretrain[self.phase]
        recipe, settings = shortened(self.recipe, self.phase, FEW_MICRO_BATCHES, device.parts)
        return dataclasses.replace(self, recipe=recipe), settings


@dataclasses.dataclass(frozen=True)
class StepMeasurements:
    """Measurements of the steps."""

    preparation_seconds: float
    """Seconds until the model was on its device."""
    first_seconds: float
    """The duration of the first step, compiling included; of a device that takes several in a call, of the first call."""
    first_steps: int
    """The count of steps in that time."""
    steady: int
    """The count of steps after the warm-up."""
    seconds: float
    """The mean duration of a steady step; 0 where there was none."""
    first_terms: dict[str, float]
    """The first step's terms: TERM_loss in nats a label, and TERM_accuracy."""
    first_loss: float
    last_loss: float
    programs: int
    """The count of compiled programs."""
    memory: int | None
    """Peak memory in bytes; None: the device does not report it."""


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """Everything that the steps of a rehearsal need."""

    rehearsal: Rehearsal
    """The resolved request."""
    run: PhaseRun
    config: Configuration
    learner: Learner
    updates: Updates
    preparation_seconds: float
    """Seconds until the model was on its device."""


def rehearse(rehearsal: Rehearsal) -> str:
    """Take the steps, and return a few lines on their speed, memory and loss.

    Raises:
        RelmError: the recipe does not fit the tokenizer, the examples or the machine; or the loss is not a number.
    """
    with prepare(rehearsal) as ready:
        run, count = ready.run, rehearsal.steps
        if rehearsal.compile_only and isinstance(ready.updates, DeviceUpdates):
            return "\n".join(compile_updates(ready, ready.updates))
        if rehearsal.trace is not None:
            require_torch_updates(ready.updates)
        profiled = profiled_step_count(run.reader) if rehearsal.trace is not None else 0
        with closing(read_ahead(run.reader, count + profiled)) as inputs:
            steps = take_steps(ready, inputs, count)
            lines = describe_steps(ready, steps)
            if rehearsal.trace is not None:
                lines += trace_steps(ready, inputs, profiled, rehearsal.trace).lines()
    return "\n".join(lines)


def measure_trial(rehearsal: Rehearsal, output: Path) -> str:
    """Take one step unmeasured, measure one or more, and write a `Trial` of the latter.

    Raises:
        RelmError: as `rehearse`.
    """
    with prepare(dataclasses.replace(rehearsal, few_micro_batches=True)) as ready:
        run, clock = ready.run, UpdateClock(ready.run.device, ready.learner.optimizer)
        count = 1 + trial_step_count(ready.config, run.settings)
        with closing(read_ahead(run.reader, count)) as inputs:
            steps = take_steps(ready, inputs, count, warm_up=1)
        update = statistics.mean(clock.seconds[1:])
        device = describe_device(run.device)
        trial = Trial(micro_batch_count(run.reader), steps.seconds - update, update, steps.memory, device)
        if run.writes:
            write_trial(output, trial)
    return f"measured steps: {steps.steady}; {output}"


def trial_step_count(config: Configuration, settings: Phase) -> int:
    """Return how many steps of a trial are measured."""
    return max(1, min(MOST_TRIAL_STEPS, int(TRIAL_OPERATIONS / model_flops(config, settings))))


class UpdateClock:
    """The seconds of each of an optimizer's updates, with the device synchronised before and after it."""

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
def prepare(rehearsal: Rehearsal) -> Iterator[PreparedRun]:
    """Open the recipe's device, and prepare examples and model on it.

    Raises:
        RelmError: as `rehearse`.
    """
    with (
        TemporaryDirectory(prefix="relm-rehearsal-") as folder,  # an empty run folder
        closing(open_device(rehearsal.recipe.run)) as device,
        device.translate_errors(),
    ):
        rehearsal, settings = rehearsal.resolve(device)
        recipe = rehearsal.recipe
        config = configuration(recipe, rehearsal.tokenizer)
        require_state_memory(config, settings, recipe.run)
        reader = reader_of_rehearsal(rehearsal, settings, device)
        run = PhaseRun(recipe, rehearsal.phase, settings, Path(folder), {}, reader, device)
        started = time.perf_counter()
        learner = begin(run, config, None)
        if rehearsal.compile_only and isinstance(device, UpdatingDevice):
            updates: Updates = DeviceUpdates(run, learner, device, offline=True)
        else:
            updates = open_updates(run, learner)
        preparation_seconds = time.perf_counter() - started
        learner.model.train()
        yield PreparedRun(rehearsal, run, config, learner, updates, preparation_seconds)


def compile_updates(ready: PreparedRun, updates: DeviceUpdates) -> list[str]:
    """Compile the program of a device that takes whole updates, and return lines on it."""
    with closing(read_ahead(ready.run.reader, ready.run.device.updates_per_call)) as inputs:
        seconds = updates.compile(next(inputs))
    return [*describe_request(ready), f"compiled in {seconds:,.1f} s; no update was taken"]


def require_torch_updates(updates: Updates) -> TorchUpdates:
    """Return updates that torch's profiler can trace.

    Raises:
        RelmError: the device takes whole updates, of which the profiler sees nothing.
    """
    if not isinstance(updates, TorchUpdates):
        raise RelmError(
            "--profile: torch's profiler sees nothing of an IPU; leave it out, and set POPLAR_ENGINE_OPTIONS="
            '\'{"autoReport.all":"true","autoReport.directory":"FOLDER"}\' for Graphcore\'s PopVision'
        )
    return updates


def reader_of_rehearsal(rehearsal: Rehearsal, settings: Phase, device: Device) -> Reader:
    """Return a reader of the real examples, or of generated ones.

    Raises:
        RelmError: the examples are absent or belong to another objective.
    """
    if rehearsal.manifest is not None:
        real = open_reader(rehearsal.recipe, rehearsal.phase, rehearsal.manifest, "train", device, check_content=False)
        return dataclasses.replace(real, settings=settings)
    return generated_reader(rehearsal.recipe, rehearsal.phase, settings, rehearsal.tokenizer, device)


def generated_reader(recipe: Recipe, phase: str, settings: Phase, tokens: TokenizerFacts, device: Device) -> Reader:
    """Return a reader of random examples, with the names, shapes and types of real ones.

    Args:
        settings: the phase to read for, perhaps with fewer sequences a step than its recipe has.
    """
    whole = recipe.pretrain[phase]
    seed = derived_seed(recipe.seed, "rehearsal", phase)
    special, count = SpecialIds(**tokens.specials), whole.global_batch_size * whole.steps
    examples = GeneratedExamples(settings, tokens.vocabulary_size, special, count, seed)
    size = micro_batch_size(settings, wanted_micro_batch_size(recipe.run, phase), device.parts)
    return Reader(examples, settings, seed, size, device)


def micro_batch_count(reader: Reader) -> int:
    """Return how many micro-batches one process has in a step."""
    return reader.settings.global_batch_size // reader.device.parts // reader.micro_batch_size


def profiled_step_count(reader: Reader) -> int:
    """Return how many steps are traced."""
    return max(1, min(PROFILED_STEPS, PROFILED_MICRO_BATCHES // micro_batch_count(reader)))


def read_ahead(reader: Reader, last: int) -> Generator[Round, None, None]:
    """Yield the inputs of the steps 1 to `last`, or to the end of its round, prefetched by the loop's own thread."""
    yield from reader.rounds(1, last, lambda: False)


def take_steps(ready: PreparedRun, inputs: Iterator[Round], count: int, warm_up: int = WARM_UP) -> StepMeasurements:
    """Take steps as the loop does; read the clock after the first round, after the warm-up, and at the end."""
    run, device, meter = ready.run, ready.run.device, ready.learner.meter
    clock = {0: time.perf_counter()}
    first_terms, first_loss = {}, math.nan
    length = device.updates_per_call
    count, warm_up = -(-count // length), -(-warm_up // length)
    for number in tqdm(range(1, count + 1), desc=f"rehearse {run.phase}", unit="step", disable=None):
        ready.updates.take(next(inputs))
        if number in (1, warm_up, count):
            device.synchronise()
            clock[number] = time.perf_counter()
            meter.read(run.describe_failure)
        if number == 1:
            first_terms, first_loss = meter.terms, meter.loss
    steady = max(0, count - warm_up) * length
    return StepMeasurements(
        preparation_seconds=ready.preparation_seconds,
        first_seconds=clock[1] - clock[0],
        first_steps=length,
        steady=steady,
        seconds=(clock[count] - clock[warm_up]) / steady if steady else 0.0,
        first_terms=first_terms,
        first_loss=first_loss,
        last_loss=meter.loss,
        programs=device.programs(),
        memory=device.peak_memory(),
    )


def trace_steps(ready: PreparedRun, inputs: Iterator[Round], count: int, trace: Path) -> Profile:
    """Take further steps under the profiler; rank 0 writes the trace."""
    run, updates = ready.run, require_torch_updates(ready.updates)

    def step(forward: Forward, given: Round) -> None:
        take_step(run, ready.learner, forward, given.steps[0])

    found = profile_steps(step, updates.forward, inputs, count, run.device, trace if run.writes else None)
    ready.learner.meter.read(run.describe_failure)
    return found


def describe_request(ready: PreparedRun) -> list[str]:
    """Return a line each on the phase, its examples and the device."""
    run, settings, manifest = ready.run, ready.run.settings, ready.rehearsal.manifest
    count = micro_batch_count(run.reader)
    pieces = f"{count:,} micro-batch{'' if count == 1 else 'es'}" + (" a process" if run.device.parts > 1 else "")
    return [
        f"phase {run.phase}: {ready.learner.model.parameter_count():,} parameters, {settings.global_batch_size:,} sequences of "
        f"{settings.sequence_length:,} tokens a step in {pieces}, {settings.precision}",
        f"examples: {f'from {manifest}' if manifest else 'generated'}",
        f"device: {describe_device(run.device)}",
    ]


def describe_steps(ready: PreparedRun, steps: StepMeasurements) -> list[str]:
    """Return a line for each measurement."""
    run = ready.run
    return [
        *describe_request(ready),
        f"ready: {describe_first_step(steps)}; {steps.programs} compiled programs",
        *([describe_speed(run, steps)] if steps.steady else []),
        f"memory: {memory_line(steps.memory, isinstance(run.device, UpdatingDevice))}",
        f"loss: {describe_loss(steps, run.settings, ready.config)}",
    ]


def describe_device(device: Device) -> str:
    """Return a device's description of itself in one line."""
    return ", ".join(f"{value}" if key == "device" else f"{key} {value}" for key, value in device.describe().items())


def describe_speed(run: PhaseRun, steps: StepMeasurements) -> str:
    """Return the rate of the steady steps."""
    rate = 1 / steps.seconds
    return (
        f"speed: {rate:,.3g} steps/s, {rate * run.tokens_per_step:,.0f} tokens/s, "
        f"{rate * run.settings.global_batch_size:,.1f} samples/s, over {steps.steady} step{'s' * (steps.steady != 1)} of "
        f"{steps.seconds:.4g} s"
    )


def memory_line(memory: int | None, in_pipeline: bool = False) -> str:
    """Return the peak memory, or the command that reports it.

    >>> memory_line(None)
    'not reported by this device, which had enough; `relm compile NAME` reports what a step needs'
    """
    if memory is None and in_pipeline:
        return "not reported by this device, which had enough; `relm estimate NAME` prints what lies on each IPU"
    if memory is None:
        return "not reported by this device, which had enough; `relm compile NAME` reports what a step needs"
    return f"{format_bytes(memory)} at most"


def describe_first_step(steps: StepMeasurements) -> str:
    """Return the time of the first step beyond a steady one: compiling, and allocating memory for the first time."""
    count = "step" if steps.first_steps == 1 else f"{steps.first_steps} steps"
    first = f"the model was made in {steps.preparation_seconds:.2f} s; the first {count} took {steps.first_seconds:.2f} s"
    more = max(0.0, steps.first_seconds - steps.first_steps * steps.seconds)
    return (
        f"{first}, {more:.2f} s more than {'a steady one' if steps.first_steps == 1 else 'later ones'}"
        if steps.steady
        else first
    )


def describe_loss(steps: StepMeasurements, phase: Phase, config: Configuration) -> str:
    """Return the first loss beside that of a uniform guess; a large difference points to wrong weights or data."""
    parts = []
    for name, value in steps.first_terms.items():
        if term := name.removesuffix("_loss") if name.endswith("_loss") else "":
            classes = phase.declaration.classes.get(term, config.vocabulary_size)
            parts.append(f"{term} {value:.3f} (a guess among {classes:,}: {math.log(classes):.3f})")
    return ", ".join(parts) + (f"; of the last: {steps.last_loss:.3f} in all" if steps.steady else "")


def require_options(steps: int | None, compile_only: bool, trace: Path | None) -> None:
    """Raise if options exclude each other, or if a trace could not be written at the end.

    Raises:
        RelmError: options exclude each other, or the trace's path cannot be written.
    """
    if compile_only and (steps is not None or trace is not None):
        extra = "--steps" if steps is not None else "--profile"
        raise RelmError(f"--compile-only stops after one compiled step; leave {extra} or --compile-only out")
    if steps is not None and steps <= WARM_UP:
        raise RelmError(f"--steps {steps}: the first {WARM_UP} steps are the warm-up; give more, or --compile-only")
    if trace is not None:
        existing = nearest_existing(trace.absolute().parent)
        if trace.is_dir() or not existing.is_dir() or not os.access(existing, os.W_OK):
            raise RelmError(f"--profile {trace}: cannot be written as a file; correct the path or its permissions")
