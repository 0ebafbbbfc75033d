"""Files of a run may be deleted: the same command makes them again, and the result has the same bytes, times aside."""

import random
import shutil
from pathlib import Path

import pytest

from relm.artifact import sha256_of
from relm.training.attested_hashes import line_facts, read_lines
from small_project import Commands

SEED = random.SystemRandom().randrange(10**6)
# Files of a result whose bytes hold no time; train.jsonl is compared without its times.
SAME = [
    *("model.safetensors", "model.safetensors.json", "config.json", "generation_config.json", "tokenizer.json"),
    *("tokenizer_config.json", "order.json", "checkpoints.jsonl", "eval/held_out.json", "eval/samples.json"),
    *("verify.json", "recipe.json"),
]


def run_files(folder: Path) -> list[Path]:
    """Return the files of the run, and those of its data but for the download.

    Left out are `generation_config.json`, which no rule declares: it is made again only with its model; and the logs, without
    which no checkpoint is resumed.
    """
    kept = ("generation_config.json", "train.jsonl", "checkpoints.jsonl")
    files = [path for name in ("runs", "examples", "documents", "tokenizers") for path in (folder / "work" / name).rglob("*")]
    return sorted(path for path in files if path.is_file() and path.name not in kept)


def delete_some(project: Commands, seed: int) -> list[str]:
    """Delete the published folder and a random part of a run's files, a few or most of them; return their names."""
    generator = random.Random(seed)
    share = generator.choice([0.05, 0.2, 0.5, 0.9])
    deleted = [path for path in run_files(project.folder) if generator.random() < share]
    for path in deleted:
        path.unlink()
    shutil.rmtree(project.folder / "results")
    names = [path.relative_to(project.folder).as_posix() for path in deleted]
    print(f"seed {seed}: deleted {names}")
    return names


def content(project: Commands) -> dict[str, object]:
    """Return the hashes of a result's files whose bytes hold no time, and of the log's lines without their times."""
    folder = project.folder / "results/tiny"
    return {name: sha256_of(folder / name) for name in SAME} | {"train.jsonl": line_facts(read_lines(folder / "train.jsonl"))}


@pytest.mark.parametrize(
    ("deleted", "makers"),
    [
        ("eval/*/*.json", {"evaluate": 2, "verify": 1, "report": 1, "publish": 1}),
        ("main/logs/train.jsonl", {"pretrain": 1, "evaluate": 2, "verify": 1, "report": 1, "publish": 1}),
        pytest.param("main/*.jsonl", {"publish": 1}, marks=pytest.mark.full),
        pytest.param("report/*/provenance.json", {"report": 1, "publish": 1}, marks=pytest.mark.full),
        pytest.param("main/checkpoints/*/*", {"publish": 1}, marks=pytest.mark.full),
    ],
)
def test_the_steps_that_make_deleted_files_are_planned(finished_copy: Commands, deleted: str, makers: dict[str, int]) -> None:
    for path in finished_copy.folder.glob(f"work/runs/tiny/*/{deleted}"):
        path.unlink()
    shutil.rmtree(finished_copy.folder / "results")
    assert makers.items() <= finished_copy.jobs("results/tiny").items()


@pytest.mark.full
def test_a_lost_index_of_documents_is_made_again_where_an_evaluation_reads_it(finished_copy: Commands) -> None:
    examples = finished_copy.folder / "work/examples"
    for path in (*examples.glob("*/*.held_out.idx"), *examples.glob("*/*.held_out.bin.json")):
        path.unlink()
    assert finished_copy.jobs("results/tiny") == {}, "nothing reads it"
    for path in finished_copy.folder.glob("work/runs/tiny/*/eval/*/held_out.json"):
        path.unlink()
    shutil.rmtree(finished_copy.folder / "results")
    assert finished_copy.jobs("results/tiny")["pregenerate"] == 1


def test_a_tokenizer_without_its_sidecar_is_trained_again_where_its_sources_were_deleted(finished_copy: Commands) -> None:
    for lost in ("documents/*/*.train.jsonl", "tokenizers/*/tokenizer.json.json", "examples/*/*.train.bin"):
        for path in finished_copy.folder.glob(f"work/{lost}"):
            path.unlink()
    for path in finished_copy.folder.glob("work/runs/tiny/*/main/model/model.safetensors*"):
        path.unlink()
    shutil.rmtree(finished_copy.folder / "results")
    planned = finished_copy.jobs("results/tiny")
    assert {"extract", "train_tokenizer", "pregenerate", "pretrain"} <= planned.keys(), planned


@pytest.mark.full
@pytest.mark.parametrize("round_", range(8))
def test_any_part_of_a_runs_files_comes_back_with_the_same_bytes(finished_copy: Commands, round_: int) -> None:
    before = content(finished_copy)
    deleted = delete_some(finished_copy, SEED + round_)
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 0, f"seed {SEED + round_}: {deleted}\n{done.stdout}"
    assert content(finished_copy) == before, f"seed {SEED + round_}: {deleted}"
    assert finished_copy.relm("check", "results/tiny").returncode == 0
    assert finished_copy.jobs("results/tiny") == {}


@pytest.mark.full
def test_a_lost_log_is_named_and_its_published_copy_is_the_remedy(finished_copy: Commands) -> None:
    (run,) = (finished_copy.folder / "work/runs/tiny").iterdir()
    log = (run / "main/train.jsonl").read_bytes()
    (run / "main/train.jsonl").unlink()
    (run / "main/model/model.safetensors.json").unlink()
    (finished_copy.folder / "results/tiny/verify.json").unlink()
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 1
    assert "train.jsonl: no such file, but state.json of step 40 attests" in done.stdout
    (run / "main/train.jsonl").write_bytes(log)
    done = finished_copy.snakemake("results/tiny")
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_a_damaged_result_is_named_and_one_of_another_fingerprint_says_what_it_replaces(finished_copy: Commands) -> None:
    (run,) = (finished_copy.folder / "work/runs/tiny").iterdir()
    published, own = finished_copy.folder / "results/tiny/model.safetensors", run / "main/model/model.safetensors"
    whole = own.read_bytes()
    with open(published, "ab") as file:
        file.write(b"x")
    assert own.read_bytes() == whole
    assert "results/tiny: DAMAGED: model.safetensors" in finished_copy.snakemake("results/tiny", "-n").stdout
    recipe = finished_copy.folder / "recipes/tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 12"))
    done = finished_copy.snakemake("results/tiny")
    assert f"replaces fingerprint {run.name} with " in done.stdout
    assert "(pretrain.main.steps 40 → 12); the files of the old one stay in work/runs/tiny/" in done.stdout
    assert f'"fingerprint": "{run.name}"' in (finished_copy.folder / "results/tiny/provenance.json").read_text()


def test_a_damaged_result_fails_and_leaves_the_other_targets(finished_copy: Commands) -> None:
    published = finished_copy.folder / "results/tiny"
    (run,) = (finished_copy.folder / "work/runs/tiny").iterdir()
    with open(published / "model.safetensors", "ab") as file:
        file.write(b"x")
    before = {path: path.read_bytes() for path in published.rglob("*") if path.is_file()}
    (warning,) = finished_copy.snakemake("results/tiny", "-n").stdout.splitlines()
    (page,) = run.glob("report/*/report.html")
    page.unlink()
    done = finished_copy.snakemake("results/tiny", str(page.relative_to(finished_copy.folder)))
    assert done.returncode == 1
    assert warning.startswith("results/tiny: DAMAGED: model.safetensors")
    assert warning in done.stdout
    assert "up to date" not in done.stdout
    assert "perplexity" not in done.stdout.lower()
    assert page.exists(), "the other target is made"
    assert {path: path.read_bytes() for path in published.rglob("*") if path.is_file()} == before
    shutil.rmtree(finished_copy.folder / "work")
    done = finished_copy.snakemake("results/tiny")
    assert (done.returncode, done.stdout.count("started")) == (1, 1), "nothing is trained again"
