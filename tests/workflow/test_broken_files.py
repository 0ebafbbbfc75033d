"""A file that cannot be read concerns only those who ask for what it describes."""

import os
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.graph.targets import all_results
from relm.recipes.jobs import DocumentsJob
from relm.recipes.project import Project
from relm.reporting.run_list import describe_runs
from small_project import Commands

BROKEN = {
    "unhashable": b"{name}: y\n",
    "date": b"title: 2024-13-45\n",
    "control": b"title: \x01\n",
    "long_number": b"seed: " + b"9" * 5000,
    "deep": b"title: " + b"[" * 100_000,
    "laughs": b"title: &a [x]\nnote: [*a, *a]\n",
    "latin": b"title: caf\xe9\n",
    "wide": "title: x\n".encode("utf-16"),
    "empty": b"",
    "infinite": b"title: .inf\n",
}
KINDS = [*BROKEN, "folder", "pipe", "link", "circle"]
USES = {
    "data": "data: {{dataset: {kind}}}",
    "models": "init_from: {kind}",
    "evaluations": "evaluate: [{kind}]",
}


def put_broken_files(folder: Path) -> None:
    """Write a broken file of each kind."""
    for kind, content in BROKEN.items():
        (folder / f"{kind}.yaml").write_bytes(content)
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    (folder / "link.yaml").symlink_to("nowhere.yaml")
    (folder / "circle.yaml").symlink_to("circle.yaml")


@pytest.fixture
def broken_project(project: Commands) -> Commands:
    """The small project, and before its recipe in the alphabet broken files in each folder and recipes that name them."""
    recipes = project.folder / "recipes"
    for folder in USES:
        (recipes / folder).mkdir(exist_ok=True)
        put_broken_files(recipes / folder)
        for kind in KINDS:
            (recipes / f"of-{folder}-{kind}.yaml").write_text(f"extends: tiny\n{USES[folder].format(kind=kind)}\n")
    put_broken_files(recipes)
    (recipes / ".#tiny.yaml").symlink_to("me@host.1:2")  # as Emacs marks a file that is being edited
    (recipes / "my recipe.yaml").write_text("title: x\n")
    return project


@pytest.mark.timeout(60)
def test_other_targets_run_while_broken_files_lie_next_to_them(broken_project: Commands) -> None:
    assert broken_project.jobs("results/tiny")["publish"] == 1


@pytest.mark.timeout(60)
def test_each_broken_file_is_named_by_those_who_ask_for_it(broken_project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(broken_project.folder)
    project = Project()
    for kind in KINDS:
        with pytest.raises(RelmError, match=rf"^recipes/{kind}\.yaml"):
            project.plan(kind)
        for folder in USES:
            with pytest.raises(RelmError, match=rf"^recipes/{folder}/{kind}\.yaml"):
                project.plan(f"of-{folder}-{kind}")
    key = Project().plan("tiny").documents_job.key
    assert Project().find_job(DocumentsJob, key, "sample").key == key


@pytest.mark.timeout(60)
def test_the_list_has_every_recipe_and_says_what_is_wrong_with_the_broken_ones(
    broken_project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(broken_project.folder)
    (broken_project.folder / "recipes" / "typo.yaml").write_text("extends: tiny\nmodel: {layrs: 1}\n")
    lines = {line.split(" ")[0]: line for line in describe_runs(Project()).replace("\n    ", " ").splitlines()}
    assert "As small as can be" in lines["tiny"]
    assert "recipes/date.yaml, line 1: '2024-13-45' is not a date" in lines["date"]
    assert "recipes/data/deep.yaml, line 1: nested more than 32 deep" in lines["of-data-deep"]
    assert "has faults: recipes/typo.yaml: 1 error: model.layrs: unknown key; did you mean layers?" in lines["typo"]
    assert set(lines) >= {*KINDS, *(f"of-{folder}-{kind}" for folder in USES for kind in KINDS)}
    assert "recipes/'my" in lines
    assert not any(".#tiny" in line for line in lines.values())


def test_all_names_every_recipe_that_keeps_it_from_being_all(broken_project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(broken_project.folder)
    monkeypatch.setattr("relm.graph.targets.PROJECT", Project())
    with pytest.raises(SystemExit, match="all: 57 recipes have faults") as caught:
        all_results(None)
    said = str(caught.value)
    assert "recipes/my recipe.yaml" in said.replace("'", "")
    assert "recipes/of-data-deep.yaml: recipes/data/deep.yaml, line 1: nested more than 32 deep" in said
    assert all(f"recipes/{kind}.yaml" in said and f"recipes/models/{kind}.yaml" in said for kind in KINDS)
    assert "`snakemake results/NAME` runs any other recipe" in said


@pytest.mark.full
def test_the_list_and_all_of_snakemake_go_through_broken_files(broken_project: Commands) -> None:
    listed = broken_project.snakemake("list", "--quiet", "all")
    assert listed.returncode == 0, listed.stdout
    assert "recipes/pipe.yaml: is a named pipe" in " ".join(listed.stdout.split())
    done = broken_project.snakemake("all", "-n")
    assert done.returncode == 1
    assert "all: 57 recipes have faults" in done.stdout
    asked = broken_project.snakemake("results/of-data-deep", "-n")
    assert asked.returncode == 1
    assert "recipes/data/deep.yaml, line 1: nested more than 32 deep" in asked.stdout
