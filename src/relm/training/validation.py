"""Validation during training: loss and accuracy on held-out examples at regular intervals."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from relm.errors import RelmError
from relm.examples.contract import Batch
from relm.models.contract import LanguageModel
from relm.models.losses import Term
from relm.training.input import Reader
from relm.training.meter import term_figures

Forward = Callable[[Mapping[str, Tensor]], Mapping[str, Term]]


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The held-out examples, and the interval and size of a validation."""

    reader: Reader
    interval: int
    """Steps between two validations."""
    batches: int
    """Global batches of a validation, always the same; fewer if the split has fewer."""

    def figures(self, model: LanguageModel, forward: Forward) -> dict[str, float]:
        """Return the loss of the held-out batches over all ranks; dropout is off, and no random number is drawn.

        For each term these are validation_TERM_loss in nats per label and validation_TERM_accuracy; validation_loss is the sum
        of the losses. The model is in training mode, and `forward` its forward pass as the device runs it.
        """
        settings = self.reader.settings
        count = min(self.batches, max(1, len(self.reader.examples) // settings.global_batch_size))
        sums = self._sums(model, forward, (batch for step in range(1, 1 + count) for batch in self.reader.micro_batches(step)))
        values = self.reader.device.read([value for term in sums.values() for value in term])
        if not all(math.isfinite(value) for value in values):
            raise RelmError(
                "the loss of the held-out examples is not finite after the newest update, of which no checkpoint was saved. "
                "The same command would fail again: lower optimizer.learning_rate, warm up longer, or clip the gradient"
            )
        figures = {f"validation_{name}": value for name, value in term_figures(list(sums), values).items()}
        return {"validation_loss": sum(value for name, value in figures.items() if name.endswith("_loss")), **figures}

    def prepare(self, model: LanguageModel, forward: Forward) -> None:
        """Compile the programs that `figures` will need: the second micro-batch also adds to sums, a third does nothing new."""
        micro_batches = self.reader.micro_batches(1)
        self._sums(model, forward, [*micro_batches, *micro_batches][:2])

    @torch.no_grad()
    def _sums(self, model: LanguageModel, forward: Forward, micro_batches: Iterable[Batch]) -> dict[str, list[Tensor]]:
        """Return each term's nats, scored labels and correct predictions, summed over this rank's micro-batches."""
        device, sums = self.reader.device, dict[str, list[Tensor]]()
        model.eval()
        for batch in micro_batches:
            with device.autocast(self.reader.settings.precision):
                terms = forward(device.feed(device.stage(batch)))
            for name, term in terms.items():
                new = [value.float() for value in (term.nats, term.count, term.correct)]
                sums[name] = [a + b for a, b in zip(sums[name], new, strict=True)] if name in sums else new
            device.launch()
        model.train()
        return sums
