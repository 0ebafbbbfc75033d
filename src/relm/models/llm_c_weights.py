"""The initial weights of llm.c's GPT-2 (github.com/karpathy/llm.c, commit f1e2ace6), for the same state of the generator.

train_gpt2.py draws the token embedding, the position embedding, and the matrices of each layer in the order of its modules,
from one torch generator with seed 42. The order is the same here; the matrices there are the transposes of those here, so each
is drawn as (out, in). train_gpt2.cu reimplements these draws, and rounds the numbers to bfloat16, even its master weights,
before the first update. It pads the embedding to 50,304 rows with zeros, which its softmax ignores; the model here has no such
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from relm.models.gpt2_configuration import Gpt2Config


def draw_as_llm_c(
    parameters: Iterable[tuple[str, Tensor]], generator: torch.Generator, spread: float, config: Gpt2Config
) -> None:
    """Set the weights of a GPT-2, given by name in the order of its modules, from a generator on the CPU.

    The deviation of projections into the residual stream is `spread` divided by sqrt(2 layers).
    """
    residual = spread / math.sqrt(2 * config.layers)
    with torch.no_grad():
        for name, parameter in parameters:
            if parameter.dim() == 1:
                parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
                continue
            is_embedding = name.endswith(("wte.weight", "wpe.weight"))
            shape = parameter.shape if is_embedding else parameter.shape[::-1]
            std = residual if name.endswith("c_proj.weight") else spread
            drawn = torch.empty(shape).normal_(0.0, std, generator=generator)
            parameter.copy_(drawn if is_embedding else drawn.t())
            if config.initialisation == "llm_c_bfloat16":
                parameter.copy_(parameter.to(torch.bfloat16).float())
