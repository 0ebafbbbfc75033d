"""A dataset with `ranges`: a job for each range, killed and resumed, and the documents of a dataset without."""

import time
from pathlib import Path

from relm.artifact import sha256_of
from small_project import Commands, kill_session


def hash_documents(project: Commands) -> dict[str, str]:
    """Return name -> sha256 of the documents of all shards and of their sidecars."""
    paths = project.folder.glob("work/documents/*/*.jsonl*")
    return {path.name: sha256_of(path) for path in paths if not path.name.endswith(".record.json")}


def wait_for_two(folder: Path, pattern: str) -> None:
    """Wait until there are two files of a pattern; then Snakemake has noted that the first job has ended."""
    for _ in range(3000):
        if len(list(folder.glob(pattern))) == 2:
            return
        time.sleep(0.02)
    raise AssertionError(f"{pattern} did not appear twice")


def test_ranges_are_resumed_one_by_one_and_the_documents_are_the_same(project: Commands, finished_project: Commands) -> None:
    dataset = project.folder / "recipes" / "data" / "sample.yaml"
    dataset.write_text(dataset.read_text() + "ranges: 3\n")
    jobs = project.jobs("results/tiny")
    assert (jobs["extract_range"], jobs["extract"]) == (3, 1)
    process = project.start("results/tiny", "--until", "extract")
    try:
        wait_for_two(project.folder, "work/documents/*/ranges/*-of-3.held_out.jsonl.json")
    finally:
        kill_session(process)
    assert 0 < project.jobs("results/tiny")["extract_range"] < 3
    done = project.snakemake("results/tiny", "--until", "extract")
    assert done.returncode == 0, done.stdout
    found = hash_documents(project)
    assert found == hash_documents(finished_project)
    assert len(found) == 4
