"""Masked language models of any local folder: relm's own BERT and RoBERTa, or an architecture that `transformers` has.

Nothing in a folder is executed or unpickled: weights must be safetensors. A model that brings code is rejected, and so is one
that lacks weights, which `transformers` would draw at random.
"""

import contextlib
import inspect
import json
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from relm.errors import RelmError
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.foreign_models import PROBE, UNUSUAL, load_foreign, longest_sequence
from relm.evaluation.ipu_worker import open_worker
from relm.evaluation.model_checks import alike, require_finite_logits, require_finite_weights, require_vocabulary
from relm.evaluation.model_folder import INDEX, WEIGHTS, configuration, read_own_config, readable, weights_sha256
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.gathering import gathered
from relm.recipes.architectures import BertArchitecture
from relm.recipes.devices import DEVICES

# The tensor of the head for sentence pairs, which shows that a file has one whatever class its configuration names.
PAIRS_HEAD = "cls.seq_relationship.weight"
# Padding of the probe, which shows whether padding changes the logits.
PADDING = 2
WANTED = "give a folder of a masked language model, such as one of BertForMaskedLM"


class Read(NamedTuple):
    """A model's output for a batch, float32, on its device."""

    logits: Tensor
    """(rows, slots, vocabulary), for the token at each chosen position."""
    next_sentence: Tensor | None
    """(rows, 2), logits of "the second segment follows the first" and "it does not"; None: the model has no such head."""


class MaskedModel(Protocol):
    """A masked language model on its device, without dropout."""

    folder: Path
    sha256: str
    """sha256 of the weights."""
    positions: int | None
    """Tokens of the longest sequence; None: any length."""
    vocabulary_size: int
    has_next_sentence: bool
    gathers: bool
    """True if the head computes only the logits of the chosen positions."""
    sees_padding: bool
    """True if padding changes the logits of earlier tokens, so that a batch must have sequences of one length."""

    def read(self, batch: Mapping[str, Tensor]) -> Read:
        """Return logits at some positions of each sequence.

        The batch is on the host: `input_ids`, `attention_mask` (bool) and `token_type_ids`, (rows, length), and
        `masked_positions`, (rows, slots), in which a position may occur several times; all but the mask are int64.
        """


class _OwnModel:
    """relm's own BERT or RoBERTa on any device."""

    gathers, sees_padding = True, False

    def __init__(self, folder: Path, sha256: str, model: Bert) -> None:
        self.folder, self.sha256, self.model = folder, sha256, model.eval()
        self.positions: int | None = model.config.positions
        self.vocabulary_size, self.has_next_sentence = model.config.vocabulary_size, model.config.next_sentence


class OwnMaskedModel(_OwnModel):
    """relm's own BERT or RoBERTa on a device that runs torch; fulfils `MaskedModel`."""

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


class IpuMaskedModel(_OwnModel):
    """relm's own BERT or RoBERTa on IPUs, or on their simulator; fulfils `MaskedModel`.

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


class ForeignMaskedModel:
    """A model of `transformers`; fulfils `MaskedModel`.

    The head reads only the chosen positions of the body's output. If a probe shows that this gives other logits, the model
    computes those of all positions, and the chosen ones are taken.
    """

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self._takes = set(inspect.signature(model.forward).parameters)
        if getattr(model.config, "type_vocab_size", 0) < 2:
            self._takes.discard("token_type_ids")
        self._device, self._precision = execution.open(), "float32"  # the probes below compare logits
        self.model: nn.Module = self._device.place(model.eval())
        self.positions = longest_sequence(model)
        self.has_next_sentence = False
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._gathered_at: nn.Module = self.model
        length = min(PROBE, self.vocabulary_size, (self.positions or 2 * PROBE) - PADDING)
        with torch.inference_mode():
            whole = self.read(_probe(length))
            require_finite_logits(folder, whole.logits)
            self.has_next_sentence = whole.next_sentence is not None
            self.vocabulary_size = min(self.vocabulary_size, whole.logits.shape[-1])
            self.sees_padding = not alike(self.read(_probe(length, PADDING)).logits, whole.logits)
            self.gathers = self._gathers_as(whole.logits, _probe(length))
        self._precision = execution.precision

    def read(self, batch: Mapping[str, Tensor]) -> Read:
        fed = self._device.feed(batch)
        inputs = {name: fed[name].long() for name in ("input_ids", "attention_mask", "token_type_ids") if name in self._takes}
        with _output_at(self._gathered_at, fed["masked_positions"]), self._device.autocast(self._precision):
            found = self.model(**inputs, return_dict=True)
        pairs = found.get("seq_relationship_logits")
        logits = found["logits" if pairs is None else "prediction_logits"]
        return Read(logits.float(), None if pairs is None else pairs.float())

    def _gathers_as(self, whole: Tensor, probe: Mapping[str, Tensor]) -> bool:
        """Return whether the head gives the same logits from some positions; if so, it reads only these from now on."""
        self._gathered_at = self.model.base_model  # type: ignore[assignment]
        with contextlib.suppress(*UNUSUAL):
            if alike(self.read(probe).logits, whole):
                return self._gathered_at is not self.model
        self._gathered_at = self.model
        return False


def _probe(length: int, padding: int = 0) -> dict[str, Tensor]:
    """Return a batch of one sequence, with two of its positions."""
    mask = torch.arange(length + padding)[None] < length
    ids = torch.arange(length + padding)[None] * mask
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(ids),
        "masked_positions": torch.tensor([[1, length - 1]]),
    }


@contextlib.contextmanager
def _output_at(module: nn.Module, positions: Tensor) -> Iterator[None]:
    """Reduce the first part of a module's output, (rows, length, width), to `positions`, (rows, slots)."""

    def chosen(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        taken = gathered(output[0], positions)
        if isinstance(output, tuple):
            return (taken, *output[1:])
        output[next(iter(output))] = taken
        return output

    handle = module.register_forward_hook(chosen)
    try:
        yield
    finally:
        handle.remove()


def load_masked(folder: Path, vocabulary_size: int, execution: Execution = ON_THE_HOST) -> MaskedModel:
    """Return the masked language model in a folder that `save_pretrained` wrote, for a tokenizer of `vocabulary_size` ids.

    It has a head for sentence pairs if the folder has one.
    """
    with readable(folder, "masked language model"):
        sha256 = weights_sha256(folder)
        pairs = PAIRS_HEAD in _tensor_names(folder)
        own = _own_bert(folder, pairs)
        model: MaskedModel
        if own is not None:
            require_finite_weights(folder, own)
            kind = IpuMaskedModel if DEVICES[execution.device].runs_inference else OwnMaskedModel
            model = kind(folder, sha256, own, execution)
        else:
            _require_masked(folder)
            auto_class = "AutoModelForPreTraining" if pairs else "AutoModelForMaskedLM"
            model = ForeignMaskedModel(folder, sha256, load_foreign(folder, auto_class), execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def _require_masked(folder: Path) -> None:
    """Reject an architecture that is not a masked language model."""
    from transformers.models.auto import modeling_auto

    config = configuration(folder)
    kind = str(config.get("model_type", ""))
    if config.get("is_decoder"):
        raise RelmError(f"{folder}: config.json sets is_decoder, so it sees no later token; {WANTED}")
    if kind in modeling_auto.MODEL_MAPPING_NAMES and kind not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        what = "a causal" if kind in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else "not a masked"
        raise RelmError(f"{folder}: config.json names {kind}, which is {what} language model; {WANTED}")


def _tensor_names(folder: Path) -> set[str]:
    if (folder / WEIGHTS).exists():
        with safe_open(str(folder / WEIGHTS), framework="pt") as file:
            return set(file.keys())
    return set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])


def _own_bert(folder: Path, pairs: bool) -> Bert | None:
    """Return the folder's model, if it is a BERT or RoBERTa with the options of relm's."""
    config = read_own_config(folder, BertConfig, BertArchitecture)
    if config is None:
        return None
    if config.family == "bert":
        config = replace(config, next_sentence=pairs or config.next_sentence)
    return Bert.from_folder(folder, expected=config)
