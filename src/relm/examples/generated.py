"""Random examples with the names, shapes and types of real ones, for runs that only compile, or measure throughput.

They need neither documents nor disk. As in real examples, draws follow from (seed, epoch, index), and the code that decides a
shape is the same.
"""

import numpy as np

from relm.examples.contract import Batch, Integers, Vocabulary, require_indices
from relm.examples.order import row_keys
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.declaration import load
from relm.recipes.objectives import Objective


class GeneratedExamples:
    """Random examples of an objective, all of full length."""

    def __init__(self, objective: Objective, vocabulary_size: int, special: SpecialIds, size: int, seed: int) -> None:
        """Set up `size` examples per epoch; the special tokens are those of the real tokenizer."""
        self.objective, self.vocabulary = objective, Vocabulary(vocabulary_size, special)
        self.size, self.seed = size, seed
        self._generate = load(objective.declaration.generate)
        self._generate(objective, self.vocabulary, np.empty(0, dtype=np.uint64))  # raises for impossible options

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return a batch like the objective's real examples; see `contract.Examples`."""
        require_indices(indices, self.size)
        keys = row_keys("generated examples", self.seed, epochs, indices)
        batch: Batch = self._generate(self.objective, self.vocabulary, keys)
        return batch
