"""BERT and RoBERTa of any local folder as masked language models.

Nothing in a folder is executed or unpickled: weights must be safetensors.
"""

import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.ipu_worker import open_worker
from relm.evaluation.model_checks import require_finite_weights, require_vocabulary
from relm.evaluation.model_folder import readable, weights_sha256
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.configuration import folder_config
from relm.models.weights import list_tensors
from relm.recipes.devices import DEVICES

# The tensor of the head for sentence pairs, which shows that a file has one whatever class its configuration names.
PAIRS_HEAD = "cls.seq_relationship.weight"


class Read(NamedTuple):
    """A model's output for a batch, float32, on its device."""

    logits: Tensor
    """(rows, slots, vocabulary), for the token at each chosen position."""
    next_sentence: Tensor | None
    """(rows, 2), logits of "the second segment follows the first" and "it does not"; None: the model has no such head."""


class MaskedModel:
    """relm's BERT or RoBERTa on any device, without dropout."""

    def __init__(self, folder: Path, sha256: str, model: Bert) -> None:
        self.folder, self.sha256, self.model = folder, sha256, model.eval()
        self.positions = model.config.positions
        self.vocabulary_size, self.has_next_sentence = model.config.vocabulary_size, model.config.next_sentence

    def read(self, batch: Mapping[str, Tensor]) -> Read:
        """Return logits at some positions of each sequence.

        The batch is on the host: `input_ids`, `attention_mask` (bool) and `token_type_ids`, (rows, length), and
        `masked_positions`, (rows, slots), in which a position may occur several times; all but the mask are int64.
        """
        raise NotImplementedError


class TorchMaskedModel(MaskedModel):
    """A model on a device that runs torch."""

    def __init__(self, folder: Path, sha256: str, model: Bert, execution: Execution) -> None:
        super().__init__(folder, sha256, model)
        self._device, self._precision = execution.open(), execution.precision
        self.model = self._device.place(self.model)

    def read(self, batch: Mapping[str, Tensor]) -> Read:
        fed, model = self._device.feed(batch), self.model
        positions = F.pad(fed["masked_positions"], (1, 0))  # the first token, which the head for pairs reads
        with self._device.autocast(self._precision):
            hidden = model.encoded(fed["input_ids"], fed["attention_mask"], fed["token_type_ids"], positions)
            logits = model.head(hidden[:, 1:])
            if model.bert.pooler is None or model.cls.seq_relationship is None:
                return Read(logits.float(), None)
            return Read(logits.float(), model.cls.seq_relationship(model.bert.pooler(hidden[:, 0])).float())


class ReadingProgram(NamedTuple):
    """The shape of a program; smaller batches are padded, larger ones divided."""

    rows: int = 0
    length: int = 0
    slots: int = 0
    """Positions to read in each row."""


class IpuMaskedModel(MaskedModel):
    """A model on IPUs, or on their simulator.

    The worker computes the encoder's output at the positions to read, and this process the heads, in float32.
    """

    def __init__(self, folder: Path, sha256: str, model: Bert, execution: Execution) -> None:
        super().__init__(folder, sha256, model)
        self.program = ReadingProgram()
        self._worker = open_worker(folder, "bert", model, execution)
        weakref.finalize(self, self._worker.close)

    def read(self, batch: Mapping[str, Tensor]) -> Read:
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
        """Return the encoder's output at the positions to read, for at most the program's rows."""
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
        """Return the logits; if the model has a head for sentence pairs, its logits come from the first position."""
        model = self.model
        if model.bert.pooler is None or model.cls.seq_relationship is None:
            return Read(model.head(hidden[:, :slots]), None)
        return Read(model.head(hidden[:, 1 : 1 + slots]), model.cls.seq_relationship(model.bert.pooler(hidden[:, 0])))


def load_masked(folder: Path, vocabulary_size: int, execution: Execution = ON_THE_HOST) -> MaskedModel:
    """Return the BERT or RoBERTa in a folder that `save_pretrained` wrote, for a tokenizer of `vocabulary_size` ids.

    It has a head for sentence pairs if the folder has one.
    """
    with readable(folder, "BERT or RoBERTa with a head for masked tokens"):
        sha256 = weights_sha256(folder)
        config = folder_config(folder, BertConfig)
        if config.family == "bert":
            config = replace(config, next_sentence=config.next_sentence or PAIRS_HEAD in list_tensors(folder))
        model = Bert.from_folder(folder, expected=config)
        require_finite_weights(folder, model)
        kind = IpuMaskedModel if DEVICES[execution.device].runs_inference else TorchMaskedModel
        opened = kind(folder, sha256, model, execution)
    require_vocabulary(folder, opened.vocabulary_size, vocabulary_size)
    return opened
