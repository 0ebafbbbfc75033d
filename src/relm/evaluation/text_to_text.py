"""Text from text, the likeliest token at each step: by relm's own T5, or by whatever encoder-decoder `transformers` knows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relm.errors import RelmError
from relm.evaluation.model_folder import WEIGHTS, model_type, readable, weights_sha256
from relm.evaluation.models import Execution, foreign, require_finite_weights, require_vocabulary
from relm.evaluation.scoring import batches
from relm.examples.columns import Ragged
from relm.examples.seq2seq import padded
from relm.models.t5 import T5
from relm.models.t5_decoding import Decoding

Integers = npt.NDArray[np.int64]


class TextToTextModel(Protocol):
    """An encoder-decoder, dropout off, on its device."""

    folder: Path
    sha256: str
    """Of the weights."""
    positions: int | None
    """The longest source or target; None: any length."""
    vocabulary_size: int

    def written(self, input_ids: Tensor, attention_mask: Tensor, end: int, most: int) -> Tensor:
        """What the model writes for each source, taking the likeliest token at each step.

        Args:
            input_ids: (batch, source) int64 on the host, padded at the end.
            attention_mask: (batch, source) bool, false for padding.
            end: the id that ends a text.
            most: tokens of a text at most, its end included.

        Returns:
            (batch, at most `most`) int64 on the host; what follows a row's first `end` means nothing.
        """


class OwnT5:
    """A T5 or mT5 of relm's own; fulfils `TextToTextModel`."""

    def __init__(self, folder: Path, sha256: str, model: T5, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions: int | None = None
        self.vocabulary_size = model.config.vocabulary_size
        self._device, self._precision = execution.open(), execution.precision
        self.model = self._device.place(model.eval())

    def written(self, input_ids: Tensor, attention_mask: Tensor, end: int, most: int) -> Tensor:
        """See `TextToTextModel`."""
        source = self._device.feed({"input_ids": input_ids, "attention_mask": attention_mask})
        with self._device.autocast(self._precision):  # around all steps, so that weights are converted once
            return greedy(self.model, source["input_ids"], source["attention_mask"], end, most).cpu()


class ForeignTextToTextModel:
    """A model of `transformers`; fulfils `TextToTextModel`."""

    def __init__(self, folder: Path, sha256: str, model: Any, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions: int | None = getattr(model.config, "max_position_embeddings", None)
        self.vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._device, self._precision = execution.open(), execution.precision
        self.model: Any = self._device.place(model.eval())
        self._beginning = _beginning(model, folder)

    def written(self, input_ids: Tensor, attention_mask: Tensor, end: int, most: int) -> Tensor:
        """See `TextToTextModel`. Of the folder's `generation_config.json` only the tokens to begin with are heeded."""
        import transformers

        self.model.generation_config = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=most, eos_token_id=end, pad_token_id=end, **self._beginning
        )
        source = self._device.feed({"input_ids": input_ids, "attention_mask": attention_mask})
        with self._device.autocast(self._precision):
            written: Tensor = self.model.generate(**source, num_beams=1, do_sample=False)
        return written[:, 1:].cpu()  # without the token to begin with


def _beginning(model: Any, folder: Path) -> dict[str, int | None]:
    """The tokens that a text begins with though nobody wrote them."""
    given = model.generation_config
    start = given.decoder_start_token_id
    if start is None:
        start = next((token for token in (model.config.pad_token_id, given.bos_token_id) if token is not None), None)
    if start is None:
        raise ValueError(f"{folder / 'config.json'}: lacks decoder_start_token_id")
    return {"decoder_start_token_id": start, "forced_bos_token_id": getattr(given, "forced_bos_token_id", None)}


def greedy(model: T5, input_ids: Tensor, attention_mask: Tensor, end: int, most: int) -> Tensor:
    """What a T5 in evaluation mode writes, the likeliest token at each step; arguments as in `TextToTextModel.written`.

    Rows that are finished leave the batch as soon as they are half of it.
    """
    decoding = Decoding(model, input_ids, attention_mask)
    written = torch.full((len(input_ids), most), end, device=input_ids.device)
    rows = torch.arange(len(input_ids), device=input_ids.device)
    tokens = torch.full_like(rows, model.config.decoder_start_token_id)
    unfinished = torch.ones_like(rows, dtype=torch.bool)
    for place in range(most):
        tokens = decoding.next_logits(tokens).float().argmax(-1)
        written[rows, place] = tokens.where(unfinished, end)
        unfinished &= tokens != end
        left = int(unfinished.sum())
        if not left:
            return written[:, : place + 1]
        if 2 * left <= len(rows):
            kept = unfinished.nonzero()[:, 0]
            decoding.keep(kept)
            rows, tokens, unfinished = rows[kept], tokens[kept], unfinished[kept]
    return written


def load_text_to_text(folder: Path, vocabulary_size: int, execution: Execution | None = None) -> TextToTextModel:
    """The encoder-decoder in a folder, as `save_pretrained` writes it.

    Args:
        vocabulary_size: of the tokenizer whose ids it will be given.

    Raises:
        RelmError: there is no such model, it is damaged, a weight is not finite, or it has fewer ids than the tokenizer.
    """
    execution = execution or Execution()
    with readable(folder, "model from text to text"):
        sha256 = weights_sha256(folder)
        own = _own_t5(folder)
        model: TextToTextModel
        if own is not None:
            require_finite_weights(folder, own)
            model = OwnT5(folder, sha256, own, execution)
        else:
            model = ForeignTextToTextModel(folder, sha256, foreign(folder, "AutoModelForSeq2SeqLM"), execution)
    require_vocabulary(folder, model.vocabulary_size, vocabulary_size)
    return model


def _own_t5(folder: Path) -> T5 | None:
    """The folder's T5, if it is one with the switches of relm's."""
    if model_type(folder) not in ("t5", "mt5") or not (folder / WEIGHTS).exists():
        return None
    try:
        return T5.from_folder(folder)
    except ValueError as error:
        if "config.json" in str(error):  # a T5 with other switches, which `transformers` knows
            return None
        raise


def require_lengths(model: TextToTextModel, source_length: int, target_length: int) -> None:
    """Refuse lengths that the model has no positions for.

    Raises:
        RelmError: it has fewer.
    """
    longest = max(source_length, target_length)
    if model.positions is not None and longest > model.positions:
        raise RelmError(f"{model.folder}: has {model.positions} positions; {longest} tokens do not fit")


def texts_written(
    model: TextToTextModel,
    sources: Ragged,
    source_length: int,
    most: int,
    end: int,
    batch_tokens: int,
    told: Callable[[int], object] = int,
) -> tuple[list[Integers], npt.NDArray[np.bool_]]:
    """What the model writes for each source; batches change it by rounding at most.

    Memory is bounded by a batch, in which sources are of nearly the same length.

    Args:
        sources: rows of ids, each with `end` at its end.
        source_length: what is longer is cut, and keeps its end.
        most: tokens of a text at most, its end included.
        batch_tokens: tokens at once, those of sources and as many as may be written together.
        told: is called with how many more sources are done.

    Returns:
        The ids of each text, without its end, and (sources,) whether it came to its end.
    """
    texts: list[Integers] = [np.empty(0, dtype=np.int64)] * len(sources.sizes)
    ended = np.zeros(len(sources.sizes), dtype=np.bool_)
    sizes = np.minimum(sources.sizes, source_length).astype(np.int64)
    starts = np.cumsum(sources.sizes) - sources.sizes
    with torch.inference_mode():
        for rows in batches(sizes + most, batch_tokens):
            picked = np.concatenate([sources.values[starts[row] : starts[row] + sources.sizes[row]] for row in rows])
            ids, present = padded(Ragged(picked, sources.sizes[rows]), int(sizes[rows].max()), end, end)
            written = model.written(torch.from_numpy(ids), torch.from_numpy(present), end, most).numpy()
            for row, tokens in zip(rows.tolist(), written, strict=True):
                ends = np.flatnonzero(tokens == end)
                ended[row] = len(ends) > 0
                texts[row] = tokens[: ends[0]] if len(ends) else tokens
            told(len(rows))
    return texts, ended
