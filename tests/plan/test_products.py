"""A kind of product is declared in one place, and everything that handles files of runs knows it."""

import json
import shutil
from pathlib import Path

import pytest

from finished_runs import FinishedRun
from relm.artifact import sha256_of, write_json
from relm.cleaning.needs import Needs
from relm.cleaning.removal import collect
from relm.cluster.bucket.pull import pull
from relm.cluster.bucket.push import push
from relm.plan.products import PRODUCTS, ProductKind
from relm.recipes.project import Project
from relm.reporting.check import DamagedResult, check_folders
from relm.reporting.publish import publish_run

TOY = ProductKind("toys/{recipe}-{fingerprint}/toy.json", "make-toy", "toy.json", remade=True)


def list_collected() -> list[str]:
    """Return the folders that `relm gc` would remove."""
    found = collect(Path("work"), Needs([Project()], Path("work")), 0, (), removes=False)
    return [str(each.path) for each in found if each.kept is None]


def test_a_toy_in_the_table_is_published_checked_pushed_pulled_and_collected(
    copied_run: FinishedRun, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setitem(PRODUCTS, "toy", TOY)
    plan, store = copied_run.plan, f"file://{tmp_path_factory.mktemp('store')}"
    (toy,) = TOY.list_files(plan, ())
    write_json(toy, {"wheels": 4})
    copied_run.report()
    publish_run(plan, plan.results)
    published = plan.results / "toy.json"
    assert sha256_of(published) == sha256_of(toy)
    assert check_folders([plan.results]).startswith("results/tiny: whole")

    push(store, [plan])
    shutil.rmtree("work")
    pull(store, Project(), "tiny")
    assert json.loads(toy.read_text()) == json.loads(published.read_text()) == {"wheels": 4}

    published.write_text("{}")
    with pytest.raises(DamagedResult, match=r"from step make-toy\n  toy\.json: damaged: .*; made by make-toy"):
        check_folders([plan.results])

    assert list_collected() == []
    shutil.rmtree("results")
    recipe = Path("recipes/tiny.yaml")
    recipe.write_text(recipe.read_text().replace("steps: 50", "steps: 60"))
    assert list_collected() == [str(plan.run_folder), str(toy.parent)]
