"""The recipes of the TPU originals: their hyper-parameters, their graphs, and their twins."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from relm.artifact import read_json
from relm.containers.placement import evaluation_role
from relm.recipes.evaluation.evaluation_place import evaluation_device
from relm.recipes.machine.machines import Machine
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from small_project import CHECKOUT, FINE_TUNED, Commands, shipped_project
from twin_keys import changed_keys

PROJECT = Project(CHECKOUT)
ORIGINALS = (
    "roberta_base_v3-8",
    "roberta_base_v3-8_as_published",
    "bert_large_wikitext103_v3-8_fp32",
    "bert_large_wikitext103_v3-8_bf16",
    "mt5_base_romanian_diacritics_v3-8",
)


def main_phase(name: str) -> dict[str, Any]:
    return PROJECT.plan(name).recipe.pretrain["main"].model_dump()


@pytest.fixture
def shipped(tmp_path: Path) -> Commands:
    """A project with the recipes that are shipped, and nothing downloaded."""
    return shipped_project(tmp_path)


@pytest.mark.parametrize("name", ORIGINALS)
def test_an_original_says_where_it_comes_from_and_what_differs(name: str) -> None:
    recipe = PROJECT.plan(name).recipe
    assert recipe.paper is not None
    assert recipe.source is not None
    assert (recipe.run.machine, recipe.run.device, recipe.run.topology) == ("v3-8", "tpu", "v3-8")
    assert recipe.init_from is not None
    assert len(recipe.deviations) > 4
    assert all(sentence.endswith(".") for sentence in recipe.deviations)
    assert {row.measured_on for row in recipe.expect if row.metric.startswith("training.")} <= {"v3-8"}


def test_roberta_takes_as_many_steps_as_the_originals_two_data_files_give() -> None:
    epochs = [10_572, 9_520, 10_572, 9_520]
    phase = main_phase("roberta_base_v3-8")
    assert phase["global_batch_size"] == 24 * 8
    assert phase["steps"] == int(sum(epochs) / 24 / 1 / 8) == 209
    assert phase["optimizer"]["betas"] == (0.9, 0.98)
    assert (phase["optimizer"]["learning_rate"], phase["optimizer"]["weight_decay"]) == (3e-5, 0.01)
    assert phase["schedule"]["warmup_steps"] == 0
    assert (phase["masked"]["max_predictions"], phase["masked"]["whole_words"]) == (75, True)


def test_roberta_as_published_differs_only_in_the_data_and_the_mean_of_the_loss() -> None:
    right, published = (PROJECT.plan(f"roberta_base_v3-8{end}").recipe.model_dump() for end in ("", "_as_published"))
    changed = set(changed_keys(right, published)) - {"title", "deviations"}
    assert changed == {
        "pretrain.main.as_published",
        "pretrain.main.masked.sentences",
        "pretrain.main.loss_normalisation",
        "pretrain.main.loss_shares",
    }


@pytest.mark.parametrize(("precision", "batch", "name"), [("float32", 64, "fp32"), ("bfloat16", 128, "bf16")])
def test_bert_takes_three_epochs_of_the_estimated_sequences(precision: str, batch: int, name: str) -> None:
    phase = main_phase(f"bert_large_wikitext103_v3-8_{name}")
    # sequences of WikiText-2's training file, its bytes, and WikiText-103's
    sequences = round(4_627 / 10_940_747 * PROJECT.dataset("wikitext_103_raw").files["wiki.train.raw"].size)
    assert (phase["precision"], phase["global_batch_size"]) == (precision, batch)
    assert phase["steps"] == 3 * -(-sequences // batch)
    assert phase["optimizer"]["state_precision"] == "float32"
    assert (phase["optimizer"]["learning_rate"], phase["optimizer"]["gradient_clipping"]) == (5e-5, 1.0)


def test_mt5_reads_no_more_pairs_than_the_original_did() -> None:
    recipe = PROJECT.plan("mt5_base_romanian_diacritics_v3-8").recipe
    phase, documents = recipe.pretrain["main"], recipe.data.documents
    assert phase.steps * phase.global_batch_size == 9_600_000
    assert documents is not None
    assert documents * 0.99 == pytest.approx(9_600_000, rel=1e-3)
    assert not phase.optimizer.adafactor.scale_parameter
    assert recipe.expect == []


FINE_TUNING = {
    "bert_large_wikitext103_v3-8_fp32": "squad11",
    "bert_large_wikitext103_v3-8_bf16": "squad11",
    "roberta_base_v3-8": "glue_rte_roberta",
    "roberta_base_v3-8_as_published": "glue_rte_roberta",
}


@pytest.mark.parametrize("name", FINE_TUNING)
def test_a_model_is_fine_tuned_on_its_tpu_of_one_host_and_otherwise_evaluated_on_the_host(name: str) -> None:
    plan, test = PROJECT.plan(name), FINE_TUNING[name]
    found = {task: (evaluation_device(plan, task), evaluation_role(plan, task)) for task in (test, "masked_lm", "training")}
    assert found == {test: ("tpu", "tpu"), "masked_lm": ("cpu", "cpu"), "training": ("cpu", "cpu")}
    four_hosts = dataclasses.replace(plan, machine=Machine(title="four hosts", device="tpu", topology="v3-32"))
    assert evaluation_device(four_hosts, test) == "cpu"
    assert evaluation_device(PROJECT.plan(f"{name}@h100"), test) == "cuda"


def test_berts_answers_are_shown_with_those_of_its_paper_which_are_of_other_weights() -> None:
    for name in ("bert_large_wikitext103_v3-8_fp32", "bert_large_wikitext103_v3-8_bf16"):
        rows = {row.metric: row for row in PROJECT.plan(name).recipe.expect}
        assert (rows["squad11.exact_match"].value, rows["squad11.f1"].value) == (0.841, 0.909)
        assert not rows["squad11.exact_match"].comparable
        assert not rows["squad11.f1"].comparable
    options = PROJECT.plan("bert_large_wikitext103_v3-8_fp32").tests["squad11"].squad
    assert (options.learning_rate, options.epochs, options.batch_size) == (5e-5, 3, 32)


WHOLE_WAY = {"import_tokenizer", "extract", "pregenerate_table", "manifest", "pretrain", "verify", "report", "publish"}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_dry_run_shows_the_graph_from_the_downloads_to_the_verdict(name: str, shipped: Commands) -> None:
    jobs = shipped.jobs(f"results/{name}")
    assert set(jobs) >= WHOLE_WAY
    files = PROJECT.plan(name).dataset.files
    assert jobs.get("download_data", 0) == len(files)
    plan = PROJECT.plan(name)
    assert plan.tokenizer_model is not None
    assert plan.init_model is not None
    assert jobs["download_model"] == len(plan.init_model.files) + len(plan.tokenizer_model.tokenizer_files)
    assert ("convert_weights" in jobs) == plan.init_model.converted == name.startswith("mt5")


@pytest.mark.full
@pytest.mark.parametrize("name", ORIGINALS)
def test_a_smoke_twin_runs_from_real_data_to_its_published_model(name: str, tmp_path: Path, shared_data: Path) -> None:
    """On a CPU, without a network: data and tokenizers come from the folder next to the checkout, by content."""
    shipped, nowhere = shipped_project(tmp_path, without=FINE_TUNED), "http://127.0.0.1:9"
    done = shipped.snakemake(f"results/smoke/{name}", RELM_MIRROR=str(shared_data), http_proxy=nowhere, https_proxy=nowhere)
    assert done.returncode == 0, done.stdout
    results = shipped.folder / "results" / "smoke" / name
    twin = Recipe.model_validate(read_json(results / "recipe.json")["recipe"])
    assert twin.pretrain["main"].steps == len((results / "train.jsonl").read_text().splitlines())
    assert os.path.getsize(results / "model.safetensors") > 10_000
