"""Greedy generation of text from text by any encoder-decoder that `transformers` has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from relm.errors import RelmError
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.foreign_models import load_foreign
from relm.evaluation.model_checks import require_finite_weights, require_vocabulary
from relm.evaluation.model_folder import read_own_config, readable, weights_sha256
from relm.evaluation.scoring import Flags, Integers, batches
from relm.evaluation.transformers_form import as_transformers
from relm.examples.columns import Ragged
from relm.examples.seq2seq import padded
from relm.models.t5 import T5
from relm.models.t5_configuration import T5Config
from relm.recipes.architectures import T5Architecture


class TextToTextModel:
    """An encoder-decoder of `transformers`, or relm's own T5 as one, on its device, without dropout."""

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions: int | None = getattr(model.config, "max_position_embeddings", None)
        """Tokens of the longest source or target; None: any length."""
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._device, self._precision = execution.open(), execution.precision
        self.model: Any = self._device.place(model.eval())
        self._beginning = _beginning(model, folder)

    def write(self, input_ids: Tensor, attention_mask: Tensor, end: int, most: int) -> Tensor:
        """Return the likeliest ids for each source, step by step, (batch, at most `most`) int64.

        Sources are (batch, source), padded at the end, where the bool mask is false. Ids after a row's first `end` mean
        nothing. Only the tokens that begin a text are taken from the folder's `generation_config.json`.
        """
        source = self._device.feed({"input_ids": input_ids, "attention_mask": attention_mask})
        self.model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=most, eos_token_id=end, pad_token_id=end, num_beams=1, do_sample=False, **self._beginning
        )
        with self._device.autocast(self._precision):  # around all steps, so that weights are converted once
            written: Tensor = self.model.generate(**source)
        return written[:, 1:].cpu()


def _beginning(model: Any, folder: Path) -> dict[str, Any]:
    """Return the tokens that the decoder begins with, as options of `generate`."""
    given = model.generation_config
    start = given.decoder_start_token_id
    if start is None:
        start = next((token for token in (model.config.pad_token_id, given.bos_token_id) if token is not None), None)
    if start is None:
        raise ValueError(f"{folder / 'config.json'}: lacks decoder_start_token_id")
    return {"decoder_start_token_id": start, "forced_bos_token_id": getattr(given, "forced_bos_token_id", None)}


def load_text_to_text(folder: Path, vocabulary_size: int, execution: Execution = ON_THE_HOST) -> TextToTextModel:
    """Return the encoder-decoder in a folder that `save_pretrained` wrote, for a tokenizer of `vocabulary_size` ids."""
    with readable(folder, "model from text to text"):
        sha256 = weights_sha256(folder)
        if read_own_config(folder, T5Config, T5Architecture) is None:
            found = load_foreign(folder, "AutoModelForSeq2SeqLM")
        else:
            own = T5.from_folder(folder)
            require_finite_weights(folder, own)
            found = as_transformers(own)
        model = TextToTextModel(folder, sha256, found, execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def require_lengths(model: TextToTextModel, source_length: int, target_length: int) -> None:
    """Reject lengths that are longer than the model's positions."""
    longest = max(source_length, target_length)
    if model.positions is not None and longest > model.positions:
        raise RelmError(f"{model.folder}: has {model.positions} positions; {longest} tokens do not fit")


def write_texts(
    model: TextToTextModel,
    sources: Ragged,
    source_length: int,
    most: int,
    end: int,
    batch_tokens: int,
    report: Callable[[int], object] = int,
) -> tuple[list[Integers], Flags]:
    """Return the model's ids for each source, without the end, and (sources,) whether the model wrote an end.

    Each source ends with `end`, even where it is cut to `source_length`. A text has at most `most` tokens with its end. A batch
    has sources of similar length and at most `batch_tokens` tokens, with those to write, which changes logits by rounding at
    most. `report` is called after each batch with its number of sources.
    """
    texts: list[Integers] = [np.empty(0, dtype=np.int64)] * len(sources.sizes)
    ended = np.zeros(len(sources.sizes), dtype=np.bool_)
    sizes = np.minimum(sources.sizes, source_length).astype(np.int64)
    starts = np.cumsum(sources.sizes) - sources.sizes
    with torch.inference_mode():
        for rows in batches(sizes + most, batch_tokens):
            picked = np.concatenate([sources.values[starts[row] : starts[row] + sources.sizes[row]] for row in rows])
            ids, present = padded(Ragged(picked, sources.sizes[rows]), int(sizes[rows].max()), end, end)
            written = model.write(torch.from_numpy(ids), torch.from_numpy(present), end, most).numpy()
            for row, tokens in zip(rows.tolist(), written, strict=True):
                ends = np.flatnonzero(tokens == end)
                ended[row] = len(ends) > 0
                texts[row] = tokens[: ends[0]] if len(ends) else tokens
            report(len(rows))
    return texts, ended
