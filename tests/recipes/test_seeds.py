"""The runs of a recipe with `seeds` differ only in the seed, and share all data."""

from pathlib import Path

from relm.recipes.identity import given
from relm.recipes.project import Project

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = Project(CHECKOUT)


def test_each_run_is_the_recipe_with_another_seed() -> None:
    plan = PROJECT.plan("shakespeare_char@a100")
    found = [(run.recipe.seed, run.recipe.random_windows.seed, run.number) for run in plan.runs]
    assert found == [(1 + number, 1 + number, number) for number in range(7)]
    assert plan.runs[0] is plan
    for run in plan.runs[1:]:
        assert run.runs == (run,)
        same = {"seed": 1, "seeds": 7, "random_windows": plan.recipe.random_windows}
        assert given(run.recipe.model_copy(update=same)) == given(plan.recipe)
        assert (run.name, run.results, run.run_folder.parent) == (plan.name, plan.results, plan.run_folder.parent)
        assert [job.key for job in run.data_jobs] == [job.key for job in plan.data_jobs]
        assert plan.find_run(run.fingerprint) is run
    assert len({run.fingerprint for run in plan.runs}) == 7
    assert plan.find_run("0123456789ab") is None


def test_the_number_of_seeds_is_not_part_of_the_fingerprint() -> None:
    plan = PROJECT.plan("shakespeare_char")
    # The fingerprints of a time when each seed had a separate recipe.
    assert [run.fingerprint for run in plan.runs[:3]] == ["13d525f2996c", "26c909939971", "455e006d3810"]
    assert plan.recipe.seeds == 7
    assert PROJECT.plan("shakespeare_char_gpu").recipe.seeds == 1


def test_only_an_evaluation_of_a_random_sample_follows_the_seed() -> None:
    """The figure of each run is compared with the others', so all other protocols stay the same."""
    plan = PROJECT.plan("shakespeare_char")
    for run in plan.runs[1:]:
        assert run.evaluation_identity("random_windows") != plan.evaluation_identity("random_windows")
        assert run.evaluation_identity("held_out") == plan.evaluation_identity("held_out")
        assert run.evaluation_identity("samples") == plan.evaluation_identity("samples")


def test_a_twin_has_two_seeds_at_most() -> None:
    assert len(PROJECT.plan("smoke/shakespeare_char").runs) == 2
    assert len(PROJECT.plan("smoke/quickstart").runs) == 1
