"""Causal language models of any local folder: relm's own GPT-2, or an architecture that `transformers` has.

Nothing in a folder is executed or unpickled: weights are safetensors, and a model that brings its code is refused.
"""

from pathlib import Path

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
from relm.recipes.architectures import Gpt2Architecture, names_with
from relm.recipes.devices import DEVICES


class OwnCausalModel(CausalModel):
    """relm's own GPT-2."""

    def __init__(self, folder: Path, sha256: str, model: Gpt2, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions, self.vocabulary_size = model.config.positions, model.config.vocabulary_size
        self._device, self._precision = execution.open(), execution.precision
        self.model = self._device.place(model.eval())

    def hidden(self, input_ids: Tensor) -> Tensor:
        with self._device.autocast(self._precision):
            return self.model.hidden(self._placed(input_ids))

    def hidden_at(self, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        with self._device.autocast(self._precision):
            return hidden_at(self.model, self._placed(input_ids), self._placed(rows), self._placed(columns))

    def hidden_of_branches(self, rows: BranchedRows, row: Tensor, column: Tensor) -> Tensor:
        """Return the head's input at some positions of branched rows, (positions, width), in the order of rows."""
        placed = BranchedRows(*map(self._placed, rows))
        with self._device.autocast(self._precision):
            return hidden_of_branches(self.model, placed, self._placed(row), self._placed(column))

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden.float())

    def _placed(self, indices: Tensor) -> Tensor:
        return self._device.feed({"indices": indices})["indices"]


def load_causal(folder: Path, vocabulary_size: int, execution: Execution = ON_THE_HOST) -> CausalModel:
    """Return the causal language model in a folder that `save_pretrained` wrote, for a tokenizer of `vocabulary_size` ids."""
    with readable(folder, "causal language model"):
        _require_causal_kind(folder)
        sha256 = weights_sha256(folder)
        model: CausalModel
        if own_config(folder, Gpt2Config, Gpt2Architecture) is not None:
            own = Gpt2.from_folder(folder)
            require_finite_weights(folder, own)
            kind = IpuCausalModel if DEVICES[execution.device].infers_own else OwnCausalModel
            model = kind(folder, sha256, own, execution)
        else:
            model = ForeignCausalModel(folder, sha256, load_foreign(folder, "AutoModelForCausalLM"), execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def _require_causal_kind(folder: Path) -> None:
    """Refuse an architecture that is not a causal language model."""
    kind = model_type(folder)
    if kind in names_with(Gpt2Architecture):  # which needs no list of `transformers`, whose import takes a second
        return
    from transformers.models.auto import modeling_auto

    if kind in modeling_auto.MODEL_MAPPING_NAMES and kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise RelmError(f"{folder}: config.json names {kind}, which is not a causal language model; give a folder of one")
