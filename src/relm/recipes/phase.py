"""One phase of training: its objective, batch, length, optimizer and schedule."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relm.recipes.objectives import Objective
from relm.recipes.optimization import LossScaling, Optimizer, Schedule


class Phase(Objective):
    """One phase of training, with one objective, length and schedule; the next phase starts from its weights."""

    global_batch_size: int = Field(gt=0)
    """Sequences per optimizer step, over all devices."""
    steps: int = Field(gt=0)
    """Number of optimizer steps."""
    optimizer: Optimizer
    """Optimizer and its options."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the computation; master weights and optimizer state have optimizer.state_precision."""
    loss_scaling: LossScaling = LossScaling()
    """Scaling of the loss, so that small gradients do not underflow in float16."""
    loss_normalisation: Literal["global_tokens", "per_replica", "per_micro_batch"] = "global_tokens"
    """Normalisation of the loss. global_tokens: the mean over all scored tokens of the global batch; per_replica,
    per_micro_batch: the mean of the means over equal shares of the global batch, as in an original with as many replicas or
    micro-batches."""
    loss_shares: int = Field(default=1, gt=0)
    """Number of equal shares; for per_micro_batch, replicas times micro-batches."""
    optimizer_state: Literal["fresh", "kept"] = "fresh"
    """Optimizer state at the start. fresh: that of a new optimizer; kept: that of the phase before, its count of updates
    included."""

    @property
    def share_size(self) -> int:
        """Number of sequences in one share of the global batch."""
        return self.global_batch_size // self.loss_shares

    @model_validator(mode="after")
    def shares_are_equal(self) -> Self:
        original = self.as_published
        if original and original.ranks and original.batch and self.global_batch_size % (original.ranks * original.batch):
            raise ValueError(
                f"as_published: ranks ({original.ranks}) times batch ({original.batch}) must divide global_batch_size "
                f"({self.global_batch_size})"
            )
        if (self.loss_normalisation == "global_tokens") != (self.loss_shares == 1):
            raise ValueError(
                f"loss_shares ({self.loss_shares}) needs loss_normalisation: per_replica or per_micro_batch, at least two "
                f"of them; found {self.loss_normalisation}"
            )
        if self.global_batch_size % self.loss_shares:
            raise ValueError(f"loss_shares ({self.loss_shares}) must divide global_batch_size ({self.global_batch_size})")
        return self

    @model_validator(mode="after")
    def warms_up_within_the_phase(self) -> Self:
        length = self.schedule.length(self.steps)
        if self.schedule.warmup(self.steps) >= length:
            raise ValueError(f"schedule.warmup_steps ({self.schedule.warmup(self.steps)}) must be below steps ({length})")
        end = self.schedule.decay_end
        if end is not None and end <= self.schedule.warmup(self.steps):
            raise ValueError(f"schedule.decay_end ({end}) must lie after the warm-up ({self.schedule.warmup(self.steps)})")
        return self
