"""Random examples of exactly the names, shapes and types of real ones: for runs that only compile, and to measure throughput.

They need no documents and no disk. What is drawn follows from (seed, epoch, index) alone, as with real examples, and passes
through the same code as those wherever that decides a shape.
"""

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.causal import document_ids
from relm.examples.contract import IGNORED, Batch, Integers, require_indices
from relm.examples.draws import Draws, below, drawn
from relm.examples.masking import capacity, masked_rows
from relm.examples.order import row_keys
from relm.examples.span_corruption import corrupted, fitting_shape
from relm.examples.tokenizers import SpecialIds
from relm.recipes.objectives import Objective


class GeneratedExamples:
    """As many examples of an objective as are wanted, all of full length."""

    def __init__(self, objective: Objective, vocabulary_size: int, special: SpecialIds, size: int, seed: int) -> None:
        """
        Args:
            vocabulary_size: tokens are below it.
            special: of the tokenizer whose examples these stand for; sequences begin and end with them as real ones do.
            size: examples in an epoch.
            seed: any integer.

        Raises:
            RelmError: the objective's options fit no examples, or the tokenizer has no mask token where one is needed.
        """
        if objective.objective == "masked" and special.mask is None:
            raise RelmError("masked: the tokenizer has no mask token; use another one")
        self.objective, self.vocabulary_size, self.special = objective, vocabulary_size, special
        self.size, self.seed = size, seed
        self._make = {
            "causal": self._causal,
            "masked": self._masked,
            "seq2seq": self._seq2seq,
            "span_corruption": self._span_corruption,
        }[objective.objective]
        self._make(np.empty(0, dtype=np.uint64))  # so that options that do not fit are refused here

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """As the real class of the objective; see `contract.Examples`.

        Raises:
            IndexError: there is no such example.
        """
        require_indices(indices, self.size)
        return self._make(row_keys("generated examples", self.seed, epochs, indices))

    def _tokens(self, keys: Draws, length: int, last: int | None = None, first: int | None = None) -> Integers:
        """(rows, length) random tokens between the given ones."""
        tokens = below(drawn(keys[:, None], np.arange(length)[None]), self.vocabulary_size)
        for place, token in ((-1, last), (0, first)):
            if token is not None:
                tokens[:, place] = token
        return tokens

    def _causal(self, keys: Draws) -> Batch:
        windows = self._tokens(keys, self.objective.sequence_length + 1)
        batch = {"input_ids": windows[:, :-1].copy(), "labels": windows[:, 1:].copy()}
        if self.objective.causal.document_attention:
            batch["document_ids"] = document_ids(batch["input_ids"], self.special.end_of_text or 0)
        return batch

    def _masked(self, keys: Draws) -> Batch:
        options, length = self.objective.masked, self.objective.sequence_length
        tokens = self._tokens(keys, length, last=self.special.sep, first=self.special.cls)
        lengths = np.full(len(keys), length)
        rows = masked_rows(
            tokens, lengths, drawn(keys, length), options, self.special, self.vocabulary_size, masked_places(self.objective)
        )
        unused = np.arange(rows.labels.shape[1]) >= rows.counts[:, None]
        second = np.arange(length) >= length // 2 if options.packing == "sentence_pairs" else np.zeros(length, np.bool_)
        batch: Batch = {
            "input_ids": rows.input_ids.astype(np.int64),
            "attention_mask": _all(tokens),
            "token_type_ids": np.broadcast_to(second, tokens.shape).astype(np.int64),
            "masked_positions": rows.positions.astype(np.int64),
            "masked_labels": np.where(unused, np.int64(IGNORED), rows.labels),
        }
        if options.packing == "sentence_pairs":
            batch["next_sentence_labels"] = below(drawn(keys, length + 1), 2)
        return batch

    def _seq2seq(self, keys: Draws) -> Batch:
        length, end = self.objective.sequence_length, self.special.end_of_text
        source = self._tokens(keys, length, last=end)
        target = self._tokens(drawn(keys, length), self.objective.seq2seq.target_length or length, last=end)
        return {"input_ids": source, "attention_mask": _all(source), "labels": target}

    def _span_corruption(self, keys: Draws) -> Batch:
        shape = fitting_shape(self.objective.sequence_length, self.objective.span_corruption)
        tokens = self._tokens(keys, shape.raw_length)
        return corrupted(tokens, drawn(keys, shape.raw_length), shape, self.vocabulary_size - 1, self.special.end_of_text or 0)


def masked_places(objective: Objective) -> int:
    """How many places for hidden tokens each row has: `capacity`, or what the scripts of originals always leave room for."""
    if objective.as_published is not None and objective.masked.masks == "static" and objective.masked.max_predictions:
        return objective.masked.max_predictions
    return capacity(objective.masked, objective.sequence_length)


def _all(tokens: Integers) -> npt.NDArray[np.bool_]:
    return np.ones(tokens.shape, dtype=np.bool_)
