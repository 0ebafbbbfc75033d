"""Options of fine-tuning on a task, which evaluates an encoder."""

from typing import Literal, Self

from pydantic import Field

from relm.recipes.section import Section


class FineTuning(Section):
    """Training on the task's own examples; the defaults are those of the original BERT's scripts, on SQuAD 1.1 and on GLUE."""

    learning_rate: float = Field(default=5e-5, gt=0)
    """Peak learning rate: the rate rises to it in the warm-up, then falls in a line to 0."""
    epochs: float = Field(default=3.0, gt=0)
    """Passes over the training examples; the steps are epochs times examples divided by the batch size, rounded down. SQuAD's
    examples are its questions."""
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
    sequence_length: int = Field(gt=1)
    """Length of a sequence in tokens."""

    def shorten(self, longest: int, batch_size: int, seeds: int) -> Self:
        """Return the options of a small model: at most `longest` tokens, `batch_size` sequences a batch and `seeds` seeds."""
        sizes = {
            "sequence_length": min(self.sequence_length, longest),
            "batch_size": min(self.batch_size, batch_size),
            "seeds": min(self.seeds, seeds),
        }
        return self.model_copy(update=sizes)


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
        """Return the options of a small model: at most `longest` tokens, `batch_size` windows a batch and `seeds` seeds."""
        short = super().shorten(longest, batch_size, seeds)
        sizes = {key: min(getattr(self, key), short.sequence_length // 4) for key in ("doc_stride", "max_query_length")}
        return short.model_copy(update=sizes)


class Glue(FineTuning):
    """The class or the score of a text or a pair of texts (GLUE), by fine-tuning a BERT or RoBERTa."""

    task: Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"] = "cola"
    """Task of GLUE, by the name of its folder in the hub's copy, nyu-mll/glue."""
    sequence_length: int = Field(default=128, gt=5)
    """Length of a sequence in tokens; of longer pairs the longer text is truncated."""
