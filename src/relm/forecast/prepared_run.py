"""A recipe's phase on its device, ready for the steps of a rehearsal, with generated examples and random weights."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from relm.devices.contract import Device, UpdatingDevice, open_device
from relm.examples.generated import GeneratedExamples
from relm.examples.manifest import TokenizerFacts
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.training.architecture import configuration
from relm.training.arithmetic import require_state_memory
from relm.training.input import Reader
from relm.training.learner import Learner, begin
from relm.training.micro_batches import micro_batch_size, shorten_phase, wanted_micro_batch_size
from relm.training.phase_run import PhaseRun, derived_seed
from relm.training.updates import DeviceUpdates, Updates, open_updates

# Default of --steps.
STEPS = 10
# The most micro-batches in a step of --compile-only: the second adds to the gradients of the first.
FEW_MICRO_BATCHES = 2


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """A request: the phase of a recipe, and the options of its steps."""

    recipe: Recipe
    phase: str
    tokenizer: TokenizerFacts
    """The recipe's tokenizer, or the facts that are expected of it."""
    steps: int = STEPS
    """The count of steps, warm-up included."""
    compile_only: bool = False
    """Take one step of at most two micro-batches, which compiles every program; later steps take slightly more memory. A device
    that takes whole updates only compiles, and may be absent."""
    trace: Path | None = None
    """The path of a trace of a few further steps; None: no trace."""


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """Everything that the steps of a rehearsal need."""

    run: PhaseRun
    learner: Learner
    updates: Updates
    preparation_seconds: float
    """Seconds until the model was on its device."""


@contextmanager
def prepare(rehearsal: Rehearsal) -> Iterator[PreparedRun]:
    """Open the recipe's device, and prepare examples and model on it."""
    with (
        TemporaryDirectory(prefix="relm-rehearsal-") as folder,  # an empty run folder
        closing(open_device(rehearsal.recipe.run)) as device,
        device.translate_errors(),
    ):
        recipe, settings = rehearsal.recipe, rehearsal.recipe.pretrain[rehearsal.phase]
        if rehearsal.compile_only and not isinstance(device, UpdatingDevice):  # whose programs would differ
            recipe, settings = shorten_phase(recipe, rehearsal.phase, FEW_MICRO_BATCHES, device.parts)
        config = configuration(recipe, rehearsal.tokenizer)
        require_state_memory(config, settings, recipe.run)
        reader = generated_reader(recipe, rehearsal.phase, settings, rehearsal.tokenizer, device)
        run = PhaseRun(recipe, rehearsal.phase, settings, Path(folder), {}, reader, device)
        started = time.perf_counter()
        learner = begin(run, config, None)
        if rehearsal.compile_only and isinstance(device, UpdatingDevice):
            updates: Updates = DeviceUpdates(run, learner, device, offline=True)
        else:
            updates = open_updates(run, learner)
        preparation_seconds = time.perf_counter() - started
        learner.model.train()
        yield PreparedRun(run, learner, updates, preparation_seconds)


def generated_reader(recipe: Recipe, phase: str, settings: Phase, tokens: TokenizerFacts, device: Device) -> Reader:
    """Return a reader of random examples, with the names, shapes and types of real ones.

    The settings may have fewer sequences a step than the recipe.
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
