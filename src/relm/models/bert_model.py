"""The parts that all models on BERT's encoder share: input and layers, initial weights, and folders.

Imports nothing of this package except `relm.models`, and imports on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from relm.models.bert_configuration import FREE_FIELDS, BertConfig
from relm.models.bert_encoder import Encoder, padding_mask
from relm.models.configuration import folder_config
from relm.models.contract import LanguageModel
from relm.models.layers import Linear, through_layers, truncated_normal
from relm.models.losses import Term
from relm.models.segments import ModelSegment, State, state_of
from relm.models.weights import list_tensors, read_weights, write_folder

Model = TypeVar("Model", bound="EncoderModel")
# Prefixes of the module's names: the encoder, and the part of it that not every file has.
_ENCODER, _POOLER = "bert.", "bert.pooler."


class EncoderModel(LanguageModel):
    """A model whose head reads BERT's encoder."""

    copies: Mapping[str, str] = {}
    """Tensor that a file may hold -> the parameter that it is tied to."""
    head_parameters: tuple[str, ...] = ()
    """Prefixes of the parameters that the head reads."""

    def __init__(self, config: BertConfig) -> None:
        """Build the encoder with unset weights."""
        super().__init__()
        self.config = config
        self.bert = Encoder(config)

    @property
    def tokenizer_outputs(self) -> list[str]:
        """Return the tokenizer's outputs that the model takes; RoBERTa takes no segments, nor a BERT with one kind."""
        has_segments = self.config.family == "bert" and self.config.type_vocabulary_size > 1
        return ["input_ids", "token_type_ids", "attention_mask"] if has_segments else super().tokenizer_outputs

    def segments(self) -> list[ModelSegment]:
        """Return token_embedding, position_embedding, layers.N and head, with what the head reads beside the last layer.

        The last layer computes only the positions that are read, so the head's input has those alone.
        """
        names, embeddings = self.parameter_names, "bert.embeddings."
        others = (embeddings + "position_embeddings.", embeddings + "token_type_embeddings.", embeddings + "LayerNorm.")
        layers = [
            ModelSegment(f"layers.{n}", names(f"bert.encoder.layer.{n}."), partial(self._through_layer, n))
            for n in range(self.config.layers)
        ]
        return [
            ModelSegment("token_embedding", names(embeddings + "word_embeddings."), self._embed_tokens),
            ModelSegment("position_embedding", names(*others), self._add_positions),
            *layers,
            ModelSegment(
                "head", names(*self.head_parameters), lambda batch, state: state_of(self._scored(state["hidden"], batch))
            ),
        ]

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the parts of a batch's loss.

        Args:
            batch: `input_ids`, `attention_mask` (1 a token, 0 padding) and `token_type_ids`, all (batch, sequence) int64, the
                latter two optional; and the labels that the model's class describes.
        """
        positions = self._read_positions(batch)
        hidden = self.encoded(batch["input_ids"], batch.get("attention_mask"), batch.get("token_type_ids"), positions)
        return self._scored(hidden, batch)

    def _read_positions(self, batch: Mapping[str, Tensor]) -> Tensor | None:
        """Return the positions at which the encoder's output is read; None: all."""
        return None

    def _scored(self, hidden: Tensor, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        """Return the loss at the encoder's output at the positions that are read."""
        raise NotImplementedError

    def _embed_tokens(self, batch: Mapping[str, Tensor], state: State) -> State:
        self._require_positions(batch["input_ids"])
        return {"hidden": self.bert.embeddings.words(batch["input_ids"])}

    def _add_positions(self, batch: Mapping[str, Tensor], state: State) -> State:
        return {"hidden": self.bert.embeddings.with_positions(state["hidden"], batch.get("token_type_ids"))}

    def _through_layer(self, number: int, batch: Mapping[str, Tensor], state: State) -> State:
        is_last = number == self.config.layers - 1
        others = [padding_mask(batch.get("attention_mask")), *([self._read_positions(batch)] if is_last else [])]
        layer = self.bert.encoder.layer[number]
        return {"hidden": through_layers([layer], state["hidden"], *others, recompute=self.recompute)}

    def encoded(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the encoder's output (batch, sequence, hidden), or (batch, positions, hidden) at `positions`."""
        self._require_positions(input_ids)
        hidden: Tensor = self.bert(input_ids, attention_mask, token_type_ids, positions, self.recompute)
        return hidden

    def _require_positions(self, input_ids: Tensor) -> None:
        if input_ids.shape[1] > self.config.positions:
            raise ValueError(f"{input_ids.shape[1]} tokens, but the model has {self.config.positions} positions")

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the initial weights on the CPU, in the order of the parameters.

        Every matrix has the standard deviation `initializer_range` and the distribution `initialisation`; biases are 0,
        normalisation weights 1. With "normal", as in `transformers`, the embedding of padding is 0, and so is the position
        that RoBERTa keeps for it.
        """
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
                else:
                    parameter.copy_(self._drawn(parameter.shape, generator))
            if self.config.initialisation == "normal" and self.config.padding_id is not None:
                self.bert.embeddings.word_embeddings.weight[self.config.padding_id] = 0.0
                if self.config.family == "roberta":
                    self.bert.embeddings.position_embeddings.weight[self.config.padding_id] = 0.0

    def _drawn(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        std = self.config.initializer_range
        if self.config.initialisation == "truncated_normal":
            return truncated_normal(shape, std, generator)
        return torch.empty(shape).normal_(0.0, std, generator=generator)

    @classmethod
    def from_folder(cls: type[Model], folder: Path, expected: BertConfig | None = None) -> Model:
        """Load the model in a Hugging Face folder (`config.json`, `model.safetensors`), in float32, in training mode.

        Nothing in it is executed or unpickled. A pooler and a head for sentence pairs in the file are ignored if the model has
        none; if it has them, the file must. `expected` is the architecture that the weights must fit, and the dropout to train
        them with. Raise ValueError if the architecture is another one, or parameters are missing, unknown, or of another shape.
        """
        config = folder_config(folder, BertConfig, expected, FREE_FIELDS)
        model = cls(config)
        weights = read_weights(folder, model.state_dict(), config.own_name, cls.copies, model._absent_biases())
        model.load_state_dict(weights)
        return model

    @classmethod
    def on_encoder(cls: type[Model], folder: Path, generator: torch.Generator, **head: Any) -> Model:
        """Return the encoder in a Hugging Face folder with a new head, whose weights are drawn as `initialise` draws them.

        A pooler that the head reads is the folder's if it has one, as of a model that was trained on sentence pairs; else it is
        drawn with the head. Other heads in the folder are ignored. `head` has fields of the configuration, such as `labels`.
        """
        model = cls(replace(folder_config(folder, BertConfig, None, FREE_FIELDS), **head))
        held = {model._encoder_name(name) for name in list_tensors(folder)}
        wanted = {
            name: tensor
            for name, tensor in model.state_dict().items()
            if name.startswith(_ENCODER) and (name in held or not name.startswith(_POOLER))
        }
        weights = read_weights(folder, wanted, model._encoder_name, {}, model._absent_biases())
        drawn = {
            name: model._drawn(tensor.shape, generator) if tensor.dim() > 1 else torch.zeros(tensor.shape)
            for name, tensor in model.state_dict().items()
            if name not in weights
        }
        model.load_state_dict({**weights, **drawn})
        return model

    def _encoder_name(self, published: str) -> str | None:
        """Return the module's name for a parameter of the encoder in a file; None for one of a head."""
        name = self.config.own_name(published)
        return name if name is not None and name.startswith(_ENCODER) else None

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        """Write `config.json` and `model.safetensors` (float32) into an existing folder, with the ids of special tokens."""
        weights = {**self.state_dict(), **self._absent_biases()}
        published = {self.config.published_name(name): tensor for name, tensor in weights.items()}
        write_folder(folder, self.config.to_huggingface(), tokens, published, generates=False)

    def _absent_biases(self) -> dict[str, Tensor]:
        """Return zeros for the biases that `transformers` has and this model lacks."""
        return {
            f"{name}.bias": torch.zeros(module.weight.shape[0])
            for name, module in self.named_modules()
            if isinstance(module, Linear) and module.bias is None
        }
