"""`relm command` prints what a published result records or what the plan will run, ready for a shell."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.plan import Project
from relm.reporting.step_commands import describe_command, planned
from small_project import CHECKOUT, Commands


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published provenance.json of invented steps, in the current folder; its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELM_WORK", raising=False)
    (tmp_path / "containers").mkdir()
    shutil.copyfile(CHECKOUT / "containers/lock.yaml", "containers/lock.yaml")
    steps = [
        {
            "step": "download",
            "argv": ["relm", "download", "--output", f"work/{name}"],
            "outputs": [{"path": f"work/{name}", "sha256": "f", "size": 1}],
        }
        for name in ("a.xml", "b.xml")
    ]
    image = {"engine": "podman", "image": "sha256:" + "8" * 64}
    argv = ["relm", "samples", "--output", "work/v.json"]
    steps.append({"step": "samples", "argv": argv, "container": image, "outputs": [{"path": "work/v.json"}]})
    missing = {"step": None, "missing": "no record beside it", "inputs": [], "outputs": [{"path": "work/x"}]}
    path = Path("results/tiny/provenance.json")
    write_json(path, {"steps": [missing, *steps]})
    return path


def test_a_published_step_is_printed_plain_and_in_the_image_it_ran_in(published: Path) -> None:
    told = describe_command(Project(), "tiny", "samples", None, None).splitlines()
    assert told[0] == "# samples of tiny, recorded in results/tiny/provenance.json; in the checkout:"
    assert told[1] == "relm samples --output work/v.json"
    assert told[4].startswith("docker run ")
    assert told[4].endswith(f"sha256:{'8' * 64} samples --output work/v.json")
    assert all(line.startswith(("#", "relm ", "docker ")) or not line for line in told)


def test_without_a_step_all_are_listed(published: Path) -> None:
    told = describe_command(Project(), "tiny", None, None, None).splitlines()
    assert told[1:3] == ["  download  work/a.xml and 1 more", "  samples   work/v.json"]


def test_of_several_jobs_one_is_asked_for_and_chosen_by_number_or_name(published: Path) -> None:
    with pytest.raises(RelmError, match=r"has 2 jobs; say which.*\n  1  work/a.xml\n  2  work/b.xml"):
        describe_command(Project(), "tiny", "download", None, None)
    by_number = describe_command(Project(), "tiny", "download", "2", "plain")
    assert by_number == describe_command(Project(), "tiny", "download", "b.x", "plain") == "relm download --output work/b.xml"
    for wrong, found in (("3", "no jobs"), ("0", "no jobs"), ("c.xml", "no jobs"), (".xml", "2 jobs")):
        with pytest.raises(RelmError, match=rf"^{found} of step download of tiny fit '{re.escape(wrong)}'"):
            describe_command(Project(), "tiny", "download", wrong, None)


def test_a_misspelt_step_is_told_the_nearest(published: Path) -> None:
    with pytest.raises(RelmError, match="tiny has no step 'smaples'; did you mean samples"):
        describe_command(Project(), "tiny", "smaples", None, None)


def test_a_damaged_provenance_is_named(published: Path) -> None:
    write_json(published, {"steps": [{"step": "x"}]})
    with pytest.raises(RelmError, match=r"results/tiny/provenance.json: not what `report` writes"):
        describe_command(Project(), "tiny", None, None, None)


def test_without_an_image_the_docker_line_alone_is_an_error_and_the_plain_one_stays(published: Path) -> None:
    Path("containers/lock.yaml").write_text("images: {}\nbases: {}\n")
    assert describe_command(Project(), "tiny", "samples", None, None).endswith("has no image for cpu; it has none")
    with pytest.raises(RelmError, match="step samples of tiny has no image to run in"):
        describe_command(Project(), "tiny", "samples", None, "docker")


def test_the_plan_has_the_commands_that_the_run_will_record(
    finished_copy: Commands, project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = [record["argv"] for record in read_json(finished_copy.folder / "results/tiny/provenance.json")["steps"]]
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    plans = [command.argv for command in planned(Project(), "tiny")]
    one_core = [
        [after if word != "--workers" else "1" for word, after in zip(["", *argv], argv, strict=False)] for argv in plans
    ]
    assert sorted(argv for argv in one_core if argv[1] != "report") == sorted(recorded)
    assert [argv[1] for argv in plans if argv not in recorded][-1] == "report"


def test_a_recipe_that_is_not_there_is_named_with_the_nearest(project: Commands) -> None:
    refused = project.relm("command", "tyni", "verify")
    assert refused.returncode == 1
    assert "did you mean results/tiny?" in refused.stderr


def test_a_printed_line_makes_the_same_bytes_again(finished_copy: Commands) -> None:
    record = read_json(finished_copy.folder / "results/tiny/provenance.json")["steps"]
    told = next(step for step in record if step["step"] == "held-out")
    output = finished_copy.folder / told["outputs"][0]["path"]
    before = output.read_bytes()
    output.unlink()
    line = finished_copy.relm("command", "tiny", "held-out", "--only", "plain").stdout
    done = subprocess.run(["sh", "-c", line], cwd=finished_copy.folder, env=finished_copy.environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == before


def test_published_lines_know_nothing_of_the_machine(finished_copy: Commands, finished_project: Commands) -> None:
    told = read_json(finished_copy.folder / "results/tiny/provenance.json")
    for record in told["steps"]:
        assert record["docker"]["line"].startswith("docker run --rm --init --read-only")
        assert record["docker"]["image"] == "relm/cpu:0.1.0"
    text = json.dumps(told["steps"])
    assert str(finished_project.folder) not in text
    assert os.path.expanduser("~") + "/" not in text
