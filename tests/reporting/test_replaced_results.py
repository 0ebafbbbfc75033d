"""A result of another fingerprint is named before it is replaced, and its files stay, also where its run is gone."""

from pathlib import Path

from finished_runs import FinishedRun
from relm.artifact import read_json, write_json
from relm.recipes.resolved import resolve
from relm.reporting.replaced_results import describe_replaced, find_replaced, keep_replaced


def test_the_differing_keys_are_named_and_the_only_copy_of_a_result_is_kept(run: FinishedRun, in_project: Path) -> None:
    plan = run.plan
    resolved = resolve(plan)
    write_json(plan.results / "recipe.json", resolved)
    assert find_replaced(plan) is None
    resolved["recipe"]["pretrain"]["main"]["steps"], resolved["recipe"]["title"] = 12, "Another title"
    write_json(plan.results / "recipe.json", {**resolved, "fingerprint": "0" * 12})
    write_json(plan.results / "eval/held_out.json", {"figures": {}})
    kept = plan.run_folder.with_name("0" * 12) / "published"
    replaced = keep_replaced(plan)
    assert replaced == {"fingerprint": "0" * 12, "files": str(kept), "differs": {"pretrain.main.steps": [12, 50]}}
    assert read_json(kept / "eval/held_out.json") == {"figures": {}}
    assert describe_replaced(plan, replaced) == (
        f"{plan.results}: replaces fingerprint {'0' * 12} with {plan.fingerprint} (pretrain.main.steps 12 → 50); the files of "
        f"the old one stay in {kept}"
    )
    (plan.results / "recipe.json").unlink()
    assert keep_replaced(plan) == replaced, "the next report of the same run says it again"
