"""From a dump, and from a folder of a user's text, to a published folder that others can use."""

import json
import re
import shutil
from pathlib import Path

import pytest

from relm.artifact import sha256_of
from small_project import Commands

PUBLISHED = {
    *(
        "README.md",
        "report.html",
        "recipe.json",
        "train.jsonl",
        "order.json",
        "checkpoints.jsonl",
        "verify.json",
        "provenance.json",
        "ro-crate-metadata.json",
    ),
    "SHA256SUMS",
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("model.safetensors", "model.safetensors.json"),
    *("eval/held_out.json", "eval/samples.json"),
}


def files_in(folder: Path) -> set[str]:
    """All files but the hidden stamp that Snakemake puts into every directory output."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}


def test_a_recipe_publishes_a_complete_folder(finished_project: Commands) -> None:
    folder = finished_project.folder / "results" / "tiny"
    assert files_in(folder) == PUBLISHED
    held_out = json.loads((folder / "eval" / "held_out.json").read_text())["figures"]
    assert held_out["tokens_scored"] > 1000
    assert 1 < held_out["nats_per_token"] < 7
    assert all(sample["text"] for sample in json.loads((folder / "eval" / "samples.json").read_text())["samples"])
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 5, 10, 15, 20, 25, 30, 35, 40]
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_damage_to_a_published_file_leaves_the_run_s_own_unharmed(finished_copy: Commands) -> None:
    published = finished_copy.folder / "results" / "tiny" / "model.safetensors"
    (trained,) = finished_copy.folder.glob("work/runs/tiny/*/main/model/model.safetensors")
    content = trained.read_bytes()
    assert published.read_bytes() == content
    with open(published, "ab") as file:
        file.write(b"x")
    assert trained.read_bytes() == content


def test_the_provenance_names_every_step_and_every_byte_from_the_dump_on(finished_project: Commands) -> None:
    records = json.loads((finished_project.folder / "results" / "tiny" / "provenance.json").read_text())
    text = json.dumps(records)
    for step in (
        "download",
        "extract",
        "train-tokenizer",
        "pregenerate",
        "manifest",
        "pretrain",
        "evaluate",
        "verify",
    ):
        assert f'"step": "{step}"' in text, step
    assert str(finished_project.folder) not in text, "no path of the machine it ran on"
    sidecar = json.loads(next(finished_project.folder.glob("work/downloads/data/sample/*/sample.xml.json")).read_text())
    assert sidecar["sha256"] in text


def test_the_report_needs_nothing_from_elsewhere(finished_project: Commands) -> None:
    page = (finished_project.folder / "results" / "tiny" / "report.html").read_text()
    assert re.findall(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=[\"'](?!data:)[^\"'#]+", page) == []
    assert "<svg" in page


# In full alone: test_graph.py compares the twin's jobs, test_report.py its page, and the stage `smoke` of .ci/run runs one.
@pytest.mark.full
def test_the_smoke_twin_runs_the_same_graph_and_says_that_its_figures_mean_nothing(project: Commands) -> None:
    done = project.snakemake("results/smoke/tiny")
    assert done.returncode == 0, done.stdout
    folder = project.folder / "results" / "smoke" / "tiny"
    assert files_in(folder) == PUBLISHED
    assert "smoke twin" in (folder / "README.md").read_text().lower()


TEXT = "The {a} of the {b} is a town in the north. It has a church, a school and {n} people, and a river runs through it.\n"


def own_text_project(project: Commands) -> Path:
    """The README's five lines: a folder, a dataset of it, a recipe."""
    texts = project.folder / "texts"
    (texts / "more").mkdir(parents=True)
    for number in range(40):
        place = texts / ("more" if number % 2 else ".") / f"text-{number}.txt"
        place.write_text("".join(TEXT.format(a=f"mill{line % 7}", b=f"lord{number}", n=line * 37) for line in range(60)))
    dataset = "title: My texts\nlicence: my own\nlanguage: en\nformat: text_files\nfolder: texts\n"
    (project.folder / "recipes" / "data" / "mine.yaml").write_text(dataset)
    (project.folder / "recipes" / "mine.yaml").write_text(
        "extends: tiny\ntitle: Mine\ndata: {dataset: mine}\nevaluate: [held_out]\n"
    )
    return texts


def test_a_folder_of_text_is_a_dataset_and_an_edited_text_trains_another_model(project: Commands) -> None:
    texts = own_text_project(project)
    done = project.snakemake("results/mine")
    assert done.returncode == 0, done.stdout
    assert files_in(project.folder / "results" / "mine") == PUBLISHED - {"eval/samples.json"}
    (texts / "text-0.txt").touch()
    assert project.jobs("results/mine") == {}
    (texts / "text-0.txt").write_text("Something else altogether.\n")
    jobs = project.jobs("results/mine")
    assert (jobs["extract"], jobs["pretrain"], jobs["publish"]) == (1, 1, 1)
    (texts / "text-0.txt").unlink()
    assert project.jobs("results/mine")["extract"] == 1


def test_a_wrong_download_publishes_nothing_and_names_both_hashes(project: Commands) -> None:
    dump = project.folder / "mirror" / "sample.xml"
    dump.write_bytes(dump.read_bytes()[:-1] + b"x")
    done = project.snakemake("results/tiny")
    assert done.returncode != 0
    assert "sample.xml" in done.stdout
    assert not list((project.folder / "work" / "downloads" / "data" / "sample").rglob("sample.xml"))
    assert not (project.folder / "results").exists() or not (project.folder / "results" / "tiny").exists()


@pytest.mark.full
def test_a_published_folder_gives_another_run_its_weights_and_tokenizer(finished_copy: Commands) -> None:
    """`init_from` and `tokenizer.from_model`: downloaded by sha256, loaded, and in the fingerprint."""
    folder = finished_copy.folder
    source = "{sha256: '%s', size: %d, sources: [{url: 'http://127.0.0.1:9/%s'}]}"
    entries = []
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        published = folder / "results" / "tiny" / name
        shutil.copy(published, folder / "mirror" / name)
        entries.append(f"  {name}: {source % (sha256_of(published), published.stat().st_size, name)}\n")
    model = "title: Ours\nlicence: MIT\nweights: true\ntokenizer: tokenizers_json\nfiles:\n" + "".join(entries)
    (folder / "recipes" / "models" / "ours.yaml").write_text(model)
    text = (folder / "recipes" / "tiny.yaml").read_text()
    old = "tokenizer: {train: byte_level_bpe, vocabulary_size: 400}"
    assert old in text
    continued = text.replace(old, "tokenizer: {from_model: ours}\ninit_from: ours").replace("steps: 40", "steps: 6")
    continued = continued.replace("evaluate: [held_out, samples]", "evaluate: [training]")
    (folder / "recipes" / "continued.yaml").write_text(continued)
    done = finished_copy.snakemake("results/continued")
    assert done.returncode == 0, done.stdout
    first = json.loads((folder / "results" / "continued" / "train.jsonl").read_text().splitlines()[0])["loss"]
    last = json.loads((folder / "results" / "tiny" / "train.jsonl").read_text().splitlines()[-1])["loss"]
    begun = json.loads((folder / "results" / "tiny" / "train.jsonl").read_text().splitlines()[0])["loss"]
    assert abs(first - last) < abs(first - begun) / 2, "it starts where the other run ended"
    jobs = finished_copy.jobs("results/continued")
    assert jobs == {}
