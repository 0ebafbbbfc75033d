"""Causal language models of any local folder: relm's own GPT-2 and modded-nanogpt, or an architecture that `transformers` has.

Nothing in a folder is executed or unpickled: weights must be safetensors, and a model that brings code is rejected.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from relm.errors import RelmError
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.foreign_models import ForeignCausalModel, load_foreign
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.last_layer import hidden_at
from relm.evaluation.model_checks import require_finite_weights, require_vocabulary
from relm.evaluation.model_folder import model_type, read_own_config, readable, weights_sha256
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.modded_gpt import ModdedGpt
from relm.models.modded_gpt_configuration import ModdedGptConfig
from relm.recipes.architectures import Gpt2Architecture, ModdedGptArchitecture, names_with
from relm.recipes.devices import DEVICES

OWN: tuple[tuple[Any, type, type], ...] = (
    (Gpt2, Gpt2Config, Gpt2Architecture),
    (ModdedGpt, ModdedGptConfig, ModdedGptArchitecture),
)
"""relm's own models that are evaluated without `transformers`, each with its configuration and its section in a recipe."""


class OwnDecoder(CausalModel):
    """A decoder of relm on a device that runs torch."""

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions, self.vocabulary_size = model.config.positions, model.config.vocabulary_size
        self._device, self._precision = execution.open(), execution.precision
        self.model = self._device.place(model.eval())

    def hidden(self, input_ids: Tensor) -> Tensor:
        with self._device.autocast(self._precision):
            hidden: Tensor = self.model.hidden(self._device.feed({"input_ids": input_ids})["input_ids"])
            return hidden

    def hidden_at(self, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        if not isinstance(self.model, Gpt2):
            return super().hidden_at(input_ids, rows, columns)
        fed = self._device.feed({"input_ids": input_ids, "rows": rows, "columns": columns})
        with self._device.autocast(self._precision):
            return hidden_at(self.model, fed["input_ids"], fed["rows"], fed["columns"])

    def head(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.head(hidden.float())
        return logits


def load_causal(folder: Path, vocabulary_size: int, execution: Execution = ON_THE_HOST) -> CausalModel:
    """Return the causal language model in a folder that `save_pretrained` wrote, for a tokenizer of `vocabulary_size` ids."""
    with readable(folder, "causal language model"):
        _require_causal_kind(folder)
        sha256 = weights_sha256(folder)
        own = next((kind for kind, config, section in OWN if read_own_config(folder, config, section) is not None), None)
        model: CausalModel
        if own is None:
            model = ForeignCausalModel(folder, sha256, load_foreign(folder, "AutoModelForCausalLM"), execution)
        else:
            loaded = own.from_folder(folder)
            require_finite_weights(folder, loaded)
            on_ipus = own is Gpt2 and DEVICES[execution.device].runs_inference
            model = (IpuCausalModel if on_ipus else OwnDecoder)(folder, sha256, loaded, execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def _require_causal_kind(folder: Path) -> None:
    """Reject an architecture that is not a causal language model."""
    kind = model_type(folder)
    if any(kind in names_with(section) for _, _, section in OWN):
        return  # without the lists of `transformers`, whose import takes a second
    from transformers.models.auto import modeling_auto

    if kind in modeling_auto.MODEL_MAPPING_NAMES and kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise RelmError(f"{folder}: config.json names {kind}, which is not a causal language model; give a folder of one")
