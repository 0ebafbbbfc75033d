"""The verdict on `stories260k_scaled` in docs/trust.md follows from the table of its seeds and those of llama2.c's program."""

import re

from relm.recipes.project import Project
from relm.reporting.verify import judge_rows
from small_project import CHECKOUT

PAGE = (CHECKOUT / "docs" / "trust.md").read_text()


def test_the_stated_verdict_follows_from_the_stated_figures() -> None:
    plan = Project(CHECKOUT).plan("stories260k_scaled")
    (expectation,) = plan.recipe.expect
    reference = plan.reference_runs[str(expectation.reference_runs)]
    table = re.findall(r"^\| (\d) \| (2\.\d{5}) \| (2\.\d{5}) \|$", PAGE, re.MULTILINE)
    assert [(int(seed), float(theirs)) for seed, theirs, _ in table] == [
        (run.seed, run.value) for run in reference.content.runs
    ]
    ours = {int(seed): {"held_out": {"figures": {"nats_per_token": float(value)}}} for seed, _, value in table}
    assert list(ours) == [run.recipe.seed for run in plan.runs]
    published, program = judge_rows(expectation, ours, [plan.recipe.run.machine], reference)
    assert published["verdict"] == "not comparable"
    low, high = program["interval"]
    difference = f"the difference is {program['difference']:+.4f} nats, its 95 % interval {low:+.3f} to {high:+.3f}"
    words = " ".join(PAGE.replace("**", "").split())
    assert f"the verdict is *{program['verdict']}*: {difference}" in words
    assert f"a difference of {program['would_have_noticed']:.3f} four times in five" in words
