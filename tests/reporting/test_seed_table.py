"""A recipe with several seeds: its table, what is published of each, and what the commands make of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from finished_runs import FinishedRun, build_run, copy_run, made_run, recipe_content
from relm.artifact import read_json
from relm.errors import RelmError
from relm.graph import find_seed
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.run_folder import REPORT_FILES
from relm.replay.attested_run import find_run
from relm.reporting.findings import gather
from relm.reporting.publish import publish_run
from relm.reporting.run_record import find_runs
from relm.reporting.runs_table import describe_stored_runs
from relm.reporting.status import describe_progress
from relm.steps import list_steps
from relm.steps.contract import Arguments

EXPECT = {"metric": "held_out.nats_per_token", "value": 4.5, "tolerance": 9.0, "basis": "b", "place": "table 1"}


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, in_project: Path) -> Any:
    """Three seeds, 5, 6 and 7, with losses of 4.25, 4.5 and 4.75."""
    recipe = recipe_content(seed=5, seeds=3, expect=[EXPECT])
    return copy_run(made_run(tmp_path_factory, "three-seeds", lambda: build_run(recipe)), in_project)


def test_the_table_has_each_seed_the_mean_and_only_what_differs(run: Any) -> None:
    table = gather(run.plan, run.verify, run.evaluations, other_seeds=run.other_seeds).seeds
    assert table is not None
    assert (table.seeds, table.fingerprints) == ([5, 6, 7], [each.fingerprint for each in run.plan.runs])
    (row,) = table.rows
    assert (row.task, row.name, row.values) == ("held_out", "Loss", ["4.2500", "4.5000", "4.7500"])
    assert (row.mean, row.standard_deviation) == ("4.5000", "0.25")


def test_page_card_and_folder_show_all_seeds(run: Any) -> None:
    folder = run.report()
    page, card = (folder / "report.html").read_text(), (folder / "README.md").read_text()
    assert '<th class="number">seed 6</th>' in page
    assert "| held_out | Loss | 4.2500 | 4.5000 | 4.7500 | 4.5000 | 0.25 |" in card
    assert "seed 5; 3 runs with a seed each" in page
    assert "Consistent with the published figures" in page
    publish_run(run.plan, run.plan.results)
    published = {path.relative_to(run.plan.results).as_posix() for path in run.plan.results.rglob("*") if path.is_file()}
    for seed in (6, 7):
        own = {name for name in published if name.startswith(f"seeds/{seed}/")}
        assert own == {
            f"seeds/{seed}/{name}"
            for name in (
                "eval/held_out.json",
                "eval/samples.json",
                "train.jsonl",
                "order.json",
                "checkpoints.jsonl",
                "model.safetensors.json",
            )
        }
    crate = {entity.get("name") for entity in read_json(run.plan.results / "ro-crate-metadata.json")["@graph"]}
    assert published - {"ro-crate-metadata.json", "SHA256SUMS"} <= crate
    assert set(REPORT_FILES) <= published


def test_a_single_seed_has_no_table(copied_run: FinishedRun) -> None:
    assert gather(copied_run.plan, copied_run.verify, copied_run.evaluations).seeds is None
    assert not (copied_run.plan.results / "seeds").exists()


def test_the_records_lead_to_every_seed(run: Any) -> None:
    """The report's provenance has the training of each."""
    records = gather(run.plan, run.verify, run.evaluations, other_seeds=run.other_seeds).records
    assert [record["step"] for record in records].count("pretrain") == 3


def test_status_lists_the_training_of_each_seed(run: Any) -> None:
    lines = describe_progress(run.plan).splitlines()
    for each in run.plan.runs:
        assert f"tiny: fingerprint {each.fingerprint}, files in {each.run_folder}" in lines
        assert any(f"seed {each.recipe.seed}, main: done" in line for line in lines)
    assert any(line.split() == ["evaluate", "done"] for line in lines)


def test_the_folder_of_another_seed_can_be_replayed(run: Any) -> None:
    other = run.plan.runs[2]
    hashes = {"model.safetensors": "0" * 64, "optimizer.safetensors": "1" * 64}
    line = {"step": 50, "sha256": hashes, "made_on": {"device": "cpu", "micro_batch_size": 4}}
    (other.run_folder / "main" / "checkpoints.jsonl").write_text(json.dumps(line) + "\n")
    attested = find_run(Project(), other.run_folder, None)
    assert (attested.plan.recipe.seed, attested.folder) == (7, other.run_folder)
    moved = other.run_folder.with_name("0123456789ab")
    other.run_folder.rename(moved)
    with pytest.raises(RelmError, match="belongs to a run with fingerprint 0123456789ab"):
        find_run(Project(), moved, None)


def arguments(run: Any, **changes: Any) -> Arguments:
    judged = run.judged()
    given = {
        "recipe": "tiny",
        "fingerprint": run.plan.fingerprint,
        "reference": False,
        "model": [each.model for each in judged],
        "evaluations": [path for each in judged for path in each.evaluations.values()],
        "output": Path("again.json"),
    }
    return Arguments(**{**given, **changes})


def test_the_command_takes_the_files_seed_by_seed(run: Any) -> None:
    assert "of 3 seeds: consistent" in str(list_steps()["verify"].job(arguments(run)).run())
    assert read_json(Path("again.json")) == read_json(run.verify)


def test_the_command_refuses_fewer_files_than_seeds(run: Any) -> None:
    whole = arguments(run)
    with pytest.raises(RelmError, match=r"--model: 2 given, expected one for each of the recipe's 3 seeds"):
        list_steps()["verify"].job(arguments(run, model=whole.model[:2]))
    with pytest.raises(RelmError, match=r"--evaluations: in 2 folders .* expected one for each of the recipe's 3 seeds"):
        list_steps()["verify"].job(arguments(run, evaluations=whole.evaluations[:4]))


def test_a_single_seed_can_be_judged_by_its_fingerprint(run: Any) -> None:
    other = run.judged()[1]
    job = list_steps()["verify"].job(
        arguments(run, fingerprint=other.fingerprint, model=[other.model], evaluations=list(other.evaluations.values()))
    )
    job.run()
    assert (read_json(Path("again.json"))["seeds"], read_json(Path("again.json"))["rows"][0]["ours"]) == ([6], 4.5)


def test_the_list_of_runs_has_the_seeds_in_order_and_all_are_published(run: Any) -> None:
    def states() -> list[tuple[int, str]]:
        return sorted((each.seed or 0, each.state) for each in find_runs(work_folder(), [Project()]))

    assert states() == [(5, "finished"), (6, "finished"), (7, "finished")]
    run.report()
    publish_run(run.plan, run.plan.results)
    assert states() == [(5, "published"), (6, "published"), (7, "published")]
    assert "seed 6, step 50 of 50" in describe_stored_runs(Project(), "tiny")


def test_a_jobs_line_names_the_seed_of_what_it_trains_or_evaluates(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relm.graph.runs.PROJECT", Project())  # not the plans of other tests in this process
    second = run.plan.runs[1].fingerprint
    assert find_seed({"recipe": "tiny", "fingerprint": second, "phase": "main"}) == 6
    assert find_seed({"recipe": "tiny", "fingerprint": second, "of": "eval", "task": "held_out"}) == 6
    assert find_seed({"recipe": "tiny", "fingerprint": run.plan.fingerprint}) is None, "the verdict is on all"
    assert find_seed({"recipe": "absent", "fingerprint": second, "phase": "main"}) is None
