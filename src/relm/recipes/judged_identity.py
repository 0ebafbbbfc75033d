"""The keys in the paths of what is derived from figures: counts of contamination, verdicts and reports.

Whatever decides one of these files is in its key, so an edit makes another file beside the old one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from relm.artifact import sha256_of
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.identity import REVISIONS, digest
from relm.recipes.recipe import Recipe

# Keys of a recipe that a report shows and that no figure depends on.
_SHOWN = {"title", "paper", "source", "deviations", "expect", "run", "control"}

# Revision of the counts of contamination.
_CONTAMINATION = 2


def contamination_key(test: PublishedTest) -> str:
    """Return the key of the counts of a test's items; the run's fingerprint has the documents."""
    text_key = test.lambada.text_key if test.protocol == "lambada" else None
    return digest([REVISIONS["evaluation"], _CONTAMINATION, str(test.item_format), text_key, test.files[test.file].identity])


def verdict_key(recipe: Recipe, figures: Mapping[str, Mapping[str, str]]) -> str:
    """Return the key of a verdict on figures: fingerprint of each run -> task -> key."""
    expected = [row.model_dump(mode="json") for row in recipe.expect]
    return digest({"revision": REVISIONS["report"], "expect": expected, "figures": figures, "machine": recipe.run.machine})


def reported_digest(recipe: Recipe, named: Sequence[BaseModel | None], parts: Sequence[Any]) -> str:
    """Return the digest of what a report shows: words of the recipe, what it names, and the keys of verdict and figures."""
    words = recipe.model_dump(mode="json", include=_SHOWN)
    if recipe.expect_curve is not None:
        words["expect_curve"] = recipe.expect_curve.model_dump(mode="json", exclude={"on_deviation"})
    shown = [part.model_dump(mode="json") if part else None for part in named]
    return digest([REVISIONS["report"], words, shown, *parts])


def report_key(reported: str, compilation: Path) -> str:
    """Return the key of a report from `reported_digest` and the findings of `relm compile`, which it shows if they exist."""
    return digest([reported, sha256_of(compilation) if compilation.is_file() else None])
