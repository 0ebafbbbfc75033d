"""An architecture from outside the package: each token's logits follow from the mean of the embeddings up to it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from relm.models.contract import LanguageModel
from relm.models.counting import Lengths, Tensors
from relm.models.layers import embedding
from relm.models.losses import Term, cross_entropy
from relm.models.weights import write_folder
from relm.recipes.architectures import ArchitectureDeclaration, Sizes, register_architecture


class AveragerSizes(Sizes):
    """Means of embeddings."""

    architecture: Literal["averager"]
    """Name of the architecture."""
    spread: float = Field(default=0.5, gt=0)
    """Standard deviation of the initial weights."""
    window: int = Field(default=4, gt=0)
    """Count of tokens in a mean."""


@dataclass(frozen=True)
class AveragerConfig:
    vocabulary_size: int
    hidden_size: int
    spread: float
    window: int
    architecture = "averager"

    def to_huggingface(self) -> dict[str, Any]:
        return {"model_type": self.architecture, "vocab_size": self.vocabulary_size, "hidden_size": self.hidden_size}


class Averager(LanguageModel):
    def __init__(self, config: AveragerConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = embedding(config.vocabulary_size, config.hidden_size)

    def terms(self, batch: Mapping[str, Tensor]) -> dict[str, Term]:
        embedded = F.pad(self.tokens(batch["input_ids"]), (0, 0, self.config.window - 1, 0))
        means = embedded.unfold(1, self.config.window, 1).mean(-1)
        return {"next_token": cross_entropy(F.linear(means, self.tokens.weight), batch["labels"], self.traced)}

    def initialise(self, generator: torch.Generator) -> None:
        with torch.no_grad():
            self.tokens.weight.normal_(0.0, self.config.spread, generator=generator)

    def save_folder(self, folder: Path, tokens: Mapping[str, int]) -> None:
        write_folder(folder, self.config.to_huggingface(), tokens, self.state_dict(), generates=True)


def configuration(settings: dict[str, Any], special: Mapping[str, int | None], terms: Collection[str]) -> AveragerConfig:
    return AveragerConfig(**{key: settings[key] for key in ("vocabulary_size", "hidden_size", "spread", "window")})


def tensors(config: AveragerConfig, lengths: Lengths) -> Iterator[Tensors]:
    shape = (config.vocabulary_size, config.hidden_size)
    yield Tensors("token_embedding", shape)
    yield Tensors("tied_head", shape, rows=lengths.scored, recomputed=False)


register_architecture(
    ArchitectureDeclaration(
        name="averager",
        section=AveragerSizes,
        auto_class="AutoModelForCausalLM",
        pipeline="text-generation",
        model="averager:Averager",
        configuration="averager:configuration",
        tensors="averager:tensors",
        terms=("next_token",),
        twin_sizes={"window": 2},
    )
)
