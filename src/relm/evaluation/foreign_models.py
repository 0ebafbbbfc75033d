"""Models of `transformers`, whose body and head are called separately."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import Execution
from relm.evaluation.model_checks import alike, require_causal, require_finite_logits, require_finite_weights

# Suffixes of classes with a language model's weights but another head.
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
# Tokens of the probe, which shows whether the separate head gives the logits, and whether the model is causal.
PROBE = 8
# Exceptions of models that cannot be called in parts.
UNUSUAL = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class ForeignCausalModel(CausalModel):
    """A model of `transformers`, whose logits must be finite and causal.

    The head is everything that the model computes after its body, which may include a scale, a cap or a normalisation of
    logits. If a probe shows that a model cannot be divided so, `hidden` returns all its logits.
    """

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions, self.short_rows = longest_sequence(model), longest_short_row(model)
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
        ids = self._device.feed({"input_ids": input_ids})["input_ids"]
        with self._device.autocast(self._precision):
            if not self._head_stands_alone:
                return self._whole(ids)
            found = self._body(input_ids=ids, use_cache=False)
        self._kind_of_answer = type(found)
        hidden: Tensor = found[0]
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        if not self._head_stands_alone:
            return hidden.float()
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        answer = self._kind_of_answer(last_hidden_state=hidden.float()[None])
        self._body.forward = lambda *_inputs, **_options: answer  # hides the class's own
        try:
            return self._whole(ids)[0].float()
        finally:
            del self._body.forward

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
        """Return whether separate body and head give the model's logits; if so, they are called so from now on."""
        self._head_stands_alone = True
        with contextlib.suppress(*UNUSUAL):
            return alike(self.head(self.hidden(ids).flatten(0, 1)), whole.flatten(0, 1))
        return False


def longest_sequence(model: Any) -> int | None:
    """Return the length that a model of `transformers` has positions for; RoBERTa's table has rows that no token uses."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    config = model.config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)  # the latter: MPT
    return int(positions) if positions and positions > 0 else None


def longest_short_row(model: Any) -> int | None:
    """Return the length beyond which a row has other rotary frequencies, as in Phi-3's LongRoPE; None: no such length."""
    found = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    parts = [part for part in (found, *found.values()) if isinstance(part, Mapping) and part.get("rope_type") == "longrope"]
    return min((int(part["original_max_position_embeddings"]) for part in parts), default=None)


def choose_attention(auto_class: Any, config: Any) -> str:
    """Return the implementation of attention that `transformers` prefers, whatever a folder's configuration names."""
    model = auto_class._model_mapping.get(type(config), None)
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


def load_foreign(folder: Path, auto_class: str) -> Any:
    """Return the model that `transformers` reads from a folder, in float32, by the name of its auto class."""
    import transformers

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _require_language_model(config)
        kind = getattr(transformers, auto_class)
        with only_errors_logged():  # instead of a table of weights that do not fit; the errors below name them
            model, report = kind.from_pretrained(
                folder,
                config=config,
                attn_implementation=choose_attention(kind, config),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except StrictDataclassError as error:
        raise ValueError(f"config.json: {' '.join(str(error).split())}") from None
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"its weights lack {missing[0]}{more}, which {type(model).__name__} has")
    _require_fitting_weights(model, report)
    require_finite_weights(folder, model)
    return model


@contextlib.contextmanager
def only_errors_logged() -> Iterator[None]:
    """Keep `transformers` from logging warnings."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _require_language_model(config: Any) -> None:
    """Reject a classifier: where input and output embeddings are one, `transformers` opens it as a language model."""
    named = [str(name) for name in config.architectures or ()]
    if named and all(name.endswith(CLASSIFIERS) for name in named):
        raise ValueError(f"config.json: architectures is {named[0]}, which is not a language model")


def _require_fitting_weights(model: nn.Module, report: Mapping[str, Any]) -> None:
    """Reject weights of other shapes than the model's, and weights that the configuration leaves out.

    The latter belong to another layer or expert, or are a bias where the model has none. Weights of other parts, such as a head
    for another task, stay unread.
    """
    for name, found, expected in sorted(report["mismatched_keys"]):
        raise ValueError(f"config.json does not fit the weights: {name} has the shape {list(found)}, expected {list(expected)}")
    parts = dict(model.named_modules())
    known = {_without_numbers(name) for name in model.state_dict()}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    for name in sorted(report["unexpected_keys"]):
        for whole in (name, prefix + name):  # a body that was saved by itself has no prefix
            part, _, own = whole.rpartition(".")
            left_out = part in parts and parts[part]._parameters.get(own, model) is None
            if left_out or _without_numbers(whole) in known:
                raise ValueError(
                    f"config.json does not fit the weights: they contain {name}, which this {type(model).__name__} lacks"
                )


def _without_numbers(name: str) -> str:
    """Return the name of a weight without the numbers of its layer and its expert."""
    return re.sub(r"\d+", "#", name)
