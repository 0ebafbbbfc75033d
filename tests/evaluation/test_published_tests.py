"""Every shipped test loads, pins its file, and has the sha256 of the real data next to the checkout."""

from pathlib import Path

import pytest

from relm.artifact import checked_sidecar
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from relm.examples.fine_tuning.glue import TASKS
from relm.recipes.evaluation.evaluations import EVALUATIONS
from relm.recipes.evaluation.published_tests import load_test
from relm.recipes.identity import evaluation_identity
from relm.recipes.project import Project
from small_project import CHECKOUT

TESTS = sorted((CHECKOUT / "recipes" / "evaluations").glob("*.yaml"))
# Not among the real data.
ABSENT = {
    "wikitext2": "../shared/data lacks WikiText-2's processed test file",
    **{f"squad11{options}": "../shared/data lacks SQuAD" for options in ("", "_graphcore")},
    "hellaswag": "../shared/data lacks HellaSwag",
    "arc_easy": "../shared/data lacks ARC",
    "piqa": "../shared/data lacks PIQA",
    **{f"glue_{task}": "../shared/data lacks GLUE" for task in (*TASKS, "rte_roberta")},
}


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_a_test_loads_and_files_fetched_in_an_archive_are_pinned(path: Path) -> None:
    test = load_test(path)
    assert Project(CHECKOUT).test(path.stem) == test
    for source in (source for remote in test.files.values() for source in remote.sources):
        assert source.member is None or source.sha256 is not None
        assert source.huggingface is None or len(source.revision or "") == 40


def test_each_task_of_glue_has_a_test_with_its_own_files() -> None:
    tests = {path.stem: load_test(path) for path in TESTS}
    found = {name: test for name, test in tests.items() if test.protocol == "glue" and name != "glue_rte_roberta"}
    assert {name: test.glue.task for name, test in found.items()} == {f"glue_{task}": task for task in TASKS}
    for name, test in found.items():
        splits = {"training_file": "train", "file": "validation"}
        if name == "glue_mnli":
            splits |= {"file": "validation_matched", "mismatched_file": "validation_mismatched"}
        assert test.inputs == {key: f"{name}_{split}.parquet" for key, split in splits.items()}
        for key, split in splits.items():
            for source in test.files[test.inputs[key]].sources:
                assert f"{source.url or source.file}".endswith(f"{test.glue.task}/{split}-00000-of-00001.parquet")
        assert (test.glue.learning_rate, test.glue.epochs, test.glue.batch_size, test.glue.seeds) == (2e-5, 3, 32, 5)


def test_the_options_of_the_authors_take_as_many_updates_as_they_publish() -> None:
    squad, glue = (
        load_test(CHECKOUT / "recipes" / "evaluations" / f"{name}.yaml") for name in ("squad11_graphcore", "glue_rte_roberta")
    )
    assert int(87_599 / squad.squad.batch_size * squad.squad.epochs) == 168
    assert int(2_490 / glue.glue.batch_size * glue.glue.epochs) == 2036
    assert int(glue.glue.warmup_share * 2036) == 122


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_a_mirror_of_real_data_provides_it_by_content(
    path: Path, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELM_MIRROR", str(shared_data))
    for variable in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")  # whatever is not in the mirror fails at once
    test = load_test(path)
    remote = test.files[test.file]
    try:
        summary = download(test.file, remote, tmp_path / test.file)
    except RelmError:
        if path.stem in ABSENT:
            pytest.skip(ABSENT[path.stem])
        raise
    assert f"{remote.size:,} bytes from {shared_data}" in summary
    assert checked_sidecar(tmp_path / test.file)["sha256"] == remote.sha256


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("protocol: lambada", "perplexity: read with protocol: perplexity only"),
        ("protocol: perplexity\nlambada: {text_key: t}", "lambada: read with protocol: lambada only"),
    ],
)
def test_options_of_another_protocol_are_refused(changed: str, message: str, tmp_path: Path) -> None:
    content = (CHECKOUT / "recipes" / "evaluations" / "wikitext103.yaml").read_text()
    (tmp_path / "a.yaml").write_text(content.replace("protocol: perplexity", changed))
    with pytest.raises(RelmError, match=message):
        load_test(tmp_path / "a.yaml")


def test_only_options_that_differ_from_their_defaults_decide_whether_a_test_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(CHECKOUT)
    plan = Project().plan("quickstart")
    test = load_test(CHECKOUT / "recipes" / "evaluations" / "wikitext2_raw.yaml")
    found = evaluation_identity(EVALUATIONS["perplexity"], "wikitext2_raw", plan.recipe, test=test, language="en")
    assert found["options"] == {"documents": "joined_rows", "windows": "strided", "stride": 512}
