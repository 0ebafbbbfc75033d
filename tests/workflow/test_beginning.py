"""The start of a phase, through the rules: with a local model, with a kept optimizer, in several processes."""

import contextlib
import json
import re
import shutil
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from made_once import copy_of
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.recipes.project import Project
from relm.recipes.published_models import PretrainedModel
from relm.recipes.section import validate
from relm.steps.training import refuse_another_start
from small_project import CHECKOUT, FRAMES, TINY_RECIPE, Commands

OWN_MODEL = "title: Mine\nlicence: my own\nweights: true\nfolder: mine\n"
AFTER = {"verify": 1, "report": 1, "publish": 1}
BEGUN = {"copy_model": 2, "pretrain": 1, **AFTER}


@pytest.fixture
def finished(finished_copy: Commands, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The finished project, in its folder."""
    monkeypatch.chdir(finished_copy.folder)
    return finished_copy


def train(project: Commands, recipe: str, *options: str) -> str:
    """All phases of a recipe and nothing after them; what Snakemake said."""
    plan = Project().plan(recipe)
    done = project.snakemake(str(plan.model_folder(plan.phases[-1]) / "model.safetensors"), *options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def write_own_model(folder: Path, seed: int = 0) -> GPT2LMHeadModel:
    """A GPT-2 as transformers saves it, of the size of the recipe `tiny`, with weights far from small."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 400, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(
        GPT2Config(
            **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3, bos_token_id=0, eos_token_id=0
        )
    )
    model.save_pretrained(folder)
    return model.eval()


def training_windows(project: Commands) -> torch.Tensor:
    """(examples, 33): all training examples of the finished project, with the token that follows each."""
    (shard,) = project.folder.glob("work/examples/*/sample.xml.train.bin")
    tokens = np.fromfile(shard, "<u2").astype(np.int64)
    starts = np.arange((len(tokens) - 1) // 32)[:, None] * 32
    return torch.from_numpy(tokens[starts + np.arange(33)])


def own_project(project: Commands) -> None:
    """The recipe `begun`: one step on all examples at once, so that its loss does not depend on their order."""
    write_own_model(project.folder / "mine")
    (project.folder / "recipes" / "models" / "mine.yaml").write_text(OWN_MODEL)
    step = f"global_batch_size: {len(training_windows(project))}, steps: 1, schedule: {{name: constant, warmup_steps: 0}}"
    (project.folder / "recipes" / "begun.yaml").write_text(
        f"extends: tiny\ninit_from: mine\nmodel: {{dropout: 0.0}}\npretrain: {{main: {{{step}}}}}\nevaluate: []\n"
        "run: {micro_batch_size: null}\n"
    )


def lines(project: Commands, recipe: str, phase: str = "main") -> list[dict[str, Any]]:
    (log,) = project.folder.glob(f"work/runs/{recipe}/*/{phase}/train.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def begun(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The finished project with `begun` trained, in its folder."""
    folder = copy_of(tmp_path_factory, "begun", lambda folder: train_begun(finished_project, folder))
    monkeypatch.chdir(folder)
    return Commands(folder)


def train_begun(finished: Commands, folder: Path) -> None:
    """Copy the finished project into an empty folder, and train `begun` there."""
    subprocess.run(["cp", "-a", f"{finished.folder}/.", str(folder)], check=True)
    project = Commands(folder)
    own_project(project)
    with contextlib.chdir(folder):
        train(project, "begun")


def test_training_begins_from_a_users_folder(begun: Commands) -> None:
    folder, windows = begun.folder, training_windows(begun)
    theirs = GPT2LMHeadModel.from_pretrained(folder / "mine")
    with torch.no_grad():
        logits = theirs(windows[:, :-1]).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert expected > 7, "weights of no use, so that random ones of ours would not do"
    assert lines(begun, "begun")[0]["loss"] == pytest.approx(expected, rel=1e-5)

    weights = folder / "mine" / "model.safetensors"
    before = weights.read_bytes()
    weights.touch()
    (folder / "mine" / "README.md").write_text("Words.")
    assert begun.jobs("results/begun") == AFTER, "neither time nor other files are its identity"
    other = load_file(weights)
    other["transformer.ln_f.bias"][0] += 1
    save_file(other, weights, metadata={"format": "pt"})
    assert begun.jobs("results/begun") == BEGUN, "it trains beside the old run"
    (copy,) = folder.glob("work/models/mine-*/model.safetensors")
    assert copy.read_bytes() == before, "what the old run began with is as it was"
    weights.write_bytes(before)
    assert Project().plan("begun").model_folder("main").exists(), "the old bytes are the old run"


def test_weights_released_as_a_pickle_are_converted_on_the_way_to_the_same_beginning(begun: Commands) -> None:
    folder = begun.folder
    theirs = GPT2LMHeadModel.from_pretrained(folder / "mine")
    pickled = folder / "mirror" / "pytorch_model.bin"
    torch.save(theirs.state_dict(), pickled)
    released = {"title": "Theirs", "licence": "MIT", "weights": True, "configuration": theirs.config.to_dict()}
    source = {"url": "http://127.0.0.1:9/pytorch_model.bin"}
    files = {"pytorch_model.bin": {"sha256": sha256_of(pickled), "at_most": 10**6, "sources": [source]}}
    (folder / "recipes" / "models" / "theirs.yaml").write_text(yaml.safe_dump(released | {"files": files}))
    (folder / "recipes" / "converted.yaml").write_text("extends: begun\ninit_from: theirs\n")

    assert begun.jobs("results/converted") == {"download_model": 1, "convert_weights": 1, "pretrain": 1, **AFTER}
    train(begun, "converted")
    assert lines(begun, "converted")[0]["loss"] == lines(begun, "begun")[0]["loss"]
    assert begun.jobs("results/converted") == AFTER
    other = yaml.safe_dump(released | {"files": files}).replace(sha256_of(pickled), "ab" * 32)
    (folder / "recipes" / "models" / "theirs.yaml").write_text(other)
    assert begun.jobs("results/converted")["pretrain"] == 1, "other weights are another run"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, r"recipes/models/mine.yaml: folder mine: not a folder \(resolved to .*/mine\); correct `folder`"),
        (lambda mine: (mine / "config.json").unlink(), r"folder mine: has no config.json; it has .*model.safetensors"),
        (
            lambda mine: (mine / "model.safetensors").rename(mine / "pytorch_model.bin"),
            r"has no model.safetensors; pytorch_model.bin is not read, because loading it may run code",
        ),
        (
            lambda mine: (mine / "model.safetensors").rename(mine / "model.safetensors.index.json"),
            r"has no model.safetensors; its weights are in several files, .*max_shard_size=\"1TB\"",
        ),
    ],
    ids=["no folder", "no config", "pickled", "in pieces"],
)
def test_a_folder_that_cannot_be_begun_with_says_why(change, message: str, project: Commands, monkeypatch) -> None:
    mine = project.folder / "mine"
    mine.mkdir()
    for name in ("config.json", "model.safetensors"):
        (mine / name).write_text("{}")
    (project.folder / "recipes" / "models" / "mine.yaml").write_text(OWN_MODEL)
    (project.folder / "recipes" / "begun.yaml").write_text("extends: tiny\ninit_from: mine\n")
    change(mine)
    monkeypatch.chdir(project.folder)
    with pytest.raises(RelmError, match=message):
        _ = Project().plan("begun").fingerprint


def test_what_a_folder_holds_is_identity_and_where_it_lies_is_not(project: Commands, monkeypatch) -> None:
    mine, models = project.folder / "mine", project.folder / "recipes" / "models"
    mine.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (mine / name).write_text(f'["{name}"]')
    (models / "mine.yaml").write_text(OWN_MODEL + "tokenizer: tokenizers_json\n")
    files = {
        path.name: {"sha256": sha256_of(path), "size": path.stat().st_size, "sources": [{"url": "https://example.org/x"}]}
        for path in mine.iterdir()
    }
    published = {"title": "M", "licence": "MIT", "weights": True, "tokenizer": "tokenizers_json", "files": files}
    (models / "published.yaml").write_text(json.dumps(published))
    for name in ("mine", "published"):
        (project.folder / "recipes" / f"from_{name}.yaml").write_text(f"extends: tiny\ninit_from: {name}\n")
        text = TINY_RECIPE.replace("train: byte_level_bpe, vocabulary_size: 400", f"from_model: {name}")
        (project.folder / "recipes" / f"read_{name}.yaml").write_text(text)
    monkeypatch.chdir(project.folder)
    assert Project().plan("from_mine").fingerprint == Project().plan("from_published").fingerprint
    assert Project().plan("read_mine").tokenizer_job.key == Project().plan("read_published").tokenizer_job.key
    before, key = Project().plan("from_mine").starting_weights("main"), Project().plan("read_mine").tokenizer_job.key
    (mine / "tokenizer.json").write_text("[]")
    assert Project().plan("from_mine").starting_weights("main") == before, "a recipe that reads the weights alone"
    assert Project().plan("read_mine").tokenizer_job.key != key
    (mine / "config.json").write_text("[]")
    assert Project().plan("from_mine").starting_weights("main") != before


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "a model has either files or a folder; found none"),
        ({"folder": "mine", "files": {"vocab.txt": {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://x"}]}}},
         "either files or a folder; found files and folder"),
        ({"folder": "mine"}, "folder: nothing is read from it; set weights: true, a tokenizer"),
    ],
)  # fmt: skip
def test_a_model_has_one_place_and_a_purpose(keys: dict, message: str) -> None:
    with pytest.raises(RelmError, match=message):
        validate(PretrainedModel, {"title": "M", "licence": "MIT", **keys}, Path("m.yaml"))


def test_a_folder_edited_between_plan_and_copy_is_refused(project: Commands) -> None:
    (project.folder / "mine").mkdir()
    (project.folder / "mine" / "config.json").write_text("{}")
    (project.folder / "recipes" / "models" / "mine.yaml").write_text(OWN_MODEL)
    command = ("download", "--model", "recipes/models/mine.yaml", "--file", "config.json", "--output", "copy/config.json")
    done = project.relm(*command, "--sha256", "0" * 64)
    assert done.returncode == 1
    assert "mine/config.json: changed: sha256 is 44136fa355b3" in done.stderr
    assert not (project.folder / "copy").exists()
    assert project.relm(*command).stdout == "download: config.json: 2 bytes from mine/config.json\n"
    assert (project.folder / "copy" / "config.json.json").exists()


PHASES = """
extends: tiny
pretrain:
  main: {{sequence_length: 16, steps: 4, schedule: {{name: constant, warmup_steps: 1}}}}
  second:
    objective: causal
    sequence_length: 32
    global_batch_size: 4
    steps: 3
    optimizer: {{learning_rate: 1e-3, gradient_clipping: 1.0}}
    optimizer_state: {state}
evaluate: []
"""


def write_phases(project: Commands) -> None:
    for state in ("fresh", "kept"):
        (project.folder / "recipes" / f"{state}.yaml").write_text(PHASES.format(state=state))


def test_the_command_of_each_phase_says_how_it_begins_and_in_how_many_processes(project: Commands) -> None:
    write_phases(project)
    (project.folder / "recipes" / "twice.yaml").write_text("extends: kept\nrun: {processes: 2}\n")
    shown = project.snakemake("results/fresh", "results/kept", "results/twice", "-n", "-p").stdout
    commands = {
        recipe: [line.strip() for line in shown.splitlines() if f" pretrain {recipe} " in line]
        for recipe in ("fresh", "kept", "twice")
    }
    assert [len(found) for found in commands.values()] == [2, 2, 2]
    found = re.findall(r"--optimizer-from (\S+)", "\n".join(commands["kept"]))
    assert [re.sub("[0-9a-f]{12}", "F", path) for path in found] == ["work/runs/kept/F/main/checkpoints/step-00000004"]
    assert "--optimizer-from" not in "\n".join(commands["fresh"])
    starts = {recipe: {line.partition(" pretrain ")[0] for line in found} for recipe, found in commands.items()}
    assert {word.removeprefix("Shell command: ") for word in starts["kept"]} == {"python -m relm"}
    assert {word.removeprefix("Shell command: ") for word in starts["twice"]} == {"python -m relm --processes 2"}


@pytest.mark.parametrize(
    ("recipe", "begins", "message"),
    [
        ("fresh", ("i", "somewhere"), "has optimizer_state: fresh; remove --optimizer-from"),
        ("kept", ("i", None), "has optimizer_state: kept; it needs --optimizer-from work/runs/kept/"),
        ("kept", ("i", "step-00000003"), "checkpoints/step-00000004, the last checkpoint of the phase before"),
        ("kept", (None, "step-00000004"), "phase second of recipe kept needs --init-from work/runs/kept/"),
        ("tiny", ("i", None), "phase main of recipe tiny needs no --init-from: it starts with random weights"),
    ],
)
def test_a_command_that_begins_otherwise_than_its_recipe_is_refused(recipe, begins, message, project, monkeypatch) -> None:
    write_phases(project)
    monkeypatch.chdir(project.folder)
    plan = Project().plan(recipe)
    init_from, optimizer_from = (Path(word) if word else None for word in begins)
    given = Namespace(recipe=recipe, phase=plan.phases[-1], init_from=init_from, optimizer_from=optimizer_from)
    with pytest.raises(RelmError, match=message):
        refuse_another_start(plan, given)


@pytest.mark.full
def test_a_kept_optimizer_that_is_lost_is_named_with_what_to_delete(finished: Commands) -> None:
    write_phases(finished)
    train(finished, "kept")
    (run,) = finished.folder.glob("work/runs/kept/*")
    before = (run / "second" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(run / "main" / "checkpoints")
    shutil.rmtree(run / "second")
    shutil.rmtree(finished.folder / "results" / "kept", ignore_errors=True)
    sidecar = run / "main" / "model" / "model.safetensors.json"
    done = finished.snakemake("results/kept")
    assert done.returncode == 1
    assert f"step-00000004/model.safetensors, which is gone. Delete {sidecar.relative_to(finished.folder)}" in done.stdout
    assert "started" not in done.stdout
    sidecar.unlink()
    train(finished, "kept")
    assert (run / "second" / "model" / "model.safetensors").read_bytes() == before


@pytest.mark.full
def test_a_finished_run_goes_on_from_its_weights_or_with_its_optimizer_as_the_page_says(finished: Commands) -> None:
    (model,) = finished.folder.glob("work/runs/tiny/*/main/model")
    page = (CHECKOUT / "docs" / "training.md").read_text().partition("## More steps\n")[2].partition("\n## ")[0]
    described, further, kept = re.findall("```yaml\n(.*?)```", page, re.DOTALL)
    described = described.replace("work/runs/quickstart/FINGERPRINT/main/model", str(model.relative_to(finished.folder)))
    small = {
        "extends: quickstart": "extends: tiny",
        "length: 64": "length: 32",
        "size: 16": "size: 4",
        "steps: 500": "steps: 20",
    }
    for name, text in (("models/finished", described), ("further", further), ("kept", kept)):
        for old, new in small.items():
            text = text.replace(old, new)
        (finished.folder / "recipes" / f"{name}.yaml").write_text(text)
    train(finished, "further")
    losses = [lines(finished, name)[number]["loss"] for name, number in (("tiny", 0), ("tiny", -1), ("further", 0))]
    assert abs(losses[2] - losses[1]) < (losses[0] - losses[1]) / 2, "it goes on where the other ended"
    train(finished, "kept")
    (again,) = finished.folder.glob("work/runs/kept/*/main/model/model.safetensors")
    assert again.read_bytes() == (model / "model.safetensors").read_bytes(), "the first phase gives the same weights"
    assert lines(finished, "kept", "more")[-1]["step"] == 20


@pytest.mark.full
def test_several_processes_are_started_together_and_tell_one_story(finished: Commands) -> None:
    (finished.folder / "recipes" / "twice.yaml").write_text(
        "extends: tiny\nrun: {processes: 2}\npretrain: {main: {steps: 6}}\nevaluate: []\n"
    )
    said = train(finished, "twice", "-p", FRAMES)
    assert re.search(r"python -m relm --processes 2 pretrain twice --fingerprint \w+ --phase main", said)
    (log,) = finished.folder.glob("work/logs/runs/twice/*/main.log")
    assert len(log.read_text().splitlines()) == 1
    assert lines(finished, "twice")[-1]["step"] == 6
    (record,) = finished.folder.glob("work/runs/twice/*/main/model/model.safetensors.record.json")
    assert json.loads(record.read_text())["argv"][:4] == ["relm", "--processes", "2", "pretrain"]
