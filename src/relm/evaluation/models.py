"""Causal language models of any local folder: relm's own GPT-2, or an architecture that `transformers` has.

Nothing in a folder is executed or unpickled: weights are safetensors, and a model that needs code of its own is refused.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, runtime_checkable

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.evaluation.last_layer import hidden_at
from relm.evaluation.model_folder import WEIGHTS, configuration, model_type, readable, weights_sha256
from relm.models.configuration import OWN, folder_config
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.architectures import Gpt2Architecture, names_with
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.recipe import Run

# Tokens of the probe, which shows once whether the head by itself gives the logits, and whether the model is causal.
PROBE = 8
PROBE_TOLERANCE = 1e-4
# Tokens of the batch that is computed before the first one that is read.
UNREAD_TOKENS = 512


@dataclass(frozen=True)
class Execution:
    """Device, precision and batches of an evaluation, which change figures by rounding at most."""

    device: str = HOST
    """A device that evaluations run on."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of matrix products before the head; head and probabilities are in float32, sums in float64."""
    threads: int | None = None
    """Threads of the CPU; None: all cores that this process may use."""
    batch_tokens: int = DEVICES[HOST].evaluation_batch_tokens
    """The most tokens in a batch, padding included; a longer sequence is a batch by itself."""
    layers_per_ipu: tuple[int, ...] | None = None
    """Layers on each IPU, where the device has IPUs or simulates them; None: all on one."""
    available_memory_proportion: tuple[float, ...] | None = None
    """Share of each IPU's memory for temporary values of matrix products; None: the compiler's, or that of the original."""
    executable_cache: Path | None = None
    """Folder that keeps what is compiled for IPUs; None: nothing is kept."""

    def open(self) -> Device:
        """Return the device, ready, without deterministic algorithms: a forward pass needs none, and some models lack them.

        Raises:
            RelmError: the device is absent, or it evaluates relm's own models alone.
        """
        self.require_device_of_all_models()
        return open_device(Run(device=self.device, threads=self.threads, compile=False, deterministic=False))

    def require_device_of_all_models(self) -> None:
        """Raise an error for a device that evaluates relm's own models alone.

        Raises:
            RelmError: it is one.
        """
        if DEVICES[self.device].infers_own:
            raise RelmError(
                f"--device: {self.device} evaluates GPT-2, BERT and RoBERTa of relm's own alone, and not this model or task; "
                "give another device"
            )


class CausalModel(Protocol):
    """A causal language model, dropout off, on its device."""

    folder: Path
    sha256: str
    """sha256 of the weights."""
    positions: int | None
    """Tokens of the longest sequence; None: any length."""
    vocabulary_size: int

    def hidden(self, input_ids: Tensor) -> Tensor:
        """Return the head's input, (batch, sequence, width) on the device, for (batch, sequence) int64 ids on the host.

        A sequence may be padded at its end, with any id: the tokens before do not see it.
        """

    def head(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of the next token, (positions, width) -> (positions, vocabulary), on the device."""


@runtime_checkable
class SelectiveModel(Protocol):
    """A `CausalModel` that saves work if the head reads some positions alone."""

    def hidden_at(self, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return `hidden` at some positions, (positions, width), but for rounding.

        Args:
            input_ids: as in `hidden`.
            rows, columns: (positions,) int64 on the host, in the order of rows.
        """


class OwnCausalModel:
    """A GPT-2 of relm's own; fulfils `CausalModel` and `SelectiveModel`."""

    def __init__(self, folder: Path, sha256: str, model: Gpt2, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions: int | None = model.config.positions
        self.vocabulary_size = model.config.vocabulary_size
        self._device, self._precision = execution.open(), execution.precision
        self.model = self._device.place(model.eval())
        self._compute_unread_batch()

    def _compute_unread_batch(self) -> None:
        """Compute a batch whose result nothing reads.

        On a Xeon with AVX-512 FP16 and under load, the first batch of 2 in 127 processes with two threads had losses that were
        off by 3e-5; later batches never had. The cause is not known.
        """
        length = min(UNREAD_TOKENS, self.model.config.positions)
        with torch.inference_mode():
            ids = torch.zeros(max(1, UNREAD_TOKENS // length), length, dtype=torch.int64)
            self.head(self.hidden(ids).flatten(0, 1)).logsumexp(-1)

    def hidden(self, input_ids: Tensor) -> Tensor:
        """Return the head's input, (batch, sequence) -> (batch, sequence, width)."""
        with self._device.autocast(self._precision):
            return self.model.hidden(self._placed(input_ids))

    def hidden_at(self, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return `hidden` at some positions, (positions, width)."""
        with self._device.autocast(self._precision):
            return hidden_at(self.model, self._placed(input_ids), self._placed(rows), self._placed(columns))

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits, (positions, width) -> (positions, vocabulary)."""
        return self.model.head(hidden.float())

    def _placed(self, indices: Tensor) -> Tensor:
        return self._device.feed({"indices": indices})["indices"]


class ForeignCausalModel:
    """A model of `transformers`; fulfils `CausalModel`.

    Its body and its head are called apart: the head is all that the model computes after its body, which may include a scale, a
    cap or a normalisation of logits. If a probe shows that a model cannot be divided so, `hidden` returns all its logits.

    Raises:
        RelmError: its logits are not finite, or it is not causal.
    """

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions = longest_sequence(model)
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._device, self._precision = execution.open(), "float32"  # the probe below compares logits
        self.model: Any = self._device.place(model.eval())
        self._body: nn.Module = self.model.get_decoder()
        with torch.inference_mode():
            ids = self._probe()
            whole = self._whole(self._device.feed({"input_ids": ids})["input_ids"])
            self.vocabulary_size = min(self.vocabulary_size, whole.shape[-1])
            self._head_stands_alone = self._gives(ids, whole)
        require_finite_logits(folder, whole)
        require_causal(folder, whole)
        self._precision = execution.precision

    def hidden(self, input_ids: Tensor) -> Tensor:
        """Return the head's input, (batch, sequence) -> (batch, sequence, width), or logits (batch, sequence, vocabulary)."""
        ids = self._device.feed({"input_ids": input_ids})["input_ids"]
        with self._device.autocast(self._precision):
            if not self._head_stands_alone:
                return self._whole(ids)
            found = self._body(input_ids=ids, use_cache=False)
        self._kind_of_answer = type(found)
        hidden: Tensor = found[0]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits, (positions, width) -> (positions, vocabulary)."""
        if not self._head_stands_alone:
            return hidden.float()
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        with _answering(self._body, self._kind_of_answer(last_hidden_state=hidden.float()[None])):
            return self._whole(ids)[0].float()

    def _whole(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits

    def _probe(self) -> Tensor:
        """Return two sequences that differ in their last token, (2, sequence)."""
        ids = torch.arange(min(PROBE, self.positions or PROBE)) % self.vocabulary_size
        ids = torch.stack([ids, ids])
        ids[1, -1] = (ids[0, -1] + 1) % self.vocabulary_size
        return ids

    def _gives(self, ids: Tensor, whole: Tensor) -> bool:
        """Return whether body and head by themselves give the model's logits; if so, they are called apart from now on."""
        self._head_stands_alone = True
        with contextlib.suppress(AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return alike(self.head(self.hidden(ids).flatten(0, 1)), whole.flatten(0, 1))
        return False


@contextlib.contextmanager
def _answering(body: nn.Module, answer: Any) -> Iterator[None]:
    """Let a model's body return an answer for any input."""

    def forward(*_inputs: Any, **_options: Any) -> Any:
        return answer

    body.forward = forward  # hides the class's own
    try:
        yield
    finally:
        del body.forward


def longest_sequence(model: Any) -> int | None:
    """Return the count of tokens that a model of `transformers` has positions for; RoBERTa's table has rows no token uses."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(positions) if positions and positions > 0 else None


def alike(some: Tensor, others: Tensor) -> bool:
    """Return whether two arrays are equal but for rounding."""
    return some.shape == others.shape and torch.allclose(some, others, PROBE_TOLERANCE, PROBE_TOLERANCE)


def require_finite_weights(folder: Path, model: nn.Module) -> None:
    """Refuse a model with a weight that is NaN or infinite, whose loss would mean nothing.

    A buffer that is saved with the weights may be infinite, as a mask or a bound is, but not NaN: some are learnt, and if a NaN
    only chooses a model's experts, the logits stay finite.

    Raises:
        RelmError: it has one, which the message names.
    """
    for name, weight in model.named_parameters():
        if odd := [bound for bound in _bounds(weight) if not math.isfinite(bound)]:
            _refuse_weight(folder, name, odd[0])
    saved = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in saved and buffer.is_floating_point() and any(map(math.isnan, _bounds(buffer))):
            _refuse_weight(folder, name, math.nan)


def _bounds(weight: Tensor) -> list[float]:
    """Return the least and the largest number of an array, NaN if it has one; nothing for an empty array."""
    return [bound.item() for bound in weight.detach().aminmax()] if weight.numel() else []


def _refuse_weight(folder: Path, name: str, value: float) -> NoReturn:
    """Refuse a model for one of its weights.

    Raises:
        RelmError: always.
    """
    raise RelmError(
        f"{folder}: the weight {name} has {value}, expected finite numbers: training diverged, or the file is "
        "damaged; give an earlier checkpoint, or train again with a lower learning rate"
    )


def require_finite_logits(folder: Path, logits: Tensor) -> None:
    """Refuse a model whose logits are not finite; minus infinity stands for an id without a token, so the largest counts.

    Raises:
        RelmError: those of a position are not finite.
    """
    if not bool(logits.amax(-1).isfinite().all()):
        raise RelmError(
            f"{folder}: its logits are not finite though its weights are: these are too large, or config.json does not fit "
            "them; give an earlier checkpoint, or the configuration that the model was trained with"
        )


def require_causal(folder: Path, logits: Tensor) -> None:
    """Refuse a model that is not causal, by its (2, sequence, vocabulary) logits of sequences that differ in the last token.

    Raises:
        RelmError: logits before the last token differ: `transformers` takes some masked models for causal ones.
    """
    before = logits[:, :-1]
    if not alike(before[0], before[1]):
        raise RelmError(f"{folder}: sees the tokens that follow, so its losses mean nothing; give a causal language model")


def load_causal(folder: Path, vocabulary_size: int, execution: Execution | None = None) -> CausalModel:
    """Return the causal language model in a folder, as `save_pretrained` writes it.

    Args:
        vocabulary_size: that of the tokenizer whose ids it will be given.

    Raises:
        RelmError: there is no such model, it is damaged, a weight is not finite, or it has fewer ids than the tokenizer.
    """
    execution = execution or Execution()
    with readable(folder, "causal language model"):
        _require_causal_kind(folder)
        sha256 = weights_sha256(folder)
        own = _own_gpt2(folder)
        model: CausalModel
        if own is not None:
            require_finite_weights(folder, own)
            model = _open_own(folder, sha256, own, execution)
        else:
            model = ForeignCausalModel(folder, sha256, load_foreign(folder, "AutoModelForCausalLM"), execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def _open_own(folder: Path, sha256: str, own: Gpt2, execution: Execution) -> CausalModel:
    if not DEVICES[execution.device].infers_own:
        return OwnCausalModel(folder, sha256, own, execution)
    from relm.evaluation.ipu_model import IpuCausalModel

    return IpuCausalModel(folder, sha256, own, execution)


def _require_causal_kind(folder: Path) -> None:
    """Refuse an architecture that is no causal language model.

    Raises:
        RelmError: `transformers` has the architecture, but not as a causal language model.
    """
    kind = model_type(folder)
    if kind in names_with(Gpt2Architecture):  # which needs no list of `transformers`, whose import takes a second
        return
    from transformers.models.auto import modeling_auto

    if kind in modeling_auto.MODEL_MAPPING_NAMES and kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise RelmError(f"{folder}: config.json names {kind}, which is no causal language model; give a folder of one")


def _own_gpt2(folder: Path) -> Gpt2 | None:
    """Return the folder's model, if it is a GPT-2 with the options of relm's."""
    config = configuration(folder)
    if config.get("model_type") not in names_with(Gpt2Architecture) or not (folder / WEIGHTS).exists():
        return None
    try:
        folder_config(folder, Gpt2Config, None, ())
    except ValueError:
        if OWN in config:  # `transformers` would ignore these options
            raise
        return None  # a model with options that `transformers` has
    return Gpt2.from_folder(folder)


def load_foreign(folder: Path, auto_class: str) -> Any:
    """Return the model that `transformers` reads from a folder, in float32, by the name of its auto class.

    Raises:
        ValueError: the configuration does not fit its architecture, or the folder's files lack weights of the model, in place
            of which `transformers` would draw random ones.
        RelmError: a weight is not finite.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, report = getattr(transformers, auto_class).from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except StrictDataclassError as error:
        raise ValueError(f"config.json: {' '.join(str(error).split())}") from None
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"its weights lack {missing[0]}{more}, which {type(model).__name__} has")
    require_finite_weights(folder, model)
    return model


def require_vocabulary(folder: Path, model: int, tokenizer: int) -> None:
    """Refuse a tokenizer with ids that the model lacks.

    Raises:
        RelmError: it has some.
    """
    if model < tokenizer:
        raise RelmError(
            f"{folder}: the model has {model:,} tokens, the tokenizer {tokenizer:,}; give the tokenizer it was trained with"
        )


def require_context(model: CausalModel, context: int) -> None:
    """Refuse a context that is longer than the model's positions.

    Raises:
        RelmError: it is.
    """
    if context < 1 or (model.positions is not None and context > model.positions):
        raise RelmError(f"{model.folder}: has {model.positions} positions; a context of {context} does not fit")
