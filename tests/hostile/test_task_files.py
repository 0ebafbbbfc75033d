"""Task files of the harness that a recipe from somebody else brings: they are programs, and none runs before it is trusted."""

import json
from pathlib import Path

import pytest

from harness_tasks import harness_python, small_model, small_tokenizer
from relm.cli import main
from relm.evaluation.harness import harness_run
from small_project import Commands

SURFACE = "task files of the harness"
CODE = "open('executed', 'w').close()\ndef text(document):\n    return document['text']\nclass Own:\n    pass\n"
FUNCTION = "task: own\ndoc_to_text: !function code.text\n"
TEMPLATE = "{{ cycler.__init__.__globals__.os.system('touch executed') }} some text"
TASK = {
    "task": "own",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "own.jsonl"}},
    "test_split": "test",
    "output_type": "loglikelihood",
    "doc_to_text": "{{text.rpartition(' ')[0]}}",
    "doc_to_target": "{{text.rpartition(' ')[2]}}",
    "metric_list": [{"metric": "acc"}],
}
# What lies in the folder of task files.
FILES: dict[str, dict[str, str]] = {
    "function": {"own.yaml": FUNCTION, "code.py": CODE},
    "class": {"own.yaml": "task: own\nclass: !function code.Own\n", "code.py": CODE},
    "template": {"own.yaml": json.dumps(TASK | {"doc_to_text": TEMPLATE}), "own.jsonl": '{"text": "Some words"}\n'},
    "included function": {"own.yaml": "include: one\ntask: own\n", "one": "include: two\n", "two": FUNCTION, "code.py": CODE},
    "function of an installed module": {"own.yaml": "task: own\ndoc_to_text: !function os.system\n"},
    "tag of Python": {"own.yaml": "task: own\ndoc_to_text: !!python/object/apply:os.system ['touch executed']\n"},
    "name of the harness's own": {"own.yaml": FUNCTION.replace("own", "hellaswag"), "code.py": CODE},
    "folder below": {"deep/er/own.yaml": FUNCTION, "deep/er/code.py": CODE},
    "plain": {"own.yaml": json.dumps(TASK)},
    "Python alone": {"code.py": CODE},
}
COMMANDS = ("harness", "by job")
UNTRUSTED = {f"{name}, {command}": (command, name, None) for name in FILES for command in COMMANDS} | {
    f"variable {value!r}": ("harness", "function", value) for value in ("", "0", "true")
}
LINKED = {"link to a task elsewhere": "own.yaml", "link to a folder elsewhere": "."}
REFUSED = {**UNTRUSTED, **LINKED, "recorded with the flag": None, "planned by Snakemake": None}
TRUSTED = {"trusted by the flag": (True, None), "trusted by the variable": (False, "1"), "trusted by both": (True, "1")}
SURVIVED = {**TRUSTED, "empty folder": None, "no folder": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return small_model(folder / "model", small_tokenizer(folder))


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder of task files, in a current folder in which the harness does nothing but say that it was started."""
    started = tmp_path / "python"
    started.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\nexit 3\n")
    started.chmod(0o755)
    monkeypatch.setattr(harness_run, "default_python", lambda: started)
    monkeypatch.delenv("RELM_TRUST_TASKS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes/harness").mkdir(parents=True)
    return Path("recipes/harness")


def write(folder: Path, name: str) -> None:
    for file, text in FILES[name].items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)


def evaluate(command: str, model: Path, *options: str) -> int:
    job = {"evaluation": "lm_eval", "harness_task": "own", "task": "own"}
    words = ["harness", "--job", json.dumps(job)] if command == "by job" else ["harness", "--task", "own"]
    return main([*words, "--model", str(model), "--output", "own.json", "--threads", "1", *options])


@pytest.mark.parametrize(("command", "name", "value"), UNTRUSTED.values(), ids=UNTRUSTED)
def test_no_task_file_runs_before_it_is_trusted(
    command: str,
    name: str,
    value: str | None,
    model: Path,
    tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tasks, name)
    if value is not None:
        monkeypatch.setenv("RELM_TRUST_TASKS", value)
    assert evaluate(command, model, "--task-folder", str(tasks)) == 1
    assert "recipes/harness: has task files for the harness (" in (message := capsys.readouterr().err)
    assert "If you trust them, give --trust-tasks, or set RELM_TRUST_TASKS=1" in message
    assert not Path("executed").exists()


@pytest.mark.parametrize("link", LINKED.values(), ids=LINKED)
def test_a_link_to_task_files_elsewhere_needs_trust_too(link: str, model: Path, tasks: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", "function")
    (tasks / "linked").symlink_to(tmp_path / "elsewhere" / link)
    assert evaluate("harness", model, "--task-folder", str(tasks)) == 1
    assert not Path("executed").exists()


@pytest.mark.parametrize(("flag", "value"), TRUSTED.values(), ids=TRUSTED)
def test_trusted_task_files_go_to_the_harness(
    flag: bool, value: str | None, model: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tasks, "function")
    if value is not None:
        monkeypatch.setenv("RELM_TRUST_TASKS", value)
    assert evaluate("harness", model, "--task-folder", str(tasks), *["--trust-tasks"] * flag) == 1
    assert Path("executed").exists()


@pytest.mark.parametrize("options", [["--task-folder", "recipes/harness"], []])
def test_the_harness_s_own_tasks_need_no_trust(options: list[str], model: Path, tasks: Path) -> None:
    assert evaluate("harness", model, *options) == 1
    assert Path("executed").exists()


def test_a_run_with_task_files_is_refused_before_its_first_job(project: Commands) -> None:
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("[held_out, samples]", '["lm_eval:own"]'))
    (project.folder / "recipes/harness").mkdir()
    write(project.folder / "recipes/harness", "function")
    done = project.snakemake("results/tiny")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "recipes/harness: has task files for the harness (code.py, own.yaml), which can run any program. If you" in said
    assert "trust them, give RELM_TRUST_TASKS=1 snakemake results/tiny" in said
    assert not (project.folder / "work/downloads").exists()


@pytest.mark.full
@pytest.mark.parametrize("name", ["function", "template"])
def test_task_files_are_programs_for_the_harness(name: str, model: Path, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = harness_python()
    monkeypatch.setattr(harness_run, "default_python", lambda: python)
    write(tasks, "template")
    if name == "function":
        (tasks / "own.yaml").rename(tasks / "one.yaml")
        (tasks / "own.yaml").write_text("include: one.yaml\n" + FUNCTION)
        (tasks / "code.py").write_text(CODE)
    assert evaluate("harness", model, "--task-folder", str(tasks)) == 1
    assert not (tasks / "executed").exists()
    assert evaluate("harness", model, "--task-folder", str(tasks), "--trust-tasks") == 0
    assert (tasks / "executed").exists()
