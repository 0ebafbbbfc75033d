"""Rules that run again after a change: content decides, not time."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from small_project import Commands

REPORTED = {"report": 1, "publish": 1}
JUDGED = {"verify": 1, **REPORTED}
EVALUATED = {"evaluate": 2, **JUDGED}
TRAINED = {"pretrain": 1, **EVALUATED}
PREPARED = {"extract": 1, "train_tokenizer": 1, "pregenerate": 1, "manifest": 1, **TRAINED}


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def copy_in_place(path: Path) -> None:
    """Another file of the same content, with the time of now."""
    shutil.copyfile(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def touch(pattern: str) -> Callable[[Path], None]:
    return lambda folder: os.utime(one(folder, pattern))


def copy(pattern: str) -> Callable[[Path], None]:
    return lambda folder: copy_in_place(one(folder, pattern))


def edit(pattern: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = one(folder, pattern)
        text = path.read_text()
        assert old in text
        if path.is_symlink():
            path.unlink()
        path.write_text(text.replace(old, new, 1))

    return change


def append(pattern: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with one(folder, pattern).open("a") as file:
            file.write(text)

    return change


def delete(pattern: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return change


EXPECTATION = "expect: [{metric: held_out.nats_per_token, value: 5, tolerance: 1, basis: none, place: here}]\n"


def edit_a_rule(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: edit_rules(folder, old, new)


def edit_rules(folder: Path, old: str, new: str) -> None:
    rules = folder / "rules"
    if not rules.exists():
        shutil.copytree(folder / "src" / "rules", rules)
        for _ in range(3):
            edit("Snakefile", '"src/rules/', '"rules/')(folder)
    edit("train.smk", old, new)(rules)


NOTHING: dict[str, int] = {}
CHANGES: dict[str, tuple[Callable[[Path], None], dict[str, int]]] = {
    "nothing at all": (lambda folder: None, NOTHING),
    "a touched download of 5 MB": (touch("work/downloads/data/sample/*/sample.xml"), NOTHING),
    "a copied download of 5 MB": (copy("work/downloads/data/sample/*/sample.xml"), NOTHING),
    "a touched sidecar": (touch("work/downloads/data/sample/*/sample.xml.json"), NOTHING),
    "touched documents": (touch("work/documents/*/sample.xml.train.jsonl"), NOTHING),
    "a touched tokenizer": (touch("work/tokenizers/*/tokenizer.json"), NOTHING),
    "a touched shard": (touch("work/examples/*/sample.xml.train.bin"), NOTHING),
    "a copied shard": (copy("work/examples/*/sample.xml.train.bin"), NOTHING),
    "a touched manifest": (touch("work/examples/*/manifest.json"), NOTHING),
    "a copied manifest": (copy("work/examples/*/manifest.json"), NOTHING),
    "a touched model": (touch("work/runs/tiny/*/main/model/model.safetensors"), NOTHING),
    "another file in the model's sidecar": (
        edit(
            "work/runs/tiny/*/main/model/model.safetensors.json",
            '"config.json": {\n   "sha256": "',
            '"config.json": {\n   "sha256": "f',
        ),
        EVALUATED,
    ),
    "a touched recipe": (touch("recipes/tiny.yaml"), NOTHING),
    "a comment in the recipe": (edit("recipes/tiny.yaml", "evaluate:", "# why\nevaluate:"), NOTHING),
    "a comment in a rule": (edit_a_rule("rule pretrain:", "# A remark.\nrule pretrain:"), NOTHING),
    "a rule's command in other words": (edit_a_rule("{params.command} --log", "{params.command}  --log"), NOTHING),
    "another source of the same bytes": (edit("recipes/data/sample.yaml", "127.0.0.1:9", "127.0.0.1:10"), REPORTED),
    "another number of threads": (edit("recipes/tiny.yaml", "threads: 1", "threads: 2"), REPORTED),
    "another number of processes": (edit("recipes/tiny.yaml", "threads: 1", "threads: 1, processes: 2"), REPORTED),
    "other words": (edit("recipes/tiny.yaml", "As small as", "Smaller than"), REPORTED),
    "an expectation": (append("recipes/tiny.yaml", EXPECTATION), JUDGED),
    "another seed": (append("recipes/tiny.yaml", "seed: 5\n"), TRAINED),
    "another learning rate": (edit("recipes/tiny.yaml", "learning_rate: 1e-3", "learning_rate: 2e-3"), TRAINED),
    "another held-out share": (edit("recipes/data/sample.yaml", "one_in: 4", "one_in: 3"), PREPARED),
}


NO_CHANGES = [change for change, (_, expected) in CHANGES.items() if expected == NOTHING]


def test_nothing_runs_again_after_all_changes_that_change_no_content(finished_copy: Commands) -> None:
    for change in NO_CHANGES:
        CHANGES[change][0](finished_copy.folder)
    assert finished_copy.jobs("results/tiny") == NOTHING, "test_what_runs_again_after makes each of these changes alone"


@pytest.mark.parametrize(
    "change", [pytest.param(change, marks=[pytest.mark.full] if change in NO_CHANGES else []) for change in CHANGES]
)
def test_what_runs_again_after(change: str, finished_copy: Commands) -> None:
    make_change, expected = CHANGES[change]
    make_change(finished_copy.folder)
    assert finished_copy.jobs("results/tiny") == expected


@pytest.mark.parametrize("change", ["nothing at all", "other words", "an expectation", "another seed"])
def test_the_same_runs_again_without_snakemakes_records(change: str, finished_copy: Commands) -> None:
    make_change, expected = CHANGES[change]
    shutil.rmtree(finished_copy.folder / ".snakemake")
    make_change(finished_copy.folder)
    assert finished_copy.jobs("results/tiny") == expected


def test_a_published_folder_outlives_its_work_folder_and_new_words(finished_copy: Commands) -> None:
    shutil.rmtree(finished_copy.folder / "work/runs")
    CHANGES["other words"][0](finished_copy.folder)
    assert finished_copy.jobs("results/tiny") == NOTHING
    done = finished_copy.snakemake("-n", "results/tiny")
    assert "only training again would update the report" in " ".join(done.stdout.split())


def test_a_work_folder_of_an_earlier_version_is_continued_without_training(finished_copy: Commands) -> None:
    folder = finished_copy.folder
    run = one(folder, "work/runs/tiny/*")
    for kind in ("eval", "verify", "report"):
        for path in list((run / kind).glob("*/*")):
            path.rename((run if kind == "verify" else run / kind) / path.name)
    shutil.rmtree(run / "main/logs")
    shutil.rmtree(folder / "results")
    assert finished_copy.jobs("results/tiny") == EVALUATED, "without pretrain"
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    assert (folder / "results/tiny/train.jsonl").read_bytes() == (run / "main/train.jsonl").read_bytes()


def test_records_of_a_version_whose_rules_had_other_parameters_make_no_data_again(finished_copy: Commands) -> None:
    keyed = {"extract", "train_tokenizer", "pregenerate"}
    changed = set()
    for path in (finished_copy.folder / ".snakemake" / "metadata").rglob("*"):
        record = json.loads(path.read_text()) if path.is_file() else {}
        if record.get("rule") in keyed:
            path.write_text(json.dumps({**record, "params": ["'--documents 3'", "''"]}))
            changed.add(record["rule"])
    assert changed == keyed
    assert finished_copy.jobs("results/tiny") == NOTHING


def test_an_edited_recipe_trains_next_to_the_old_model(finished_copy: Commands) -> None:
    runs = finished_copy.folder / "work" / "runs" / "tiny"
    (before,) = runs.iterdir()
    old = (before / "main" / "model" / "model.safetensors").read_bytes()
    edit("recipes/tiny.yaml", "steps: 40", "steps: 12")(finished_copy.folder)
    edit("recipes/tiny.yaml", "[held_out, samples]", "[training]")(finished_copy.folder)
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    assert len(list(runs.iterdir())) == 2
    assert (before / "main" / "model" / "model.safetensors").read_bytes() == old
    assert (finished_copy.folder / "results" / "tiny" / "model.safetensors").read_bytes() != old
    edit("recipes/tiny.yaml", "steps: 12", "steps: 40")(finished_copy.folder)
    edit("recipes/tiny.yaml", "[training]", "[held_out, samples]")(finished_copy.folder)
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    assert "pretrain main" not in done.stdout, "the first model is still there and need not be trained again"
    assert (finished_copy.folder / "results" / "tiny" / "model.safetensors").read_bytes() == old


def test_a_changed_byte_of_content_runs_everything_after_it(finished_copy: Commands) -> None:
    documents = one(finished_copy.folder, "work/documents/*/sample.xml.train.jsonl")
    finished_copy.snakemake("--forcerun", "extract", "--until", "extract", "results/tiny")
    assert finished_copy.jobs("results/tiny") == NOTHING, "the same bytes again are no reason"
    sidecar = documents.with_name(documents.name + ".json")
    sidecar.write_text(sidecar.read_text().replace('"documents":', '"documents" :'))
    assert finished_copy.jobs("results/tiny") == {rule: count for rule, count in PREPARED.items() if rule != "extract"}


@pytest.mark.full
def test_a_changed_model_is_written_again_from_its_checkpoint_by_what_the_error_says(finished_copy: Commands) -> None:
    folder = finished_copy.folder
    config = one(folder, "work/runs/tiny/*/main/model/config.json")
    log, whole = one(folder, "work/runs/tiny/*/main/train.jsonl"), config.read_bytes()
    before = log.read_bytes()
    edit("work/runs/tiny/*/main/model/config.json", '"layer_norm_epsilon": 1e-05', '"layer_norm_epsilon": 10')(folder)
    command = ("results/tiny", "--forcerun", "evaluate")
    done = finished_copy.snakemake(*command)
    assert done.returncode != 0
    said = f"{config.relative_to(folder)}: has "
    assert said in done.stdout
    assert "or delete " in done.stdout
    config.with_name("model.safetensors.json").unlink()
    done = finished_copy.snakemake(str(config.with_name("model.safetensors.json").relative_to(folder)))
    assert done.returncode == 0, done.stdout
    assert config.read_bytes() == whole
    assert log.read_bytes() == before, "something was trained again"


def test_a_second_command_says_that_there_is_nothing_to_be_done(finished_copy: Commands) -> None:
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 0
    assert "Nothing to be done" in done.stdout


def test_checkpoints_are_nobodys_output_and_outlive_a_rerun(finished_copy: Commands) -> None:
    checkpoints = one(finished_copy.folder, "work/runs/tiny/*/main/checkpoints")
    before = {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*")}
    assert before
    done = finished_copy.snakemake("--forcerun", "pretrain", "--until", "pretrain", "results/tiny")
    assert "pretrain main  done" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*")} == before
