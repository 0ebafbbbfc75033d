"""The padding and the ends of texts in iliemihai/t5x_diacritics at 0911ce1, run_distributed_tpus.py.

Two of its defects are kept, only in training examples, since it holds out nothing:

- scored_padding: it masks the padding of the source twice, and that of the target never: padding is predicted like a token.
- second_end_of_text: it puts ``</s>`` at the end of each text, and then its tokenizer does so again.

A third, that its replicas never exchange gradients, is a run with one replica's batch size; see docs/as_published.md.
"""

from pathlib import Path

import numpy as np

from relm.errors import RelmError
from relm.examples.columns import Ragged
from relm.examples.contract import IGNORED, Batch, Integers
from relm.examples.seq2seq import Seq2SeqExamples, padded
from relm.examples.sharded_tables import open_tables
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.objectives import Objective


class T5xDiacriticsExamples(Seq2SeqExamples):
    """The original's pairs of one split, by index."""

    ends: bool = True
    """Each text ends with two ends of text."""
    scores_padding: bool = True
    """Labels of padding are the padding token's id."""

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return the batch of `Seq2SeqExamples` with the original's ends and labels."""
        source, target = (self._rows(name, indices) for name in ("source", "target"))
        inputs, present = padded(source, self.source_length, self.end_of_text_id, self.pad_id)
        labels, _ = padded(target, self.target_length, self.end_of_text_id, self.pad_id if self.scores_padding else IGNORED)
        return {"input_ids": inputs, "attention_mask": present, "labels": labels}

    def _rows(self, name: str, indices: Integers) -> Ragged:
        rows: Ragged = self.tables.rows(name, indices)
        if not self.ends:
            return rows
        return Ragged(np.insert(rows.values, np.cumsum(rows.sizes), self.end_of_text_id), rows.sizes + 1)


def open_t5x_diacritics(
    manifest: Path, split: str, objective: Objective, seed: int, check_content: bool = True
) -> Seq2SeqExamples:
    """Open the pairs of a split as `relm.examples.builders.open_examples` does; held-out ones have no defect."""
    assert objective.as_published is not None, "the builder is named there"
    tables = open_tables(manifest, split, objective, check_content)
    special, corrected = SpecialIds(**tables.manifest.tokenizer.special), objective.as_published.corrected
    if split != "train":
        return Seq2SeqExamples(tables, objective, special)
    examples = T5xDiacriticsExamples(tables, objective, special)
    examples.ends, examples.scores_padding = "second_end_of_text" not in corrected, "scored_padding" not in corrected
    if examples.scores_padding and special.pad is None:
        raise RelmError(f"{manifest}: its tokenizer has no token for padding, which t5x_diacritics predicts; use another one")
    return examples
