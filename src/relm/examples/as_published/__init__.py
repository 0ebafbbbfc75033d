"""Builders that give the instances of four published scripts bit for bit, their defects included.

The right way is the default of `relm.examples`; these stand behind `as_published` in a recipe.
"""

from collections.abc import Callable
from pathlib import Path

from relm.examples.as_published.graphcore_bert import pregenerate_graphcore_bert
from relm.examples.as_published.run_mlm import pregenerate_run_mlm
from relm.examples.as_published.tpu_pretrain import pregenerate_tpu_pretrain
from relm.recipes.objectives import Objective

BUILDERS: dict[str, Callable[[Path, Path, Path, Objective, str, int | None], str]] = {
    "tpu_pretrain": pregenerate_tpu_pretrain,
    "graphcore_bert": pregenerate_graphcore_bert,
    "run_mlm": pregenerate_run_mlm,
}
"""Those that make a table; graphcore_gpt2 reads the stream of tokens that every causal objective has."""
