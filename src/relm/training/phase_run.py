"""One phase of a recipe on one device: what it is, where it lies, and what each of its steps reads."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from relm.devices.contract import Device
from relm.devices.peaks import find_peak_flops
from relm.examples.attestation import attest, check_attestation
from relm.examples.builders import open_examples
from relm.models.configuration import Configuration
from relm.recipes.recipe import Phase, Recipe
from relm.recipes.run_folder import ORDER
from relm.training.arithmetic import model_flops
from relm.training.checkpoints import newest_checkpoint
from relm.training.input import Reader
from relm.training.meter import StepWork
from relm.training.micro_batches import micro_batch_size

# So many example numbers are named when a step fails.
NAMED_EXAMPLES = 64


@dataclasses.dataclass(frozen=True)
class PhaseRun:
    """One phase on one device, and the batches of its steps."""

    recipe: Recipe
    phase: str
    settings: Phase
    folder: Path
    identity: Mapping[str, str]
    """What its checkpoints are made for."""
    reader: Reader
    device: Device

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.folder / "checkpoints"

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files."""
        return self.device.rank == 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch, by which throughput is counted: of the encoder, padding included."""
        return self.settings.global_batch_size * self.settings.sequence_length

    @cached_property
    def made_on(self) -> dict[str, Any]:
        """What decides how sums are rounded: only where this agrees are two runs the same bytes."""
        return {**self.device.describe(), "micro_batch_size": self.reader.micro_batch_size}

    def work(self, config: Configuration) -> StepWork:
        """What a step of a model of this configuration does."""
        stated = self.recipe.run.peak_teraflops
        known = find_peak_flops(self.made_on["name"], self.settings.precision)
        peak = stated * 1e12 if stated is not None else known
        return StepWork(
            samples=self.settings.global_batch_size,
            tokens=self.tokens_per_step,
            flops=model_flops(config, self.settings),
            peak_flops=peak * self.made_on.get("chips", self.device.ranks) if peak is not None else None,
        )

    def epoch(self, step: int) -> float:
        """How often all examples have been read after a step."""
        return step * self.settings.global_batch_size / len(self.reader.examples)

    def fed(self, step: int, micro_batches: Iterable[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """This process's pieces on the device, one after the other; before each, the generators are seeded for its dropout.

        The seed depends on the step and on where the piece lies in the global batch: not on how many ranks there are.
        """
        first = self.device.part * (self.settings.global_batch_size // self.device.parts)
        for number, batch in enumerate(micro_batches):
            if number:
                self.device.launch()  # else a device that traces would make one program of all micro-batches
            place = first + number * self.reader.micro_batch_size
            self.device.seed(derived_seed(self.recipe.seed, "dropout", self.phase, step, place))
            yield self.device.feed(batch)

    def what_was_read(self, step: int) -> str:
        """Which examples a step read, and the newest checkpoint: for whoever looks into a step that failed."""
        indices, epochs = self.reader.numbers(step)
        named = ", ".join(map(str, indices[:NAMED_EXAMPLES].tolist()))
        more = f" and {len(indices) - NAMED_EXAMPLES:,} more" if len(indices) > NAMED_EXAMPLES else ""
        last_good = newest_checkpoint(self.checkpoints)
        where = f"the last good checkpoint is {last_good}" if last_good else "there is no checkpoint before it"
        return f"it read the examples {named}{more} of epoch {epochs[0]}; {where}"


def reader_of(recipe: Recipe, phase: str, manifest: Path, split: str, device: Device, check_content: bool = True) -> Reader:
    """The batches of a phase from one split of its examples.

    Args:
        check_content: compare each shard's sha256 with the manifest, not its size alone.

    Raises:
        RelmError: the examples are absent, damaged, of another objective or too few.
    """
    settings = recipe.pretrain[phase]
    # Held-out examples are masked by themselves, always in the same way.
    purpose = "masks" if split == "train" else f"masks of {split}"
    examples = open_examples(manifest, split, settings, derived_seed(recipe.seed, purpose, phase), check_content)
    size = micro_batch_size(settings, recipe.run.micro_batch_size, device.parts)
    return Reader(examples, settings, derived_seed(recipe.seed, "order", phase), size, device)


def attested(run: PhaseRun) -> None:
    """Write `order.json`, which says what is read in which order, or compare this run with the one that began.

    Raises:
        RelmError: this run would read something else.
    """
    path, reader = run.folder / ORDER, run.reader
    facts = reader.examples, reader.order_seed, run.phase, run.settings.global_batch_size, run.settings.steps
    if newest_checkpoint(run.checkpoints):
        check_attestation(path, *facts)
    elif run.writes:
        attest(*facts, path)


def derived_seed(*words: object) -> int:
    """A seed of 63 bits for one purpose, unlike those of all others.

    >>> derived_seed(0, "dropout", "main", 1, 0) == derived_seed(0, "dropout", "main", 10)
    False
    """
    return int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:8], "little") >> 1
