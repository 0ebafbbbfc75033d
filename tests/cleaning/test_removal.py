"""`relm gc`: what it removes, what it never does, and a kill in the middle."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from finished_runs import FinishedRun
from relm.artifact import write_json
from relm.cleaning.candidates import Candidate, find_candidates
from relm.cleaning.needs import Needs
from relm.cleaning.removal import collect
from relm.cli import main
from relm.errors import RelmError
from relm.recipes.project import Project
from relm.recipes.resolved import record_run
from relm.training.interruption import run_lock
from relm.training.kill_points import KILL_AT

WORK = Path("work")


def edit_recipe(**data: Any) -> None:
    """Change training, and the data if keys are given, so that the run and perhaps its examples become old."""
    path = Path("recipes/tiny.yaml")
    content = yaml.safe_load(path.read_text())
    content["pretrain"]["main"]["steps"] = 60
    content["data"] |= data
    path.write_text(yaml.safe_dump(content))


def found(
    removes: bool = False, minimum_age: float = 0, keep: tuple[str, ...] = (), also: Sequence[Project] = ()
) -> dict[str, Any]:
    """Return path -> the reason to keep it, of everything that `relm gc` finds; None: it would be removed, or is."""
    found = collect(WORK, Needs([Project(), *also], WORK), minimum_age, keep, removes)
    return {str(each.path): each.kept for each in found}


def files(folder: Path = WORK) -> set[str]:
    """Return all files in a folder."""
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def old_run(copied_run: FinishedRun) -> FinishedRun:
    """A run with its examples that no recipe asks for; the recipe reads fewer documents now."""
    write_json(copied_run.plan.run_folder / "resolved.json", record_run(copied_run.plan))
    edit_recipe(documents=1)
    return copied_run


def paths_of(run: FinishedRun) -> set[str]:
    """Return the folders of a run and its data, but the tokenizer's, which the edited recipe needs still."""
    folders = run.plan.run_folder, run.plan.documents_job.folder, run.plan.examples_jobs["main"].folder
    return {str(folder) for folder in folders}


def test_nothing_is_found_while_a_recipe_asks_for_it_and_nothing_changes_without_yes(old_run: FinishedRun) -> None:
    before = files()
    assert set(found()) == paths_of(old_run)
    assert files() == before
    assert main(["gc", "--older-than", "0"]) == 0
    assert files() == before
    Path("recipes/tiny.yaml").write_text(Path("recipes/tiny.yaml").read_text().replace("steps: 60", "steps: 50"))
    assert set(found()) == paths_of(old_run), "documents are fewer still"
    edited = Path("recipes/tiny.yaml").read_text().replace("  documents: 1\n", "")
    Path("recipes/tiny.yaml").write_text(edited)
    assert found() == {}


def test_an_old_run_and_its_data_are_removed_and_nothing_else(old_run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    before = files()
    assert main(["gc", "--older-than", "0", "--yes"]) == 0
    gone = before - files()
    assert gone == {path for path in before if path.startswith(tuple(f"{folder}/" for folder in paths_of(old_run)))}
    assert not old_run.plan.run_folder.parent.exists(), "the empty folder of the name goes too"
    assert old_run.plan.tokenizer.exists()
    assert "removed 3 files or folders of " in capsys.readouterr().out


def test_what_changed_within_the_hour_stays_unless_an_age_is_given(old_run: FinishedRun) -> None:
    assert set(found(removes=True, minimum_age=3600).values()) == {"it changed too recently"}
    assert main(["gc", "--yes"]) == 0
    assert old_run.model.exists()


def test_a_published_result_keeps_its_run_and_every_file_that_its_provenance_names(old_run: FinishedRun) -> None:
    plan = old_run.plan
    write_json(Path("results/tiny/recipe.json"), {"name": "tiny", "fingerprint": plan.fingerprint})
    outputs = [{"path": str(plan.manifest("main"))}, {"path": str(plan.document_files[0])}]
    write_json(Path("results/tiny/provenance.json"), {"steps": [{"inputs": [], "outputs": outputs}]})
    assert found() == {}
    Path("results/tiny/provenance.json").write_text("{")
    assert set(found()) == paths_of(old_run) - {str(plan.run_folder)}
    assert None not in found().values(), "nobody knows which data a damaged file names"


def test_the_data_of_a_variation_stay_while_its_recipe_asks_for_it(copied_run: FinishedRun) -> None:
    variation = Project().plan("tiny+data.documents=1")
    for path in (variation.manifest("main"), variation.run_folder / "main" / "train.jsonl"):
        path.parent.mkdir(parents=True)
        path.touch()
    write_json(variation.run_folder / "resolved.json", record_run(variation))
    assert found() == {}


def test_documents_before_and_after_a_removal_stay_while_a_recipe_asks_for_it(copied_run: FinishedRun) -> None:
    recipe = Path("recipes/tiny.yaml")
    before = recipe.read_text()
    edit_recipe(remove={"duplicates": True})
    plan = Project().plan("tiny")
    folders = {str(job.folder) for job in plan.data_jobs}
    for folder in folders:
        Path(folder, "file").parent.mkdir(parents=True, exist_ok=True)
        Path(folder, "file").touch()
    assert folders.isdisjoint(found())
    recipe.write_text(before)
    assert str(plan.kept_job.folder) in found()


def test_a_kept_run_keeps_its_data(old_run: FinishedRun) -> None:
    assert found(keep=("tiny",)) == {str(old_run.plan.run_folder): "--keep tiny"}
    (old_run.plan.run_folder / "resolved.json").unlink()
    told = found(keep=(old_run.plan.fingerprint,))
    assert None not in told.values()
    assert len(told) == 3, "without a record nobody knows which data it needs"


def test_a_run_to_keep_that_does_not_exist_is_an_error(old_run: FinishedRun) -> None:
    with pytest.raises(RelmError, match=r"--keep tyni: unknown run; .*/?runs has tiny\. `relm runs` lists them"):
        found(removes=True, keep=("tyni",))
    assert old_run.plan.run_folder.is_dir()


def test_a_recipe_with_faults_keeps_its_runs_and_all_data(old_run: FinishedRun) -> None:
    Path("recipes/other.yaml").write_text("title: [\n")
    told = found()
    assert told.pop(str(old_run.plan.run_folder)) is None
    assert set(told.values()) == {"it may be needed, see below"}
    Path("recipes/tiny.yaml").write_text("title: [\n")
    assert str(old_run.plan.run_folder) not in found()


def test_a_run_that_is_trained_or_read_by_a_living_process_stays(old_run: FinishedRun) -> None:
    folder = str(old_run.plan.run_folder)
    with run_lock(old_run.plan.run_folder / "main" / "lock"):
        assert found()[folder] == "a trainer holds its lock"
    reader = "import sys; file = open(sys.argv[1]); print(flush=True); input()"
    examples = old_run.plan.manifest("main")
    with process_with(reader, str(examples)):
        assert found()[str(examples.parent)] == "a running process uses it"
    with process_with(reader, str(old_run.model)):
        assert found(removes=True) == {folder: "a running process uses it"}, "its data stay with it"
    assert old_run.model.exists()
    assert examples.exists()


class process_with:
    """A Python process that runs until the block ends, ready when it has printed a line."""

    def __init__(self, code: str, *arguments: str) -> None:
        command = [sys.executable, "-c", code, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_nothing_is_removed_that_a_link_leads_to(old_run: FinishedRun) -> None:
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    runs, examples = old_run.plan.run_folder.parent, old_run.plan.examples_jobs["main"].folder
    for path in (runs, examples, old_run.plan.documents_job.folder.parent):
        path.rename(elsewhere / path.name)
        path.symlink_to(Path("elsewhere", path.name).absolute())
    (elsewhere / runs.name / ".half.partial").touch()
    before = files(elsewhere)
    told = found(removes=True)
    assert set(told.values()) <= {"a symbolic link", "a symbolic link leads there, out of the work folder"}
    assert str(examples) in told
    assert files(elsewhere) == before
    assert examples.is_symlink()


def test_a_link_inside_a_removed_folder_goes_and_its_target_stays(old_run: FinishedRun) -> None:
    Path("precious").mkdir()
    Path("precious/file").touch()
    (old_run.plan.run_folder / "beside").symlink_to(Path("precious").absolute())
    found(removes=True)
    assert not old_run.plan.run_folder.exists()
    assert Path("precious/file").exists()


def test_unfinished_files_go_but_not_the_only_copy_and_not_a_wanted_download(copied_run: FinishedRun) -> None:
    plan = copied_run.plan
    download = plan.documents_job.download("a.xml")
    removed = [
        plan.run_folder / ".verify.json.partial",
        plan.run_folder / "main" / ".model.partial" / "config.json",
        plan.work / "replay-abc" / "train.jsonl",
        plan.work / "downloads" / "data" / "texts" / "0123456789ab" / ".old.xml.part",
        plan.run_folder.parent / ".0123456789ab.removed" / "verify.json",
    ]
    stays = [plan.run_folder.parent / ".0123456789ab.before" / "verify.json", download.with_name(".a.xml.part")]
    download.unlink()
    for path in (*removed, *stays):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    found(removes=True)
    assert [path for path in removed if path.exists()] == []
    assert [path for path in stays if not path.exists()] == []
    assert found() == {}


def test_the_recipes_of_another_checkout_that_shares_the_folder_count(old_run: FinishedRun, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree("recipes", other / "recipes")
    path = other / "recipes/tiny.yaml"
    path.write_text(path.read_text().replace("steps: 60", "steps: 50").replace("  documents: 1\n", ""))
    assert found(also=[Project(other)]) == {}


def test_an_edit_of_a_recipe_meanwhile_ends_the_removal(old_run: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_and_edit(*arguments: Any) -> list[Candidate]:
        candidates = find_candidates(*arguments)
        os.utime("recipes/tiny.yaml")
        return candidates

    monkeypatch.setattr("relm.cleaning.removal.find_candidates", find_and_edit)
    with pytest.raises(RelmError, match="changed meanwhile; run relm gc again"):
        found(removes=True)
    assert old_run.model.exists()


@pytest.mark.parametrize("kill_at", ["gc-renamed:1", "gc-entry:1", "gc-entry:3", "gc-renamed:2"])
def test_after_a_kill_each_folder_is_whole_or_gone_and_the_next_command_ends_the_work(
    kill_at: str, old_run: FinishedRun
) -> None:
    before = {path: files(Path(path)) for path in paths_of(old_run)}
    process = os.fork()  # a new interpreter would take a second to import everything
    if not process:
        os.environ[KILL_AT] = kill_at
        found(removes=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -9
    for path, content in before.items():
        assert files(Path(path)) in (content, set())
    assert any(not files(Path(path)) for path in before)
    assert set(found(removes=True).values()) == {None}
    assert found() == {}
    assert not list(WORK.rglob(".*.removed"))


def test_without_a_project_the_command_says_where_to_give_it(in_project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc"]) == 1
    assert "has no folder `recipes`; give the command in a checkout" in capsys.readouterr().err
