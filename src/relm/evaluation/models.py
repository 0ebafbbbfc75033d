"""Causal language models of any local folder: relm's own GPT-2 and modded-nanogpt, or an architecture that `transformers` has.

Nothing in a folder is executed or unpickled: weights are safetensors, and a model that brings its code is refused.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from relm.errors import RelmError
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.choices.branched_rows import BranchedRows, hidden_of_branches
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.foreign_models import ForeignCausalModel, load_foreign
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.last_layer import hidden_at
from relm.evaluation.model_checks import require_finite_weights, require_vocabulary
from relm.evaluation.model_folder import model_type, own_config, readable, weights_sha256
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.modded_gpt import ModdedGpt
from relm.models.modded_gpt_configuration import ModdedGptConfig
from relm.recipes.architectures import Gpt2Architecture, ModdedGptArchitecture, names_with
from relm.recipes.devices import DEVICES


class OwnDecoder(CausalModel):
    """A decoder of relm's own."""

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions, self.vocabulary_size = model.config.positions, model.config.vocabulary_size
        self._device, self._precision = execution.open(), execution.precision
        self.model = self._device.place(model.eval())

    def hidden(self, input_ids: Tensor) -> Tensor:
        with self._device.autocast(self._precision):
            hidden: Tensor = self.model.hidden(self._placed(input_ids))
            return hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits, (positions, width) -> (positions, vocabulary)."""
        logits: Tensor = self.model.head(hidden.float())
        return logits

    def _placed(self, indices: Tensor) -> Tensor:
        return self._device.feed({"indices": indices})["indices"]


class OwnCausalModel(OwnDecoder):
    """A GPT-2 of relm's own, which also computes some positions alone, and branches."""

    def hidden_at(self, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        with self._device.autocast(self._precision):
            return hidden_at(self.model, self._placed(input_ids), self._placed(rows), self._placed(columns))

    def hidden_of_branches(self, rows: BranchedRows, row: Tensor, column: Tensor) -> Tensor:
        """Return the head's input at some positions of branched rows, (positions, width), in the order of rows."""
        placed = BranchedRows(*map(self._placed, rows))
        with self._device.autocast(self._precision):
            return hidden_of_branches(self.model, placed, self._placed(row), self._placed(column))


def load_causal(folder: Path, vocabulary_size: int, execution: Execution = ON_THE_HOST) -> CausalModel:
    """Return the causal language model in a folder that `save_pretrained` wrote, for a tokenizer of `vocabulary_size` ids."""
    with readable(folder, "causal language model"):
        _require_causal_kind(folder)
        sha256 = weights_sha256(folder)
        model: CausalModel
        if own_config(folder, Gpt2Config, Gpt2Architecture) is not None:
            own = Gpt2.from_folder(folder)
            require_finite_weights(folder, own)
            kind = IpuCausalModel if DEVICES[execution.device].runs_inference else OwnCausalModel
            model = kind(folder, sha256, own, execution)
        elif own_config(folder, ModdedGptConfig, ModdedGptArchitecture) is not None:
            modded = ModdedGpt.from_folder(folder)
            require_finite_weights(folder, modded)
            model = OwnDecoder(folder, sha256, modded, execution)
        else:
            model = ForeignCausalModel(folder, sha256, load_foreign(folder, "AutoModelForCausalLM"), execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def _require_causal_kind(folder: Path) -> None:
    """Refuse an architecture that is not a causal language model."""
    kind = model_type(folder)
    if kind in (
        *names_with(Gpt2Architecture),
        *names_with(ModdedGptArchitecture),
    ):  # which needs no list of `transformers`, whose import takes a second
        return
    from transformers.models.auto import modeling_auto

    if kind in modeling_auto.MODEL_MAPPING_NAMES and kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise RelmError(f"{folder}: config.json names {kind}, which is not a causal language model; give a folder of one")
