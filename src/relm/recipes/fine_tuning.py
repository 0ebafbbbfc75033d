"""Options of fine-tuning on a task, by which an encoder is evaluated."""

from typing import Self

from pydantic import Field

from relm.recipes.section import Section


class FineTuning(Section):
    """Training on the task's own examples; the defaults are those of BERT on SQuAD 1.1 (Devlin et al. 2019, section 4.2)."""

    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate, to which it rises in the warm-up and from which it falls in a line to 0."""
    epochs: float = Field(default=3.0, gt=0)
    """Passes over the training questions; the steps are epochs times questions divided by the batch size, rounded down."""
    batch_size: int = Field(default=32, gt=0)
    """Sequences per optimizer step."""
    warmup_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of matrices and embeddings."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Constant added to the root of the second moment."""
    bias_correction: bool = False
    """Correct the bias of the moments towards their initial value 0, which the original does not."""
    gradient_clipping: float = Field(default=1.0, gt=0)
    """Largest norm of the whole gradient."""
    seed: int = Field(default=0, ge=0)
    """Random seed of the first run: of its head's weights, the order of its examples and its dropout."""
    seeds: int = Field(default=5, gt=0)
    """Number of runs: seed, seed + 1 and so on; the figures are their means, with the standard deviation of one run."""


class Squad(FineTuning):
    """Answers that are spans of a paragraph (SQuAD 1.1), by fine-tuning a BERT or RoBERTa."""

    sequence_length: int = Field(default=384, gt=4)
    """Length of a window in tokens."""
    doc_stride: int = Field(default=128, gt=0)
    """Tokens of a paragraph from the beginning of one window to that of the next."""
    max_query_length: int = Field(default=64, gt=0)
    """Largest number of tokens of a question; the rest is cut off."""
    n_best: int = Field(default=20, gt=0)
    """Likeliest first and last tokens of each window that are combined to answers."""
    longest_answer: int = Field(default=30, gt=0)
    """Largest number of tokens of an answer."""

    def shorten(self, longest: int, batch_size: int, seeds: int) -> Self:
        """Return the options of a small model: windows of at most `longest` tokens, and at most so many in a batch."""
        length = min(self.sequence_length, longest)
        sizes = {
            "sequence_length": length,
            "doc_stride": min(self.doc_stride, length // 4),
            "max_query_length": min(self.max_query_length, length // 4),
            "batch_size": min(self.batch_size, batch_size),
            "seeds": min(self.seeds, seeds),
        }
        return self.model_copy(update=sizes)
