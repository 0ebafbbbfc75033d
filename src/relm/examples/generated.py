"""Random examples with the names, shapes and types of real ones, for runs that only compile and to measure throughput.

They need no documents and no disk. Draws follow from (seed, epoch, index) alone, as with real examples, and share their code
wherever that decides a shape.
"""

import numpy as np

from relm.examples.contract import Batch, Integers, Vocabulary, require_indices
from relm.examples.order import row_keys
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.declaration import load
from relm.recipes.objectives import Objective


class GeneratedExamples:
    """Any count of random examples of an objective, all of full length."""

    def __init__(self, objective: Objective, vocabulary_size: int, special: SpecialIds, size: int, seed: int) -> None:
        """Set the parameters of `size` examples an epoch; the special tokens are the real tokenizer's."""
        self.objective, self.vocabulary = objective, Vocabulary(vocabulary_size, special)
        self.size, self.seed = size, seed
        self._generate = load(objective.declaration.generate)
        self._generate(objective, self.vocabulary, np.empty(0, dtype=np.uint64))  # raises for options that fit no examples

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return a batch like the objective's real examples; see `contract.Examples`."""
        require_indices(indices, self.size)
        keys = row_keys("generated examples", self.seed, epochs, indices)
        batch: Batch = self._generate(self.objective, self.vocabulary, keys)
        return batch
