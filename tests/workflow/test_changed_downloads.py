"""A download that is not the file its recipe names is planned again, and no step reads it, whatever lies next to it."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relm import cli
from relm.artifact import sha256_of, write_sidecar
from relm.recipes.plan import REFERENCE
from relm.recipes.project import Project
from small_project import FRAMES, TINY_DATASET, Commands, make_project

PAGE = "<page><title>Emended</title><ns>0</ns><id>9</id><revision><id>9</id><text>An emended page.</text></revision></page>"


def change_the_dump(project: Commands) -> bytes:
    """Put another dump into the mirror and its sha256 and size into the dataset's file; return its bytes."""
    dump = project.folder / "mirror" / "sample.xml"
    dump.write_text(dump.read_text().replace("</mediawiki>", f"{PAGE}\n</mediawiki>"))
    dataset = TINY_DATASET.format(sha256=sha256_of(dump), size=dump.stat().st_size)
    (project.folder / "recipes" / "data" / "sample.yaml").write_text(dataset)
    return dump.read_bytes()


def forge(path: Path, content: bytes) -> None:
    """Write a file that is not the recipe's, and a sidecar that vouches for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    write_sidecar(path)


def downloaded(project: Commands) -> list[bytes]:
    """The content of every copy of the dump that was downloaded, in the order of their paths."""
    return [path.read_bytes() for path in sorted((project.folder / "work/downloads/data/sample").rglob("sample.xml"))]


def test_an_edited_sha256_downloads_again_without_snakemakes_records_and_a_forged_file_is_refused(
    finished_copy: Commands,
) -> None:
    (old,) = downloaded(finished_copy)
    shutil.rmtree(finished_copy.folder / ".snakemake")
    new = change_the_dump(finished_copy)
    done = finished_copy.snakemake("results/tiny", "--until", "download_data")
    assert "download sample.xml  done" in done.stdout, done.stdout
    assert sorted(downloaded(finished_copy)) == sorted([old, new]), "another checkout may still read the old one"
    (place,) = (path for path in finished_copy.folder.rglob("downloads/**/sample.xml") if path.read_bytes() == new)
    forge(place, old)
    done = finished_copy.snakemake("results/tiny", "--until", "extract")
    assert done.returncode != 0
    assert f"the recipe expects {sha256_of(finished_copy.folder / 'mirror' / 'sample.xml')}" in done.stdout
    assert "Delete it and sample.xml.json" in done.stdout
    assert "train tokenizer" not in done.stdout


@pytest.mark.full
def test_checkouts_with_different_recipes_share_a_work_folder(finished_copy: Commands, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_project(tmp_path / "other")
    new = change_the_dump(other)
    other.environment["RELM_WORK"] = str(finished_copy.folder / "work")
    assert other.jobs("results/tiny")["download_data"] == 1
    done = other.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    assert new in downloaded(finished_copy)
    documents = [path.read_text() for path in finished_copy.folder.glob("work/documents/*/*.jsonl")]
    assert sum("An emended page" in text for text in documents) == 1
    assert finished_copy.jobs("results/tiny") == {}, "each has its own file, and neither takes the other's away"


# --- every step that reads a download ---------------------------------------------------------------------------------------

RECIPE = """
extends: tiny
tokenizer: {train: null, vocabulary_size: null, from_model: letters}
init_from: START
expect_reference: REFERENCE
evaluate: [held_out, random_windows, samples, river, "lm_eval:anything"]
"""
NAMED = {
    "recipes/data/sample.yaml": ["sample.xml"],
    "recipes/models/letters.yaml": ["vocab.json", "merges.txt"],
    "recipes/models/whole.yaml": ["model.safetensors", "config.json"],
    "recipes/models/pickled.yaml": ["pytorch_model.bin"],
    "recipes/evaluations/river.yaml": ["river.txt"],
}
SETTINGS: dict[str, dict[str, Any]] = {
    "recipes/data/sample.yaml": {"language": "en", "format": "mediawiki_xml"},
    "recipes/models/letters.yaml": {"tokenizer": "gpt2_bpe"},
    "recipes/models/whole.yaml": {"weights": True},
    "recipes/models/pickled.yaml": {"weights": True, "configuration": {"model_type": "gpt2"}},
    "recipes/evaluations/river.yaml": {"protocol": "perplexity"},
}
TARGETS = [f"results/{name}" for name in ("first", "reference/first", "reference/second", "mine")]


def name_files(folder: Path, version: str) -> None:
    """Put files of this version into the mirror and name them in the recipes, and into a user's folder."""
    for name in ("model.safetensors", "config.json"):
        (folder / "mine" / name).write_text(f"{version} of mine: {name}")
    for spec, names in NAMED.items():
        files = {}
        for name in names:
            file = folder / "mirror" / name
            file.write_text(f"{version} of {spec}: {name}")
            source = {"url": f"http://127.0.0.1:9/{name}"}
            files[name] = {"sha256": sha256_of(file), "size": file.stat().st_size, "sources": [source]}
        (folder / spec).parent.mkdir(exist_ok=True)
        (folder / spec).write_text(json.dumps({"title": spec, "licence": "MIT", "files": files, **SETTINGS[spec]}))


class PlannedJob(NamedTuple):
    """A job of a dry-run."""

    rule: str
    inputs: list[Path]
    command: list[str]


def planned(project: Commands) -> Iterator[PlannedJob]:
    """Every job that a dry-run shows, with its command."""
    shown = project.snakemake(*TARGETS, "-n", "-p", FRAMES).stdout
    for block in re.split(r"\nrule (?=\w+:\n)", shown)[1:]:
        inputs = re.search(r"^    input: (.*)$", block, re.M)
        command = re.search(r"^Shell command: python -m relm (.*)$", block, re.M)
        assert command, block
        paths = [Path(name) for name in inputs[1].split(", ")] if inputs else []
        yield PlannedJob(block.partition(":")[0], paths, shlex.split(command[1]))


def name_job(job: PlannedJob) -> str:
    """Return the rule of a job, and which evaluation it is."""
    if job.rule != "evaluate":
        return job.rule
    return f"evaluate {json.loads(job.command[job.command.index('--job') + 1])['evaluation']}"


@pytest.fixture
def jobs(project: Commands, monkeypatch: pytest.MonkeyPatch) -> list[PlannedJob]:
    """The jobs of recipes that read every kind of download, where other versions of all of them lie already."""
    folder = project.folder
    for name, start, reference in (("first", "whole", "pickled"), ("second", "pickled", "whole"), ("mine", "mine", "mine")):
        (folder / "recipes" / f"{name}.yaml").write_text(RECIPE.replace("START", start).replace("REFERENCE", reference))
    (folder / "mine").mkdir()
    own = "title: Mine\nlicence: MIT\nfolder: mine\nweights: true\n"
    (folder / "recipes" / "models" / "mine.yaml").write_text(own)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RELM_MIRROR", "mirror")
    name_files(folder, "first version")
    for plan in map(Project().plan, ("first", "second", "mine")):
        weights = [*plan.starting_weights("main"), *plan.evaluated_model(REFERENCE)]
        for path in [
            plan.documents_job.download("sample.xml"),
            plan.test_downloads("river")["file"],
            *plan.tokenizer_files,
            *weights,
        ]:
            forge(path, b"first version")
    name_files(folder, "second version")
    return list(planned(project))


def download_all(jobs: list[PlannedJob]) -> list[Path]:
    """Run the jobs that download or copy; return the files that they made."""
    downloads = [job.command for job in jobs if job.command[0] == "download"]
    assert [cli.main(command) for command in downloads] == [0] * len(downloads)
    return [Path(command[command.index("--output") + 1]) for command in downloads]


def test_every_changed_download_is_planned_and_every_step_refuses_a_forged_one(
    jobs: list[PlannedJob], capsys: pytest.CaptureFixture[str]
) -> None:
    made = download_all(jobs)
    assert sorted(path.name for path in made) == sorted(
        [*(name for names in NAMED.values() for name in names), "model.safetensors", "config.json"]
    )
    readings = [(job, path) for job in jobs for path in made if path in job.inputs]
    assert {path for _, path in readings} == set(made), "each is read by some step"
    read = []
    for job, path in readings:
        for other in (word for word in map(Path, job.command) if word.parts[:1] == ("work",) and not word.exists()):
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_text("{}")
        right = path.read_bytes()
        forge(path, right.swapcase())
        if cli.main(job.command) != 1 or f"{path}: sha256 is {sha256_of(path)}, the recipe" not in capsys.readouterr().err:
            read.append((job.rule, path.name))
        forge(path, right)
    assert not read
    assert {name_job(job) for job, _ in readings} == {
        *("extract", "import_tokenizer", "convert_weights", "pretrain", "verify_reference"),
        *("evaluate held_out", "evaluate random_windows", "evaluate perplexity", "evaluate lm_eval"),
    }
