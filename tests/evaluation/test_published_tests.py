"""Every shipped test loads, pins its file, and has the sha256 of the real data beside the checkout."""

import math
import re
from pathlib import Path

import pytest
import torch
from published_texts import gpt2_tokenizer, unpacked

from relm.artifact import checked_sidecar, read_json
from relm.corpus.download.fetch import download
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.lambada import evaluate_lambada
from relm.evaluation.text_perplexity import evaluate_text
from relm.examples.fine_tuning.glue import TASKS
from relm.models.gpt2 import Gpt2, Gpt2Config
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


def test_there_are_tests_of_each_protocol() -> None:
    assert {path.stem for path in TESTS} >= {"lambada", "wikitext103", "wikitext2", "wikitext2_raw", "wikitext_lm_eval"}
    assert {load_test(path).protocol for path in TESTS} == {"perplexity", "lambada", "multiple_choice", "squad", "glue"}


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_a_test_loads_and_files_fetched_in_an_archive_are_pinned(path: Path) -> None:
    test = load_test(path)
    assert Project(CHECKOUT).test(path.stem) == test
    for source in (source for remote in test.files.values() for source in remote.sources):
        assert source.member is None or source.sha256 is not None
        assert source.huggingface is None or len(source.revision or "") == 40


def test_each_format_of_multiple_choice_has_a_test_and_files_without_a_hash_name_a_commit() -> None:
    tests = {path.stem: load_test(path) for path in TESTS}
    formats = {name: test.multiple_choice.format for name, test in tests.items() if test.protocol == "multiple_choice"}
    assert formats == {"arc_easy": "arc", "hellaswag": "hellaswag", "piqa": "piqa"}
    for name, remote in ((name, remote) for name, test in tests.items() for remote in test.files.values()):
        for source in remote.sources if not remote.is_pinned else ():
            assert re.search(r"[0-9a-f]{40}", f"{source.revision} {source.url}"), name


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


def test_tests_of_one_file_agree_on_it() -> None:
    raw = [load_test(CHECKOUT / "recipes" / "evaluations" / f"{name}.yaml") for name in ("wikitext2_raw", "wikitext_lm_eval")]
    assert raw[0].files == raw[1].files
    assert raw[0].perplexity != raw[1].perplexity
    for names in (("squad11", "squad11_graphcore"), ("glue_rte", "glue_rte_roberta")):
        ours, theirs = (load_test(CHECKOUT / "recipes" / "evaluations" / f"{name}.yaml") for name in names)
        assert (ours.files, ours.inputs) == (theirs.files, theirs.inputs)
        assert (ours.squad, ours.glue) != (theirs.squad, theirs.glue)


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


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("wikitext103", {"tokens": 270_330, "windows": 2, "words": 245_565, "bytes": 1_281_077}),
        ("wikitext103_disjoint", {"tokens": 270_330, "tokens_scored": 128}),
        ("wikitext103_valid", {"tokens": 236_892, "words": 217_641}),
        ("wikitext2_raw", {"tokens": 287_644, "tokens_scored": 126}),
        ("wikitext2_raw_disjoint", {"tokens": 287_644, "tokens_scored": 126}),
        ("wikitext_lm_eval", {"documents": 2}),
        ("lambada", {"examples": 2}),
    ],
)
def test_real_data_is_scored_by_every_protocol(name: str, counts: dict[str, int], shared_data: Path, tmp_path: Path) -> None:
    test = load_test(CHECKOUT / "recipes" / "evaluations" / f"{name}.yaml")
    (packed,) = shared_data.rglob(f"{test.file}.xz")
    file = unpacked(shared_data, str(packed.relative_to(shared_data).with_suffix("")), tmp_path)
    tokenizer = gpt2_tokenizer(shared_data, tmp_path)
    model = Gpt2(Gpt2Config(layers=1, heads=1, hidden_size=8, positions=64, vocabulary_size=50_257))
    model.initialise(torch.Generator().manual_seed(0))
    (tmp_path / "model").mkdir()
    model.save_folder(tmp_path / "model", {})
    given = {
        "model_folder": tmp_path / "model",
        "tokenizer": tokenizer,
        "file": file,
        "output": tmp_path / "e.json",
        "task": name,
        "file_sha256": test.files[test.file].sha256,
        "limit": 2,
        "execution": Execution(threads=1),
    }
    if test.protocol == "lambada":
        evaluate_lambada(**given, options=test.lambada)
    else:
        evaluate_text(**given, options=test.perplexity)
    figures = read_json(tmp_path / "e.json")["figures"]
    assert {key: figures[key] for key in counts} == counts
    if test.protocol == "perplexity":
        assert figures["nats_per_token"] == pytest.approx(math.log(50_257), abs=0.2)  # it knows nothing


def test_only_options_that_differ_from_their_defaults_decide_whether_a_test_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(CHECKOUT)
    plan = Project().plan("quickstart")
    test = load_test(CHECKOUT / "recipes" / "evaluations" / "wikitext2_raw.yaml")
    found = evaluation_identity(EVALUATIONS["perplexity"], "wikitext2_raw", plan.recipe, test=test, language="en")
    assert found["options"] == {"documents": "joined_rows", "windows": "strided", "stride": 512}
