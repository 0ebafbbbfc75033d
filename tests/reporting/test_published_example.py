"""`results/shakespeare_char`, where the repository has it, is what the recipe and the code of today make of its figures."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from relm.artifact import read_json, sha256_of
from relm.graph.reruns import Reruns
from relm.recipes.project import Project
from relm.recipes.run_folder import LOG, METADATA
from relm.reporting.verify import judge_rows, overall
from relm.training.curve_watch import WITHIN, read_lines, watched

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLE = CHECKOUT / "results" / "shakespeare_char"

pytestmark = pytest.mark.skipif(not (EXAMPLE / METADATA).is_file(), reason="not published here")


def test_its_runs_are_those_of_the_recipe() -> None:
    plan = Project(CHECKOUT).plan("shakespeare_char")
    stated = [(run["seed"], run["fingerprint"]) for run in read_json(EXAMPLE / "verify.json")["runs"]]
    assert stated == [(run.recipe.seed, run.fingerprint) for run in plan.runs]
    assert read_json(EXAMPLE / "recipe.json")["fingerprint"] == plan.fingerprint


def test_a_fresh_clone_has_nothing_to_do_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    plan = Project().plan("shakespeare_char")
    reruns = Reruns(SimpleNamespace(dryrun=True, storage_settings=SimpleNamespace(shared_fs_usage=SharedFSUsage.all())))
    assert reruns.find_reason(plan) is None
    assert reruns.warned == set(), "its report shows the recipe of today"


def test_its_verdict_follows_from_its_figures() -> None:
    plan, verdict = Project(CHECKOUT).plan("shakespeare_char"), read_json(EXAMPLE / "verify.json")
    runs = {}
    for run in plan.runs:
        folder = EXAMPLE / "seeds" / str(run.recipe.seed) if run.number else EXAMPLE
        runs[run.recipe.seed] = {task: read_json(folder / "eval" / f"{task}.json") for task in run.evaluations()}
    (expectation,) = plan.recipe.expect
    reference = plan.reference_runs[str(expectation.reference_runs)]
    rows = judge_rows(expectation, runs, [plan.recipe.run.machine], reference)
    assert rows == verdict["rows"]
    assert overall(rows) == (verdict["verdict"], verdict["sentence"])


def test_its_runs_keep_to_the_band_of_today_as_they_did_to_that_of_then() -> None:
    """Each line has the verdict of the band when it was trained; the recipe's band may be a better one since."""
    plan = Project(CHECKOUT).plan("shakespeare_char")
    assert plan.recipe.expect_curve is not None
    assert plan.curve is not None
    for log in (EXAMPLE / LOG, *(EXAMPLE / "seeds" / str(seed) / LOG for seed in range(2, 8))):
        lines = read_lines(log)
        assert lines[-1]["step"] == plan.curve.steps[-1] == 2000
        assert lines[-1]["curve"]["verdict"] == watched(plan.recipe.expect_curve, plan.curve, lines).verdict == WITHIN


def test_every_file_has_the_hash_that_the_crate_records_and_none_is_large() -> None:
    files = [entity for entity in read_json(EXAMPLE / METADATA)["@graph"] if entity["@type"] == "File"]
    assert files
    for entity in files:
        path = EXAMPLE / entity["name"]
        assert sha256_of(path) == entity["sha256"], entity["name"]
        assert path.stat().st_size < 10_000_000
