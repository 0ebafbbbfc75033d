"""The section `on.MACHINE` of a recipe: what depends on model and machine together."""

from typing import Self

from pydantic import Field, model_validator

from relm.recipes.run import MachineSettings


class OnMachine(MachineSettings):
    """Keys of `run` for one machine; absent: as elsewhere in the recipe, or chosen."""

    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass of one process; null: as many as fit into the machine's memory. It follows from a pipeline."""

    @model_validator(mode="after")
    def the_pipeline_has_the_micro_batch(self) -> Self:
        if self.pipeline is not None and self.micro_batch_size is not None:
            raise ValueError(
                f"micro_batch_size ({self.micro_batch_size}): follows from pipeline.micro_batch_size "
                f"({self.pipeline.micro_batch_size}); leave it out"
            )
        return self
