"""`relm command` prints what a published result records or what the plan will run, ready for a shell."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from relm.artifact import read_json, write_json
from relm.containers.shell_line import docker_line, plain_line
from relm.devices.ranks import launcher
from relm.errors import RelmError
from relm.recipes.checkout import read_commit
from relm.recipes.evaluations import EVALUATIONS
from relm.recipes.project import Project
from relm.steps import list_steps
from relm.steps.recorded_steps import GRAPH_STEPS, comment
from relm.steps.step_commands import describe_command, planned
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
            "argv": ["relm", "download", "--dataset", "recipes/data/x.yaml", "--file", name, "--output", f"work/{name}"],
            "outputs": [{"path": f"work/{name}", "sha256": "f", "size": 1}],
        }
        for name in ("a.xml", "b.xml")
    ]
    image = {"engine": "podman", "image": "sha256:" + "8" * 64}
    steps.append({"step": "samples", "argv": SAMPLES, "container": image, "outputs": [{"path": "work/v.json"}]})
    missing = {"step": None, "missing": "no record beside it", "inputs": [], "outputs": [{"path": "work/x"}]}
    path = Path("results/tiny/provenance.json")
    write_json(path, {"steps": [missing, *steps]})
    return path


def test_a_published_step_is_printed_plain_and_in_the_image_it_ran_in(published: Path) -> None:
    told = describe_command(Project(), "tiny", "samples", None, None, trust_image=True).splitlines()
    assert told[0] == "# samples of tiny, recorded in results/tiny/provenance.json; in the checkout:"
    assert told[1] == " ".join(SAMPLES)
    assert told[4].startswith("docker run ")
    assert told[4].endswith(f"sha256:{'8' * 64} {' '.join(SAMPLES[1:])}")
    assert all(line.startswith(("#", "relm ", "docker ")) or not line for line in told)


def test_without_a_step_all_are_listed(published: Path) -> None:
    told = describe_command(Project(), "tiny", None, None, None).splitlines()
    assert told[1:3] == ["#   download  work/a.xml and 1 more", "#   samples   work/v.json"]


def test_of_several_jobs_one_is_asked_for_and_chosen_by_number_or_name(published: Path) -> None:
    with pytest.raises(RelmError, match=r"has 2 jobs; say which.*\n  1  work/a.xml\n  2  work/b.xml"):
        describe_command(Project(), "tiny", "download", None, None)
    by_number = describe_command(Project(), "tiny", "download", "2", "plain")
    assert by_number == describe_command(Project(), "tiny", "download", "b.x", "plain")
    assert by_number.endswith("--file b.xml --output work/b.xml")
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
    assert describe_command(Project(), "tiny", "samples", None, None, True).endswith("has no image for cpu; it has none")
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
    told = next(step for step in record if step["outputs"][0]["path"].endswith("/held_out.json"))
    output = finished_copy.folder / told["outputs"][0]["path"]
    before = output.read_bytes()
    output.unlink()
    line = finished_copy.relm("command", "tiny", "evaluate", "held_out", "--only", "plain").stdout
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


# --- a stranger's words ------------------------------------------------------------------------------------------------------

SAMPLES = ["relm", "samples", "--model", "work/m.safetensors", "--tokenizer", "work/t.json", "--output", "work/v.json"]
CANARY = "touch canary"


def recorded(path: Path, argv: Sequence[str], step: str = "samples", image: object = None, makes: str = "work/v.json") -> None:
    """Have the published provenance record one step alone."""
    record = {"step": step, "argv": argv, "container": {"image": image}, "outputs": [{"path": makes}]}
    write_json(path, {"steps": [record]})


def run_by_a_shell(told: str, folder: Path) -> None:
    """Give all that was printed to a real shell that finds neither relm nor docker."""
    subprocess.run(["/bin/sh"], input=told, cwd=folder, env={"PATH": "/usr/bin:/bin"}, text=True, capture_output=True)


STRANGE_WORDS: dict[str, list[str]] = {
    "another program": ["sh", "-c", CANARY, "relm", "samples", *SAMPLES[2:]],
    "a program of the same name": ["./relm", *SAMPLES[1:]],
    "torchrun otherwise": ["torchrun", "--standalone", "--no-python", "sh", "-c", CANARY, "relm", *SAMPLES[1:]],
    "a count that is none": ["relm", "--processes", "2;x", *SAMPLES[1:]],
    "several processes in another way": ["torchrun", "--rdzv-conf", "x", "3", "-m", "--", "relm", *SAMPLES[1:]],
    "an argument that the step does not take": [*SAMPLES, "--exec", CANARY],
    "help": [*SAMPLES, "--help"],
    "an output elsewhere": [*SAMPLES[:-1], "/etc/cron.d/x"],
    "an output in the home folder": [*SAMPLES[:-1], "~/.ssh/authorized_keys"],
    "an output in the checkout": [*SAMPLES[:-1], "src/relm/cli.py"],
    "an output above work": [*SAMPLES[:-1], "work/../src/relm/cli.py"],
    "an output as one word": [*SAMPLES[:-2], "--output=/tmp/x"],
    "a shortened option": [*SAMPLES[:-2], "--outp", "/tmp/x"],
    "a log elsewhere": [*SAMPLES, "--log", "~/.profile"],
    "a model elsewhere": [*SAMPLES[:3], "/etc/passwd", *SAMPLES[4:]],
}
STRANGE_STEPS: dict[str, list[str]] = {
    "push": ["relm", "push", "gs://somebody/else"],
    "pull": ["relm", "pull", "gs://somebody/else"],
    "images": ["relm", "images", "build", "cpu", "--base", "evil"],
    "export": ["relm", "export", "--manifest", "work/x", "--format", "megatron", "--tokenizer", "work/t", "--output", "work/y"],
    "publish": ["relm", "publish", "tiny", "--output", "src"],
    "verify": ["relm", "verify", "../results/tiny/evil", "--model", "work/m", "--output", "work/verify.json"],
    "download": ["relm", "download", "--dataset", "results/tiny/evil.yaml", "--file", "x", "--output", "work/x"],
    "extract": [
        *("relm", "extract", "--job", '{"content": {"name": "some/body", "revision": "0"}}', "--source", "some/body@0"),
        *("--train", "work/t", "--held-out", "work/h"),
    ],
    "extract a folder": [
        *("relm", "extract", "--dataset", "recipes/data/none.yaml", "--source", "~/.ssh"),
        *("--train", "work/t", "--held-out", "work/h"),
    ],
}


@pytest.mark.parametrize(
    ("step", "argv"),
    [*(("samples", argv) for argv in STRANGE_WORDS.values()), *((argv[1], argv) for argv in STRANGE_STEPS.values())],
    ids=[*STRANGE_WORDS, *STRANGE_STEPS],
)
def test_what_is_no_step_of_the_graph_on_files_of_the_checkout_is_not_printed(
    published: Path, step: str, argv: list[str], tmp_path: Path
) -> None:
    recorded(published, argv, step)
    for only in (None, "plain", "docker"):
        with pytest.raises(RelmError):
            run_by_a_shell(describe_command(Project(), "tiny", step, None, only, True), tmp_path)
    assert not (tmp_path / "canary").exists()


OLDER_FORMS: dict[str, list[str]] = {
    "extract": [
        *("relm", "extract", "--dataset", "recipes/data/x.yaml", "--key", "0123456789ab", "--source", "work/x.xml"),
        *("--train", "work/t", "--held-out", "work/h"),
    ],
    "pregenerate": [
        *("relm", "pregenerate", "--settings", '{"objective": "causal"}', "--tokenizer", "work/t.json"),
        *("--documents", "work/d.jsonl", "--output", "work/e.bin"),
    ],
}


@pytest.mark.parametrize("step", OLDER_FORMS)
def test_a_command_of_earlier_code_names_the_commit_that_it_runs_with(published: Path, step: str, tmp_path: Path) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    record = {"step": step, "argv": OLDER_FORMS[step], "outputs": [{"path": "work/x"}]}
    for recorded_by, says in (
        (
            commit,
            rf"relm at commit {commit} recorded this {step}, whose command runs with that commit \(git checkout {commit}\)",
        ),
        (read_commit()["commit"], "the recorded command is none that relm would take"),
        (f"{commit[:-1]} --force", "the recorded command is none that relm would take"),
        (None, "the recorded command is none that relm would take"),
    ):
        write_json(published, {"steps": [{**record, "code": {"commit": recorded_by, "changed": False}}]})
        with pytest.raises(RelmError, match=says):
            run_by_a_shell(describe_command(Project(), "tiny", step, None, None), tmp_path)


@pytest.mark.parametrize("sign", ["\0", "\n", "\r", "\x1b", "\x85", "\u2028", "\u202e"])
@pytest.mark.parametrize("place", ["argv", "step", "image", "makes"])
def test_a_control_character_anywhere_in_a_record_is_refused(published: Path, place: str, sign: str, tmp_path: Path) -> None:
    word = f"work/x{sign}{CANARY}"
    argv = [*SAMPLES, "--log", word] if place == "argv" else SAMPLES
    step, image, makes = (
        word if place == told else other for told, other in (("step", "samples"), ("image", None), ("makes", "work/v"))
    )
    recorded(published, argv, step, image, str(makes))
    for wanted in (None, "samples"):
        with pytest.raises(RelmError, match="not what `report` writes"):
            run_by_a_shell(describe_command(Project(), "tiny", wanted, None, None, True), tmp_path)
    assert not (tmp_path / "canary").exists()


def test_a_nul_is_never_taken_for_a_variable(published: Path) -> None:
    with pytest.raises(RelmError, match="has a NUL"):
        plain_line(["relm", "samples", "--output", "\0HOME\0/x"])


@pytest.mark.parametrize("makes", [f"$({CANARY})", f"`{CANARY}`", f"x; {CANARY}", f"work/a & {CANARY}"])
def test_a_list_of_steps_given_to_a_shell_runs_nothing(published: Path, makes: str, tmp_path: Path) -> None:
    recorded(published, SAMPLES, makes=makes)
    run_by_a_shell(describe_command(Project(), "tiny", None, None, None), tmp_path)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("argv", [[], ["relm"], "relm samples", [1], None])
def test_words_that_are_none_are_a_plain_error(published: Path, argv: object) -> None:
    write_json(published, {"steps": [{"step": "samples", "argv": argv, "outputs": [{"path": "work/x"}]}]})
    with pytest.raises(RelmError, match="not what `report` writes"):
        describe_command(Project(), "tiny", "samples", None, None)


@pytest.mark.parametrize("image", ["--volume=/:/host", "-v", "a b", f"$({CANARY})", "../x", "x y@sha256:0", ""])
def test_an_image_is_never_an_option_or_a_word_more(published: Path, image: str, tmp_path: Path) -> None:
    recorded(published, SAMPLES, image=image)
    for trusts in (False, True):
        with pytest.raises(RelmError, match="has no image to run in"):
            describe_command(Project(), "tiny", "samples", None, "docker", trusts)
        told = describe_command(Project(), "tiny", "samples", None, None, trusts)
        assert "docker run" not in told
        run_by_a_shell(told, tmp_path)
    assert not (tmp_path / "canary").exists()


def test_an_image_that_no_lock_has_is_named_only_on_request(published: Path) -> None:
    told = describe_command(Project(), "tiny", "samples", None, None)
    assert told.endswith("has; --trust-image prints its line")
    assert "docker run" not in told
    with pytest.raises(RelmError, match=r"it ran in sha256:8+, which neither containers/lock.yaml nor .*--trust-image"):
        describe_command(Project(), "tiny", "samples", None, "docker")
    assert describe_command(Project(), "tiny", "samples", None, "docker", True).startswith("docker run")


def test_an_image_that_was_built_here_needs_no_word_for_it(published: Path) -> None:
    built = {"id": "sha256:" + "8" * 64, "bases": {"BASE": "x"}, "built": "2026-01-01"}
    Path("containers/lock.local.yaml").write_text(json.dumps({"images": {"cpu": built}}))
    assert describe_command(Project(), "tiny", "samples", None, "docker").startswith("docker run")


def test_the_words_of_several_processes_are_those_that_relm_writes(published: Path) -> None:
    recorded(published, [*launcher(4)[2:], *SAMPLES[1:]])
    assert describe_command(Project(), "tiny", "samples", None, "plain") == shlex.join([*launcher(4)[2:], *SAMPLES[1:]])


def test_a_dataset_in_a_folder_of_ones_own_is_read_from_there_with_consent(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("recipes/data").mkdir(parents=True)
    dataset = {"title": "T", "licence": "MIT", "language": "en", "format": "text_files", "folder": "~/texts"}
    Path("recipes/data/mine.yaml").write_text(json.dumps(dataset))
    argv = [
        "relm",
        "extract",
        "--dataset",
        "recipes/data/mine.yaml",
        "--source",
        "~/texts",
        "--train",
        "work/t",
        "--held-out",
        "work/h",
    ]
    recorded(published, argv, "extract")
    with pytest.raises(RelmError, match=r"--source ~/texts: outside the project, .* give RELM_DATA_FOLDERS=~/texts before"):
        describe_command(Project(), "tiny", "extract", None, "plain")
    monkeypatch.setenv("RELM_DATA_FOLDERS", "~/texts")
    assert '--source "$HOME"/texts' in describe_command(Project(), "tiny", "extract", None, "plain")


def test_the_steps_that_are_printed_are_those_that_rules_run() -> None:
    rules = "".join(path.read_text() for path in (CHECKOUT / "src/rules").glob("*.smk"))
    run = set(re.findall(r"(?:-m relm|params\.launcher}) ([a-z-]+)", rules)) - {"publish", "compile", "differences", "check"}
    run |= {"join-ranges"}  # the rule `extract` runs it for a dataset with ranges
    older = {declaration.command for declaration in EVALUATIONS}
    assert run | older == GRAPH_STEPS, "runs that were published before `evaluate` have its short forms"
    assert {name for name, step in list_steps().items() if step.records} >= GRAPH_STEPS


def test_the_pages_of_a_run_never_start_another_program_in_an_image(published: Path) -> None:
    assert docker_line(["sh", "-c", CANARY, "relm", "samples"], Project()).line is None
    assert docker_line(SAMPLES, Project(), ran_in="--volume=/:/host").line is None


def test_a_comment_cannot_be_ended() -> None:
    assert comment(f"a\n{CANARY}\r{CANARY}\x85b\u2028c\x1b[1m") == f"# a\n# {CANARY}\n# {CANARY}\n# b\n# c [1m"


@pytest.mark.parametrize("image", [0, False, [], {}])
def test_an_image_of_another_type_is_refused(published: Path, image: object) -> None:
    steps = read_json(published)["steps"]
    steps[-1]["container"]["image"] = image
    write_json(published, {"steps": steps})
    with pytest.raises(RelmError, match="not what `report` writes"):
        describe_command(Project(), "tiny", "samples", None, "docker", trust_image=True)


def test_a_refused_record_is_not_printed_in_full(published: Path) -> None:
    steps = read_json(published)["steps"]
    steps[-1]["argv"] = [*SAMPLES, "x" * 100_000]
    write_json(published, {"steps": steps})
    with pytest.raises(RelmError) as caught:
        describe_command(Project(), "tiny", "samples", None, None)
    assert len(str(caught.value)) < 1000
