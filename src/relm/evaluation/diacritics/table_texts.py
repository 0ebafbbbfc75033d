"""The targets of a table of pairs, decoded to texts."""

from collections.abc import Iterator

import numpy as np

from relm.examples.diacritics import with_standard_letters
from relm.examples.sharded_tables import ExampleTables
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

# Rows of a table to decode at once.
BLOCK = 1024
# Replacement of the unknown token: no output has this character, so no such word is right.
UNKNOWN = "\ufffd"


class Texts:
    """Texts in blocks, which can be iterated repeatedly."""

    def __init__(self, tables: ExampleTables, loaded: LoadedTokenizer, language: str, count: int | None = None) -> None:
        self.tables, self.loaded, self.language = tables, loaded, language
        self.count = len(tables) if count is None else min(count, len(tables))
        self.blocks = -(-self.count // BLOCK)
        """Number of blocks."""

    def __iter__(self) -> Iterator[list[str]]:
        return map(self.block, range(self.blocks))

    def block(self, number: int) -> list[str]:
        """Return the texts of one block, in standard letters, with `UNKNOWN` for the unknown token."""
        rows = self.tables.rows("target", np.arange(number * BLOCK, min((number + 1) * BLOCK, self.count)))
        targets = [row[:-1].tolist() for row in np.split(rows.values, np.cumsum(rows.sizes)[:-1])]
        texts: list[str] = self.loaded.tokenizer.decode_batch(targets, skip_special_tokens=False)
        unknown = self.loaded.special.unk
        if unknown is not None and (name := self.loaded.tokenizer.id_to_token(unknown)):
            texts = [text.replace(name, UNKNOWN) for text in texts]
        return [with_standard_letters(text.strip(), self.language) for text in texts]
