"""The smoke twins of the TPU recipes through the graph, down to results/smoke/NAME, with their pretrain step on XLA devices."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from recipe_twins import TWINS

from question_files import SAMPLE
from relm.artifact import read_json, sha256_of
from relm.recipes.project import Project
from run_products import list_unknown
from small_project import CHECKOUT, FINE_TUNED, Commands, shipped_project

NOWHERE = "http://127.0.0.1:9"


def environment(devices: int, mirror: Path) -> dict[str, str]:
    """Return the variables of XLA's CPU client with this many devices, and of a mirror as the only source of downloads."""
    flags = os.environ["XLA_FLAGS"].replace("level=0", "level=1")
    client = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "XLA_FLAGS": flags}
    return {**client, "RELM_MIRROR": str(mirror), "http_proxy": NOWHERE, "https_proxy": NOWHERE}


def stand_in(listed: Path, mirror: Path, **contents: Path) -> None:
    """Replace the bytes that a dataset's or model's file names by others, which only the mirror has."""
    facts = yaml.safe_load(listed.read_text())
    for name, content in contents.items():
        (remote,) = [facts["files"][file] for file in facts["files"] if file.replace(".", "_") == name]
        remote |= {
            "sha256": sha256_of(content),
            "size": content.stat().st_size,
            "sources": [{"url": f"{NOWHERE}/{content.name}"}],
        }
        shutil.copy(content, mirror / content.name)
    listed.write_text(yaml.safe_dump(facts, sort_keys=False))


def project_with_stand_ins(folder: Path) -> Commands:
    """Write the shipped project for BERT's recipes.

    The committed prose stands in for WikiText's articles, a small vocabulary for BERT's, and a few questions for SQuAD.
    """
    project, mirror, data = shipped_project(folder), folder / "mirror", CHECKOUT / "tests" / "data"
    mirror.mkdir()
    (folder / "recipes").unlink()
    shutil.copytree(CHECKOUT / "recipes", folder / "recipes")
    prose = (data / "prose-sample.txt").read_text().split("\n\n")
    text = folder / "articles.raw"
    articles = [f" = Article {n} = \n \n {' '.join(part.split())} \n \n" for n, part in enumerate(prose * 8)]
    text.write_text("".join(articles))
    stand_in(folder / "recipes" / "data" / "wikitext_2_raw_valid.yaml", mirror, wiki_valid_raw=text)
    vocabulary = data / "prose-vocabulary.txt"
    stand_in(folder / "recipes" / "models" / "bert_base_uncased_tokenizer.yaml", mirror, vocab_txt=vocabulary)
    questions = {"train-v1_1_json": SAMPLE, "dev-v1_1_json": SAMPLE}
    stand_in(folder / "recipes" / "evaluations" / "squad11.yaml", mirror, **questions)
    return project


def published(project: Commands, name: str, devices: int) -> Path:
    """Check the published folder of a twin for all its steps on this many XLA devices."""
    results = project.folder / "results" / "smoke" / name
    recipe = read_json(results / "recipe.json")["recipe"]
    assert recipe["run"]["device"] == "tpu"
    steps = recipe["pretrain"]["main"]["steps"]
    assert len((results / "train.jsonl").read_text().splitlines()) == steps
    made_on = yaml.safe_load((results / "checkpoints.jsonl").read_text().splitlines()[-1])["made_on"]
    assert (made_on["device"], made_on["name"], made_on["devices"]) == ("tpu", "XLA:CPU", devices)
    facts = read_json(results / "device.json")["processes"]
    assert sum(process["steps"] for process in facts) == steps
    assert all(process["compiles"] and process["executions"] >= process["steps"] for process in facts)
    assert "On the device" in (results / "report.html").read_text()
    return results


def test_a_twin_runs_from_its_downloads_to_its_report_with_its_training_on_xla(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "bert_large_wikitext103_v3-8_fp32"
    project = project_with_stand_ins(tmp_path)
    here = environment(8, tmp_path / "mirror")
    planned = project.snakemake(f"results/smoke/{name}", "-n", "-p", **here).stdout
    (command,) = re.findall(r"python -m (relm pretrain .*)", planned)
    words = shlex.split(command)[1:]
    done = project.snakemake(words[words.index("--manifest") + 1], **here)
    assert done.returncode == 0, done.stdout

    trained = project.relm(*words, "--tpu-report", **here)
    assert trained.returncode == 0, trained.stderr
    report = dict(re.findall(r"^Metric: (\w+)\n  TotalSamples: (\d+)", trained.stdout, re.MULTILINE))
    (device,) = project.folder.glob("work/runs/smoke/*/*/main/device.json")
    (facts,) = read_json(device)["processes"]
    assert (int(report["CompileTime"]), int(report["ExecuteReplicatedTime"])) == (facts["compiles"], facts["executions"])
    assert facts["compiles"] == 2, "the initial state and the step"

    done = project.snakemake(f"results/smoke/{name}", **here)
    assert done.returncode == 0, done.stdout
    assert "pretrain main" not in done.stdout, "the graph trains again what the command by hand has trained"
    results = published(project, name, 8)
    figures = read_json(results / "eval" / "squad11.json")["figures"]
    assert (figures["seeds"], figures["questions"]) == (2, 5)
    steps = read_json(results / "provenance.json")["steps"]
    (tuned,) = (step for step in steps if step["outputs"][0]["path"].endswith("/squad11.json"))
    assert tuned["device"] == "XLA:CPU", "the host's CPU fine-tuned"
    runs = list(project.folder.glob("work/runs/smoke/*/*/eval/squad11/*/seed-*/squad"))
    assert [len(read_json(run / "device.json")["processes"]) for run in runs] == [1, 1]
    assert not list(project.folder.glob("work/runs/smoke/*/*/eval/squad11/*/compiled"))
    monkeypatch.chdir(project.folder)
    assert list_unknown(Project().plan(f"smoke/{name}")) == []


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TWINS)
def test_every_twin_runs_from_real_data_to_its_report_with_its_training_on_xla(
    name: str, tmp_path: Path, shared_data: Path
) -> None:
    project, devices = shipped_project(tmp_path, without=FINE_TUNED), TWINS[name]
    done = subprocess.run(
        project.command(f"results/smoke/{name}"),
        cwd=project.folder,
        env={**project.environment, **environment(devices, shared_data)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    published(project, name, devices)
