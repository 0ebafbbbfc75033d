"""A look at held-out examples now and then: an early report of what the model has learnt."""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from relm.devices.contract import Device
from relm.errors import RelmError
from relm.examples.contract import Batch
from relm.models.contract import LanguageModel
from relm.recipes.recipe import Recipe
from relm.training.input import Reader
from relm.training.meter import term_figures
from relm.training.phase_run import reader_of


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out examples, and how many of them are looked at how often."""

    reader: Reader
    interval: int
    """Steps between two looks."""
    batches: int
    """Global batches of a look, always the same ones; fewer where there are not so many."""

    def figures(self, model: LanguageModel) -> dict[str, float]:
        """The loss of the held-out batches over all ranks; dropout is off, and no random number is drawn.

        Args:
            model: in training mode, to which it returns.

        Returns:
            For each term of the loss, validation_TERM_loss in nats a label and validation_TERM_accuracy; and the sum of the
            losses, validation_loss.
        """
        settings = self.reader.settings
        number = min(self.batches, max(1, len(self.reader.examples) // settings.global_batch_size))
        sums = self._sums(model, (batch for step in range(1, 1 + number) for batch in self.reader.micro_batches(step)))
        values = self.reader.device.read([value for term in sums.values() for value in term])
        if not all(math.isfinite(value) for value in values):
            raise RelmError(
                "the loss of the held-out examples is no finite number after the newest update, of which no checkpoint was "
                "saved. The same command would end the same way: lower optimizer.learning_rate, warm up longer, or clip the "
                "gradient"
            )
        figures = {f"validation_{name}": value for name, value in term_figures(list(sums), values).items()}
        return {"validation_loss": sum(value for name, value in figures.items() if name.endswith("_loss")), **figures}

    def prepare(self, model: LanguageModel) -> None:
        """Have a device compile now what `figures` will need; two micro-batches see all of it."""
        micro_batches = self.reader.micro_batches(1)
        self._sums(model, [*micro_batches, *micro_batches][:2])

    @torch.no_grad()
    def _sums(self, model: LanguageModel, micro_batches: Iterable[Batch]) -> dict[str, list[Tensor]]:
        """Of each term, the nats, the labels scored and those predicted of this rank."""
        device, sums = self.reader.device, dict[str, list[Tensor]]()
        model.eval()
        for batch in micro_batches:
            with device.autocast(self.reader.settings.precision):
                terms = model.terms(device.feed(device.stage(batch)))
            for name, term in terms.items():
                new = [value.float() for value in (term.nats, term.count, term.correct)]
                sums[name] = [a + b for a, b in zip(sums[name], new, strict=True)] if name in sums else new
            device.launch()
        model.train()
        return sums


def held_out_of(recipe: Recipe, phase: str, manifest: Path, device: Device, check_content: bool = True) -> HeldOut | None:
    """What a phase looks at now and then, where its recipe says so.

    Args:
        check_content: compare each shard's sha256 with the manifest, not its size alone.

    Raises:
        RelmError: the examples are absent, damaged or too few.
    """
    if recipe.run.validation_interval is None:
        return None
    reader = reader_of(recipe, phase, manifest, "held_out", device, check_content)
    return HeldOut(reader, recipe.run.validation_interval, recipe.run.validation_batches)
