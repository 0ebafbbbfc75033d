"""One phase of a recipe on one device: its settings, folder and identity, and the batches of its steps."""

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
from relm.recipes.curves import Curve
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.machine.machines import find_own_machine
from relm.recipes.optimization import LossScaling
from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import ORDER
from relm.training.arithmetic import operations
from relm.training.checkpoints import newest_checkpoint
from relm.training.input import Reader
from relm.training.loss_scaling import initial_scale
from relm.training.meter import StepWork
from relm.training.micro_batches import micro_batch_size, wanted_micro_batch_size
from relm.training.shard_stamps import Stamps

# Indices of examples that the error of a failed step names.
NAMED_EXAMPLES = 64


@dataclasses.dataclass(frozen=True)
class PhaseRun:
    """One phase on one device, and the batches of its steps."""

    recipe: Recipe
    phase: str
    settings: Phase
    folder: Path
    identity: Mapping[str, str]
    """The keys that its checkpoints must have."""
    reader: Reader
    device: Device
    curve: Curve | None = None
    """The published curve of `recipe.expect_curve`."""
    stamps: Stamps = dataclasses.field(default_factory=dict)
    """The stamps of its shards, taken before they were hashed."""

    @property
    def checkpoints(self) -> Path:
        """Return the folder of its checkpoints."""
        return self.folder / "checkpoints"

    @property
    def writes(self) -> bool:
        """Return True for the one process that writes files."""
        return self.device.rank == 0

    @property
    def machine(self) -> str | None:
        """Return the name of the machine that trains; None if the recipe names none."""
        return find_own_machine(self.recipe)

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens of the global batch, padding included, for throughput; of pairs, those of the encoder."""
        return self.settings.global_batch_size * self.settings.sequence_length

    @cached_property
    def made_on(self) -> dict[str, Any]:
        """Return the facts that decide how sums are rounded: two runs give the same bytes only if these agree."""
        described = self.device.describe()
        # On a CPU a mask without padding changes no bit.
        masks = {} if self.reader.masks_padding or described["device"] == HOST else {"padding_mask": False}
        return {**described, "micro_batch_size": self.reader.micro_batch_size, **masks}

    def work(self, config: Configuration) -> StepWork:
        """Return the tokens, samples and operations of a step of this configuration's model."""
        stated = self.recipe.run.peak_teraflops
        known = find_peak_flops(self.made_on["name"], self.settings.precision)
        peak = stated * 1e12 if stated is not None else known
        return StepWork(
            samples=self.settings.global_batch_size,
            tokens=self.tokens_per_step,
            flops=float(operations(config, self.settings, self.recipe.run).model),
            peak_flops=peak * self.made_on.get("chips", self.device.ranks) if peak is not None else None,
        )

    def epoch(self, step: int) -> float:
        """Return the count of passes over all examples after a step."""
        return step * self.settings.global_batch_size / len(self.reader.examples)

    def feed(self, step: int, micro_batches: Iterable[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Yield this process's micro-batches on the device; the generators are seeded for dropout before each."""
        for number, batch in enumerate(micro_batches):
            if number:
                self.device.launch()  # otherwise a device that traces would merge all micro-batches into one program
            self.device.seed(self.dropout_seed(step, number))
            yield self.device.feed(batch)

    def dropout_seed(self, step: int, number: int) -> int:
        """Return the seed of dropout of this process's micro-batch `number`.

        It depends on the step and on the micro-batch's offset in the global batch, not on the count of ranks.
        """
        first = self.device.part * (self.settings.global_batch_size // self.device.parts)
        offset = first + number * self.reader.micro_batch_size
        return derived_seed(self.recipe.seed, "dropout", self.phase, step, offset)

    def describe_failure(self, step: int) -> str:
        """Return sentences on a step whose figures are not finite: its examples, the newest checkpoint, what to change."""
        indices, epochs = self.reader.numbers(step)
        named = ", ".join(map(str, indices[:NAMED_EXAMPLES].tolist()))
        more = f" and {len(indices) - NAMED_EXAMPLES:,} more" if len(indices) > NAMED_EXAMPLES else ""
        last_good = newest_checkpoint(self.checkpoints)
        checkpoint = f"the last good checkpoint is {last_good}" if last_good else "no checkpoint precedes it"
        remedy = "lower optimizer.learning_rate, warm up longer, or clip the gradient"
        if (pipeline := self.recipe.run.pipeline) is not None:  # it clips no gradient
            scaling = pipeline.of_phase(self.phase).loss_scaling
            where = "run" if self.machine is None else f"on.{self.machine}"
            remedy = "lower optimizer.learning_rate, or warm up longer"
            if scaling != LossScaling():
                factor = f"{initial_scale(scaling, step):g}{' at first' if scaling.name == 'automatic' else ''}"
                remedy = f"lower {where}.pipeline.loss_scaling ({factor}) or optimizer.learning_rate, or warm up longer"
        return f"it read examples {named}{more} of epoch {epochs[0]}; {checkpoint}. The same command would fail again: {remedy}"


def open_reader(recipe: Recipe, phase: str, manifest: Path, split: str, device: Device, check_content: bool = True) -> Reader:
    """Return the reader of a phase's batches from a split; `check_content`: compare each shard's sha256, not only its size."""
    settings = recipe.pretrain[phase]
    # Held-out examples have separate masks, the same in every validation.
    purpose = "masks" if split == "train" else f"masks of {split}"
    examples = open_examples(manifest, split, settings, derived_seed(recipe.seed, purpose, phase), check_content)
    size = micro_batch_size(settings, wanted_micro_batch_size(recipe.run, phase), device.parts)
    masks = recipe.run.padding_mask == "always" or not DEVICES[recipe.run.device].runs_torch
    masks_padding = masks or not getattr(examples, "is_full", False)
    return Reader(examples, settings, derived_seed(recipe.seed, "order", phase), size, device, masks_padding)


def attest_order(run: PhaseRun) -> None:
    """Write `order.json`, the attestation of the examples and their order, or compare a resumed run with it.

    If it is lost, it is written again: it follows from the examples and the seed, which the checkpoint's identity fixes.
    """
    path, reader = run.folder / ORDER, run.reader
    facts = reader.examples, reader.order_seed, run.phase, run.settings.global_batch_size, run.settings.steps
    if newest_checkpoint(run.checkpoints) and path.exists():
        check_attestation(path, *facts)
    elif run.writes:
        attest(*facts, path)


def derived_seed(*words: object) -> int:
    """Return a 63-bit seed that is different for each purpose.

    >>> derived_seed(0, "dropout", "main", 1, 0) == derived_seed(0, "dropout", "main", 10)
    False
    """
    return int.from_bytes(hashlib.sha256("/".join(map(str, words)).encode()).digest()[:8], "little") >> 1
