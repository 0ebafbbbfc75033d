"""The result of an earlier version of a recipe, which a new result replaces: where its files stay, and what differs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.json_shapes import LINE, Kind, read_shaped
from relm.plan.published_files import list_names
from relm.recipes.plan import Plan
from relm.recipes.resolved import differing_keys, resolve
from relm.recipes.run_folder import REPLACED, VERIFY, newest_first

SHOWN = 4
_PAIR = Kind("the value before and the present one", lambda value: isinstance(value, list) and len(value) == 2)
_SHAPE = {"fingerprint": LINE, "files": LINE, "differs": {"*": _PAIR}}
# Folder for the published files of a run whose own files are gone, in that run's folder.
PUBLISHED = "published"


def find_replaced(plan: Plan) -> dict[str, Any] | None:
    """Return fingerprint, files and differing keys of the result in `results/NAME`; None if the fingerprint is the same."""
    try:
        before = read_json(plan.results / "recipe.json")
        if (fingerprint := str(before["fingerprint"])) == plan.fingerprint:
            return None
        differences = differing_keys(before, resolve(plan))
    except (RelmError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    differs = {each.key: [each.first, each.second] for each in differences if each.is_meaning}
    run = plan.run_folder.with_name(fingerprint)
    return {
        "fingerprint": fingerprint,
        "files": str(run if newest_first(run, VERIFY, "verify.json") else run / PUBLISHED),
        "differs": differs,
    }


def describe_replaced(plan: Plan, replaced: Mapping[str, Any]) -> str:
    """Return the line on a result that will be replaced."""
    keys = [f"{key} {before} → {now}" for key, (before, now) in replaced["differs"].items()]
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    differs = ", ".join(keys[:SHOWN]) + more if keys else "data, starting weights or the code's revision"
    return (
        f"{plan.results}: replaces fingerprint {replaced['fingerprint']} with {plan.fingerprint} ({differs}); "
        f"the files of the old one stay in {replaced['files']}"
    )


def keep_replaced(plan: Plan) -> dict[str, Any] | None:
    """Record the result that this run replaces, and keep its published files if its run is gone; return the record.

    Call it before Snakemake deletes the published folder to publish it again.
    """
    kept = plan.run_folder / REPLACED
    replaced = find_replaced(plan)
    if replaced is None:
        return dict(read_shaped(kept, _SHAPE)) if kept.is_file() else None
    if (files := Path(replaced["files"])).name == PUBLISHED:
        for name in list_names(plan.results):
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            (files / name).unlink(missing_ok=True)
            (files / name).hardlink_to(plan.results / name)  # which is to be deleted
    write_json(kept, replaced)
    return replaced
