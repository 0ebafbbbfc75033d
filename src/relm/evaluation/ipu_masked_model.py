"""relm's own BERT or RoBERTa on IPUs, or on their simulator, for evaluations.

The worker computes the encoder's output at the positions that are read, and this process the heads, in float32.
"""

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relm.evaluation.execution import Execution
from relm.evaluation.ipu_worker import open_worker
from relm.evaluation.masked_models import Read
from relm.models.bert import Bert


class ReadingProgram(NamedTuple):
    """The shape of a program; smaller batches are padded, those with more rows are divided."""

    rows: int = 0
    length: int = 0
    slots: int = 0
    """Positions that are read in each row."""


class IpuMaskedModel:
    """A BERT or RoBERTa whose encoder is on IPUs; fulfils `relm.evaluation.masked_models.MaskedModel`."""

    gathers, sees_padding = True, False

    def __init__(self, folder: Path, sha256: str, model: Bert, execution: Execution) -> None:
        """Start the worker, and send it the model.

        Raises:
            RelmError: as of `open_worker`.
        """
        self.folder, self.sha256 = folder, sha256
        self.positions: int | None = model.config.positions
        self.vocabulary_size = model.config.vocabulary_size
        self.has_next_sentence = model.config.next_sentence
        self.program = ReadingProgram()
        self._model = model.eval()
        self._worker = open_worker(folder, "bert", model, execution)
        weakref.finalize(self, self._worker.close)

    def read(self, batch: Mapping[str, Tensor]) -> Read:
        """See `MaskedModel`."""
        rows, length = batch["input_ids"].shape
        slots, program = batch["masked_positions"].shape[1], self.program
        if length > program.length or slots > program.slots:
            self.program = ReadingProgram(rows, max(length, program.length), max(slots, program.slots))
        parts = range(0, rows, self.program.rows)
        hidden = torch.cat(
            [self._encode({name: each[n : n + self.program.rows] for name, each in batch.items()}) for n in parts]
        )
        with torch.inference_mode():
            return self._apply_heads(hidden, slots)

    def _encode(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the encoder's output at the positions that are read, of up to as many rows as the program has."""
        rows, length, slots = self.program
        shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (rows, length))
        arrays = {}
        for name, shape in {**shapes, "masked_positions": (rows, slots)}.items():
            given = batch[name].numpy()
            arrays[name] = np.zeros(shape, dtype=np.int64)
            arrays[name][: given.shape[0], : given.shape[1]] = given
        arrays["attention_mask"][len(batch["input_ids"]) :] = 1  # attention to nothing would not be a number
        answer = self._worker.request("hidden", arrays=arrays)
        return torch.from_numpy(answer.arrays["hidden"])[: len(batch["input_ids"])]

    def _apply_heads(self, hidden: Tensor, slots: int) -> Read:
        """Return the logits, with those for sentence pairs, which are read before the others, if the model has that head."""
        model = self._model
        if model.bert.pooler is None or model.cls.seq_relationship is None:
            return Read(model.head(hidden[:, :slots]), None)
        return Read(model.head(hidden[:, 1 : 1 + slots]), model.cls.seq_relationship(model.bert.pooler(hidden[:, 0])))
