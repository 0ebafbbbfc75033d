"""Sources that were deleted after use are known by their records, and are the same when they are made again."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_executor_plugins.settings import ExecMode

from finished_runs import FinishedRun
from relm.artifact import read_json, record_of, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.graph import shards
from relm.graph.shards import Sources, are_made_from, list_all_sources
from relm.plan.jobs import RecipeJob
from relm.plan.products import published_files
from relm.provenance.deleted_sources import SHOWN, describe_deleted, find_deleted, recorded_sha256
from relm.provenance.step_record import collect, record
from relm.recipes.identity import is_source
from relm.recipes.jobs import SPLITS
from relm.reporting.check import check_folders
from relm.reporting.publish import publish
from relm.reporting.status import describe_progress

SHARD = "a.xml"


def sources_of(run: Any) -> list[Path]:
    """Return the downloads and documents of a run."""
    downloads = [run.plan.documents_job.download(shard) for shard in run.plan.shards]
    return [*downloads, *(run.plan.kept_job.documents(shard, split) for shard in run.plan.shards for split in SPLITS)]


def delete(paths: list[Path]) -> dict[str, str]:
    """Delete some files as Snakemake does; return path -> sha256."""
    sha256 = {str(path): read_json(sidecar_of(path))["sha256"] for path in paths}
    for path in paths:
        path.unlink()
    return sha256


def make_documents_again(run: Any, content: str) -> None:
    """Run the step that makes the documents of a shard, whose sidecars Snakemake has deleted before."""
    documents = [run.plan.kept_job.documents(SHARD, split) for split in SPLITS]
    for path in documents:
        sidecar_of(path).unlink()
    with record("extract", [], documents, ["relm", "extract"]):
        for path in documents:
            path.write_text(content.format(split=path.name.split(".")[-2]))
            write_sidecar(path)


def test_documents_that_are_made_again_must_be_the_same(run: FinishedRun) -> None:
    documents = run.plan.kept_job.documents(SHARD, "train")
    before = delete(sources_of(run))[str(documents)]
    make_documents_again(run, '{{"id":"{split}"}}\n')
    assert recorded_sha256(documents) == before
    delete([run.plan.kept_job.documents(SHARD, split) for split in SPLITS])
    with pytest.raises(RelmError) as error:
        make_documents_again(run, '{{"id":"another {split}"}}\n')
    now = read_json(sidecar_of(documents))["sha256"]
    assert f"{documents}: made again with sha256 {now}; {record_of(documents)} has {before}" in str(error.value)
    assert recorded_sha256(documents) == before, "the record stays"
    record_of(documents).unlink()
    make_documents_again(run, '{{"id":"another {split}"}}\n')
    assert recorded_sha256(documents) == now


def test_examples_are_finished_only_while_the_record_of_their_documents_is_that_of_what_they_were_made_from(
    run: FinishedRun,
) -> None:
    documents = [run.plan.kept_job.documents(SHARD, split) for split in SPLITS]
    examples = run.plan.examples("main", SHARD, "train")
    delete(documents)
    assert are_made_from(examples, documents)
    record_of(documents[0]).unlink()
    assert not are_made_from(examples, documents)
    make_documents_again(run, '{{"id":"another {split}"}}\n')
    assert not are_made_from(examples, documents)


def test_deleted_sources_are_listed_with_their_sha256_by_check_status_and_report(run: FinishedRun) -> None:
    plan = run.plan
    deleted = delete(sources_of(run))
    assert find_deleted(collect([run.verify])) == deleted
    run.report()
    page = (plan.report_folder / "report.html").read_text()
    marks = re.findall(r'title="sha256 (\w+), \d+ bytes">\w+</span> <span class="soft">deleted after use<', page)
    assert set(marks) == set(deleted.values())
    publish(published_files(plan) | {"verify.json": run.verify}, plan.results)
    text = check_folders([plan.results])
    assert text.startswith(f"{plan.results}: whole")
    assert "6 sources were deleted after use; recorded:\n" in text
    for path, sha256 in deleted.items():
        assert f"{path}: sha256 {sha256}" in text
    stages = describe_progress(plan)
    assert "download     done, 2 deleted after use; their sha256 is in the records that stayed" in stages
    assert "extract      done, 4 deleted after use" in stages
    plan.examples("main", SHARD, "train").unlink()
    assert "pregenerate  4 of 5\n" in describe_progress(plan), "examples are never deleted after use"


def test_of_a_run_that_keeps_its_sources_or_was_copied_elsewhere_none_is_deleted(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = collect([run.verify])
    assert find_deleted(records) == {}
    delete(sources_of(run))
    monkeypatch.setenv("RELM_WORK", "elsewhere")
    assert find_deleted(records) == {}


def test_all_sources_are_found_by_their_records_which_lead_nowhere_else(run: FinishedRun) -> None:
    download, *documents = [path for path in sources_of(run) if SHARD in path.name]
    assert list_all_sources(documents[:1]) == {download, documents[0]}
    for path in (run.plan.examples("main", SHARD, "train"), run.plan.tokenizer, download.parent / "../../../../runs/a.xml"):
        assert not is_source(path)


def test_sources_that_an_earlier_command_kept_are_deleted_unless_a_job_reads_them(
    run: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    download, train, held_out = [path for path in sources_of(run) if SHARD in path.name]
    settings = SimpleNamespace(targets=[str(held_out)], forceall=False, forcerun=(), forcetargets=False)
    workflow = SimpleNamespace(
        storage_settings=SimpleNamespace(notemp=False),
        cores=1,
        register_resource=lambda name, value: None,
        dag_settings=settings,
        exec_mode=ExecMode.DEFAULT,
        touch=False,
        dag=SimpleNamespace(needrun_jobs=lambda: [SimpleNamespace(input=[str(download)])]),
    )
    sources = Sources(workflow, {"shards_on_disk": 1})
    examples = run.plan.examples("main", SHARD, "train")
    examples.with_suffix(".idx").touch()
    job = RecipeJob(["pregenerate"], {"train": examples}, hashed={"documents": [train, held_out]})
    monkeypatch.setattr(shards, "find_job", lambda rule, wildcards: job)
    inputs = sources.inputs("pregenerate")(None)
    assert not Path(inputs["used_up"]).exists(), "the examples are made from them"
    sources.delete_used_up()
    assert [path.exists() for path in (download, train, held_out)] == [True, False, True]
    assert sidecar_of(train).exists()
    settings.targets = [str(sidecar_of(examples))]
    assert "documents" in sources.inputs("pregenerate")(None)


def test_many_deleted_sources_are_counted() -> None:
    lines = describe_deleted({f"work/documents/x-{number}/a.train.jsonl": "0" * 64 for number in range(1000)})
    assert lines[0] == "1,000 sources were deleted after use; recorded:"
    assert lines[-1].startswith(f"  and {1000 - SHOWN:,} more")
    assert describe_deleted({}) == []
