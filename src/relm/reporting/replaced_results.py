"""The result of an earlier version of a recipe that a new one replaces in `results/NAME`: where it stays, and what differs."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.json_shapes import LINE, Kind, read_shaped
from relm.plan.published_files import list_names
from relm.recipes.plan import Plan
from relm.recipes.run_folder import REPLACED, VERIFY, newest_first

# Keys of a recipe that do not decide its fingerprint.
_NOT_HASHED = frozenset({"title", "paper", "source", "run", "on", "evaluate", "original_corpus", "deviations"})
SHOWN = 4
_PAIR = Kind("the value before and the present one", lambda value: isinstance(value, list) and len(value) == 2)
_SHAPE = {"fingerprint": LINE, "files": LINE, "differs": {"*": _PAIR}}
# Folder in the folder of a run, whose own files are gone, for those that were published.
PUBLISHED = "published"


def find_replaced(plan: Plan) -> dict[str, Any] | None:
    """Return fingerprint, run and differing keys of the result in `results/NAME` if its fingerprint is another one."""
    try:
        before = read_json(plan.results / "recipe.json")
        fingerprint, recipe = str(before["fingerprint"]), dict(before["recipe"])
    except (RelmError, OSError, KeyError, TypeError, ValueError):
        return None
    if fingerprint == plan.fingerprint:
        return None
    differs = dict(_list_differences(recipe, plan.recipe.model_dump(mode="json")))
    run = plan.run_folder.with_name(fingerprint)
    return {"fingerprint": fingerprint, "files": str(run if _has_figures(run) else run / PUBLISHED), "differs": differs}


def _has_figures(run: Path) -> bool:
    return bool(newest_first(run, VERIFY, "verify.json"))


def _list_differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yield each key whose value differs, dotted, with the value before and the present one."""
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if old == new or (not prefix and (key in _NOT_HASHED or key.startswith("expect"))):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _list_differences(old, new, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", [old, new]


def describe_replaced(plan: Plan, replaced: Mapping[str, Any]) -> str:
    """Return the line on a result that is to be replaced."""
    keys = [f"{key} {before} → {now}" for key, (before, now) in replaced["differs"].items()]
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    differs = ", ".join(keys[:SHOWN]) + more if keys else "data, starting weights or the code's revision"
    return (
        f"{plan.results}: replaces fingerprint {replaced['fingerprint']} by {plan.fingerprint} ({differs}); "
        f"the files of the old one stay in {replaced['files']}"
    )


def keep_replaced(plan: Plan) -> dict[str, Any] | None:
    """Return the facts on the result that this run's replaces, and keep them and, where its run is gone, its files.

    Snakemake deletes a published folder before it is published again, so that this comes before.
    """
    kept = plan.run_folder / REPLACED
    replaced = find_replaced(plan)
    if replaced is None:
        return dict(read_shaped(kept, _SHAPE)) if kept.is_file() else None
    if (files := Path(replaced["files"])).name == PUBLISHED:
        _link_files(plan.results, files)
    write_json(kept, replaced)
    return replaced


def _link_files(folder: Path, target: Path) -> None:
    """Link the files of a published folder, which is to be deleted, into another folder, or copy them elsewhere."""
    for name in list_names(folder):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            os.link(folder / name, path)
        except OSError:
            shutil.copy2(folder / name, path)
