"""The image and the network of a step are decided once, for the rules, the shim and the command alike."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from relm.containers.placement import evaluation_role, parse_step_command, place_step, training_role
from relm.devices import ranks
from relm.errors import RelmError
from relm.recipes.project import Project
from relm.steps import list_steps
from small_project import Commands


def placed(project: Commands, monkeypatch: pytest.MonkeyPatch, *words: str):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(project.folder)
    return place_step(words, Project())


def edited(path: Path, **keys: object) -> None:
    """Change keys of a YAML file."""
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))


def test_only_what_downloads_has_the_network(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed(project, monkeypatch, "download", "--dataset", "recipes/data/sample.yaml", "--file", "sample.xml").network
    for words in (["extract", "--dataset", "recipes/data/sample.yaml"], ["pretrain", "tiny"], ["verify", "tiny"], ["list"], []):
        assert not placed(project, monkeypatch, *words).network


def test_documents_of_the_hub_are_read_over_the_network(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = {"title": "t", "licence": "l", "language": "en", "format": "hugging_face", "held_out_one_in": 4, "text_key": "text"}
    source = {"name": "a/b", "revision": "0" * 40}
    (project.folder / "recipes/data/hub.yaml").write_text(yaml.safe_dump({**hub, "hub": source}))
    assert placed(project, monkeypatch, "extract", "--dataset", "recipes/data/hub.yaml").network
    assert placed(project, monkeypatch, "extract", "--job", json.dumps({"content": source})).network
    assert not placed(project, monkeypatch, "extract", "--job", json.dumps({"content": [["a.xml", "0"]]})).network
    assert not placed(project, monkeypatch, "extract", "--job", "{").network


def test_a_log_that_goes_to_a_server_needs_the_network(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(project.folder / "recipes/tiny.yaml", run={"loggers": ["wandb"]})
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert not placed(project, monkeypatch, "pretrain", "tiny", "--phase", "main").network
    monkeypatch.setenv("WANDB_MODE", "online")
    assert placed(project, monkeypatch, "pretrain", "tiny", "--phase", "main").network


@pytest.mark.parametrize(("device", "evaluates_on"), [("cpu", "cpu"), ("cuda", "cuda"), ("tpu", "cpu"), ("ipu", "cpu")])
def test_a_recipe_trains_on_its_device_and_evaluations_follow_it_only_to_a_gpu(
    device: str, evaluates_on: str, project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = {"pipeline": {"layers_per_ipu": [1], "gradient_accumulation": 4}} if device == "ipu" else {}
    path = project.folder / "recipes/tiny.yaml"
    path.write_text(path.read_text().replace(", gradient_clipping: 1.0", ", gradient_clipping: null"))
    edited(path, run={"device": device, **pipeline})
    monkeypatch.chdir(project.folder)
    plan = Project().plan("tiny")
    assert (training_role(plan.recipe), evaluation_role(plan, "held_out")) == (device, evaluates_on)
    assert placed(project, monkeypatch, "pretrain", "tiny", "--phase", "main").role == device
    assert placed(project, monkeypatch, "report", "tiny").role == "cpu"
    assert placed(project, monkeypatch, "compile", "tiny").role == "tpu"  # its compiler is there, and nowhere else
    assert placed(project, monkeypatch, "held-out", *(["--device", "cuda"] if device == "cuda" else [])).role == evaluates_on


def test_a_bucket_of_google_is_reached_from_the_image_that_has_gcsfs(
    project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["push", "results/tiny", "gs://bucket/runs"], ["pull", "gs://bucket/runs", "tiny"]):
        found = placed(project, monkeypatch, *words)
        assert (found.role, found.network) == ("tpu", True)
    assert placed(project, monkeypatch, "push", "results/tiny", "file:///disk/runs").role == "cpu"


def test_user_folders_are_named_to_be_mounted(project: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path.parent / f"{tmp_path.name}-texts"
    own.mkdir()
    (own / "a.txt").write_text("text")
    own_dataset = {
        "title": "t",
        "licence": "l",
        "language": "en",
        "format": "text_files",
        "held_out_one_in": 4,
        "folder": str(own),
    }
    (project.folder / "recipes/data/sample.yaml").write_text(yaml.safe_dump(own_dataset))
    with pytest.raises(RelmError, match=f"give RELM_DATA_FOLDERS={own} before the command"):
        placed(project, monkeypatch, "pretrain", "tiny", "--phase", "main")
    with pytest.raises(RelmError, match="only with your consent"):
        placed(project, monkeypatch, "extract", "--dataset=recipes/data/sample.yaml", "--source", str(own.parent))
    typed = placed(project, monkeypatch, "extract", "--dataset=recipes/data/sample.yaml", "--source", str(own))
    assert typed.reads == (own,)
    monkeypatch.setenv("RELM_DATA_FOLDERS", str(own))
    assert placed(project, monkeypatch, "pretrain", "tiny", "--phase", "main").reads == (own,)
    assert placed(project, monkeypatch, "extract", "--dataset=recipes/data/sample.yaml").reads == (own,)
    assert placed(project, monkeypatch, "extract", "--job", '{"content": "012"}', "--source", str(own)).reads == (own,)
    monkeypatch.setenv("RELM_MIRROR", str(own))
    assert placed(project, monkeypatch, "download", "--dataset", "recipes/data/sample.yaml").reads == (own,)
    monkeypatch.setenv("RELM_MIRROR", str(project.folder / "mirror"))
    assert placed(project, monkeypatch, "download", "--file", "sample.xml").reads == ()  # inside the checkout


def test_every_rule_starts_a_step_that_is_recognised(checkout: Path) -> None:
    rules = "".join(path.read_text() for path in [checkout / "Snakefile", *sorted((checkout / "src/rules").glob("*.smk"))])
    shells = re.findall(r'shell:\n((?:\s+".*"\n)+)', rules)
    assert len(shells) >= 19
    for shell in shells:
        text = "".join(re.findall(r'"(.*)"', shell)).replace("{params.command}", "python -m relm verify")
        assert parse_step_command(f"set -euo pipefail;  {text}")[0] in list_steps(), text


def test_several_processes_are_recognised_as_well() -> None:
    command = f"{shlex.join(ranks.launcher(2))} pretrain smoke/x --phase main"
    assert parse_step_command(command) == ["pretrain", "smoke/x", "--phase", "main"]
    poprun = ranks.poprun(2, 2, 1, ["--host", "a,b", "--mpi-local-args=-x PATH -x PYTHONPATH"])
    assert parse_step_command(f"{shlex.join(poprun)} pretrain x --phase main") == ["pretrain", "x", "--phase", "main"]
    assert parse_step_command("echo relm pretrain x") == []
