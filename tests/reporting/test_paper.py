"""The page of a paper: its figures, ours next to them, and what is missing."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from finished_runs import build_run, copy_run, made_run, recipe_content
from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.recipes.project import Project
from relm.recipes.run_folder import PAPER_FILES
from relm.reporting.paper import MISSING, read_paper, write_paper
from relm.reporting.publish import publish_run

PAPER = {"key": "small", "title": "A small <paper>", "url": "https://example.org/paper"}
FIGURE = {"metric": "held_out.nats_per_token", "value": 4.5, "tolerance": 9.0, "basis": "b", "place": "table 1"}
OTHER = {"metric": "lambada.accuracy", "value": 0.5, "tolerance": 0.1, "basis": "b", "place": "table 2 | end"}


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory, in_project: Path) -> Any:
    """A published run of two seeds with one of its two figures, among recipes that have not run and that have faults."""
    return copy_run(made_run(tmp_path_factory, "paper", make_paper), in_project)


def name_reference_runs() -> dict[str, Any]:
    """Write runs of an original's own program, and return the figure that names them, in a recipe with their source."""
    Path("recipes/reference_runs").mkdir(parents=True)
    runs = [{"seed": seed, "value": 4.4 + seed / 100} for seed in (1, 2, 3)]
    stated = {"program": "github.com/a/b", "commit": "0123456789" * 4, "command": "python c.py", "runs": runs}
    Path("recipes/reference_runs/b.yaml").write_text(yaml.dump({**stated, "metric": FIGURE["metric"]}))
    return {**FIGURE, "tolerance": 0.8, "value": 5.0, "reference_runs": "b"}


def test_the_originals_program_has_a_row_and_decides_where_the_published_figure_does_not(in_project: Path) -> None:
    content = recipe_content(paper=PAPER, seeds=2, source="github.com/a/b at 01234567", expect=[name_reference_runs()])
    run = build_run(content)
    run.report()
    publish_run(run.plan, run.plan.results)
    write_recipe("later", {**content, "seed": 9})
    later, tiny = read_paper(Project(), "small")[1]
    assert [(row.published, row.verdict) for row in later.rows] == [(5.0, MISSING), (pytest.approx(4.42), MISSING)]
    assert [(row.published, row.verdict) for row in tiny.rows] == [(5.0, "undecided"), (pytest.approx(4.42), "consistent")]
    write_paper(Project(), "small", Path("results/papers/small"))
    card, page = (Path(name).read_text() for name in ("results/papers/small/README.md", "results/tiny/report.html"))
    place = "github.com/a/b at 01234567, seeds 1, 2, 3"
    assert f"`held_out.nats_per_token`, {place} | 4.42 |" in card
    for text in (card, page, Path("results/tiny/README.md").read_text()):
        assert "Consistent with the original" in text
        assert place in text
    assert "recipes/reference_runs/b.yaml" in page


def make_paper() -> None:
    content = recipe_content(paper=PAPER, seeds=2, expect=[FIGURE, OTHER])
    run = build_run(content)
    for number, each in enumerate(run.plan.runs, 1):
        (each.run_folder / "main/logs/train.jsonl").write_text(f'{{"step": 50, "loss": 4.0, "seconds": {60 * number}}}\n')
    run.report()
    publish_run(run.plan, run.plan.results)
    write_recipe("later", {**content, "seed": 9, "title": "Later"})
    write_recipe("wrong", {**content, "seed": "many"})
    write_recipe("elsewhere", {**content, "paper": {**PAPER, "key": "another"}})


def write_recipe(name: str, content: dict[str, Any]) -> None:
    dumper = yaml.SafeDumper
    dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign, assignment]
    Path(f"recipes/{name}.yaml").write_text(yaml.dump(content, Dumper=dumper), encoding="utf-8")


def test_each_recipe_of_the_paper_has_its_rows_or_the_reason_for_none(run: Any) -> None:
    _, runs = read_paper(Project(), "small")
    later, tiny, wrong = runs
    assert [each.name for each in runs] == ["later", "tiny", "wrong"]
    assert (later.state, [row.verdict for row in later.rows]) == ("not run yet: snakemake results/later", [MISSING] * 2)
    assert wrong.state.startswith("the recipe has faults: recipes/wrong.yaml")
    reached, incomparable = tiny.rows
    assert (reached.ours, reached.runs, reached.verdict) == (4.375, 2, "consistent")
    assert reached.interval is not None
    assert reached.interval[0] < -0.125 < reached.interval[1]
    assert (incomparable.ours, incomparable.verdict) == (None, "not comparable")
    assert "task lambada was not evaluated" in incomparable.sentence
    assert (tiny.seconds, tiny.time) == (180.0, "3 min 0 s")


def test_the_files_show_figures_and_gaps(run: Any) -> None:
    sentence = write_paper(Project(), "small", Path("results/papers/small"))
    assert sentence == "results/papers/small: 1 of 4 figures were measured here: 2 missing; 1 consistent; 1 not comparable."
    assert {path.name for path in Path("results/papers/small").iterdir()} == {*PAPER_FILES, "SHA256SUMS"}
    page, card = (Path("results/papers/small", name).read_text() for name in ("index.html", "README.md"))
    assert "A small &lt;paper&gt;" in page
    assert 'href="../../tiny/report.html"' in page
    assert (
        page.count("Not run yet: snakemake results/later<") == page.lower().count("not run yet: snakemake results/later") == 1
    )
    assert re.search(r'<b>4\.375</b> <span class="soft">difference [-+][\d.]+ to [-+][\d.]+</span>', page)
    assert "table 2 \\| end" in card
    table = read_json(Path("results/papers/small/table.json"))
    assert [row["verdict"] for each in table["runs"] for row in each["rows"]] == [MISSING] * 2 + [
        "consistent",
        "not comparable",
    ]


def test_a_result_of_another_version_of_the_recipe_is_missing(run: Any) -> None:
    write_recipe("tiny", recipe_content(paper=PAPER, seed=4, expect=[FIGURE]))
    _, runs = read_paper(Project(), "small")
    (row,) = next(each for each in runs if each.name == "tiny").rows
    assert (row.ours, row.verdict) == (None, MISSING)
    assert "is of an earlier version of the recipe" in row.sentence


def change(name: str, old: str, new: str) -> tuple[str, str]:
    """Change a published file, and return its sha256 before and after."""
    path = Path("results/tiny", name)
    before, text = sha256_of(path), path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return before, sha256_of(path)


@pytest.mark.parametrize(("name", "old", "new"), [("verify.json", "4.375", "3.375"), ("seeds/1/train.jsonl", "120", "12")])
def test_a_published_file_that_was_edited_is_not_quoted(run: Any, name: str, old: str, new: str) -> None:
    published, found = change(name, old, new)
    with pytest.raises(RelmError) as refused:
        write_paper(Project(), "small", Path("results/papers/small"))
    assert str(refused.value).startswith(
        f"results/tiny/{name}: damaged: sha256 is {found}, published was {published}; made by "
    )
    assert str(refused.value).endswith(
        "Nothing is quoted from it. To repair it, delete results/tiny, and `snakemake results/tiny` publishes it again from "
        "the run's own files"
    )
    assert not Path("results/papers/small").exists()


def test_an_unknown_paper_is_refused(run: Any) -> None:
    with pytest.raises(RelmError, match="no recipe names a paper with the key 'none'"):
        read_paper(Project(), "none")
