"""Reading recipes: what is accepted, what is rejected, and the message."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from relm.errors import RelmError
from relm.recipes.datasets import load_dataset
from relm.recipes.published_models import load_model
from relm.recipes.recipe import Recipe, load_recipe
from relm.recipes.run import MOST_THREADS, OnMachine, Run

VALID = """
title: A test
data: {dataset: letters}
tokenizer: {train: byte_level_bpe, vocabulary_size: 300}
model: {architecture: gpt2, layers: 1, heads: 2, hidden_size: 8, positions: 16}
pretrain:
  main: {objective: causal, sequence_length: 16, global_batch_size: 2, steps: 5, optimizer: {learning_rate: 1e-3}}
"""


def recipe_file(tmp_path: Path, text: str, name: str = "test") -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(RelmError) as caught:
        load_recipe(recipe_file(tmp_path, text))
    return str(caught.value)


def test_a_valid_recipe_loads_with_its_defaults(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_file(tmp_path, VALID))
    assert isinstance(recipe, Recipe)
    assert recipe.pretrain["main"].optimizer.learning_rate == 0.001
    assert recipe.pretrain["main"].schedule.name == "constant"
    assert recipe.seed == 0


def test_all_errors_come_at_once_with_their_paths_and_a_suggestion(tmp_path: Path) -> None:
    text = VALID.replace("layers: 1", "depth: 1").replace("steps: 5", "steps: -5").replace("dataset: letters", "dataset: 'a b'")
    message = refusal(tmp_path, text.replace("title: A test", "title: A test\nrun: {theads: 2}"))
    assert message.startswith(f"{tmp_path}/test.yaml: 5 errors")
    assert "run.theads: unknown key; did you mean threads?" in message
    assert "model.depth: unknown key; known keys: " in message
    assert "model.layers: missing" in message
    assert "pretrain.main.steps: expected greater than 0; found -5" in message
    assert "data.dataset:" in message


MISSPELT = {"layers": "layrs", "vocabulary_size": "vocabulary_sise", "learning_rate": "lerning_rate", "dataset": "datset"}


@pytest.mark.parametrize(("key", "wrong"), MISSPELT.items())
def test_a_misspelt_key_hides_the_faults_that_it_causes(tmp_path: Path, key: str, wrong: str) -> None:
    _, *faults = refusal(tmp_path, VALID.replace(key, wrong)).splitlines()
    assert [fault.rpartition(".")[2] for fault in faults] == [f"{wrong}: unknown key; did you mean {key}?"]


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    recipe_file(tmp_path, VALID, "quickstart")
    with pytest.raises(RelmError, match="did you mean quickstart"):
        load_recipe(tmp_path / "quikstart.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("heads: 2", "heads: 3", "heads (3) must divide hidden_size (8)"),
        ("positions: 16", "positions: 8", "pretrain.main.sequence_length (16) exceeds model.positions (8)"),
        ("vocabulary_size: 300", "from_model: gpt2", "a tokenizer has either from_model or train"),
        ("steps: 5", "steps: 5, schedule: {warmup_steps: 5}", "schedule.warmup_steps (5) must be below steps (5)"),
        ("title: A test", "title: A test\nrun: {micro_batch_size: 3}", "run.micro_batch_size (3) must divide"),
        ("title: A test", "title: A test\nrun: {topology: v3-8}", "run: topology: with device: cpu expected none; found v3-8"),
        ("title: A test", "title: A test\nrun: {device: tpu, topology: v3-9}", "topology: with device: tpu expected one of"),
        ("title: A test", "title: A test\nrun: {device: tpu, topology: v3-8}", "the 8 devices of run.topology (v3-8) must"),
        (
            "title: A test",
            "title: A test\nrun: {device: tpu, topology: v3-1, loss_chunk: 8}",
            "run: loss_chunk (8) needs device: cpu or cuda, found tpu; remove it",
        ),
        ("title: A test", "title: A test\nseed: yes", "seed: expected a number (YAML reads yes"),
        ("title: A test", "title: A test\nseed: '4'", "seed: expected a number, without quotes"),
        ("title: A test", "title: A test\nrun: {compile: 'yes'}", "run.compile: expected true or false, without quotes; found"),
        ("title: A test", "title: 2024", "title: expected text, and YAML reads this as a number: put it in quotes; found 2024"),
        ("title: A test", "title: 2026-01-15", "reads this as a date: put it in quotes; found 2026-01-15"),
        ("\ntitle: A test", "\ntitle: A test\nrun: {qqq: 1}", "run.qqq: unknown key; known keys: micro_batch_size, threads"),
        ("\ntitle: A test", "\nseed: 1\nseed: 2\ntitle: A test", "line 3: key 'seed' was already given in line 2"),
        (
            "title: A test",
            "title: A test\nexpect: [{metric: a.b, value: 3.0, tolerance: 0.1, place: P}]",
            "expect.0.basis: missing",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refusal(tmp_path, VALID.replace(old, new))


@pytest.mark.parametrize(
    ("topology", "one", "alone"),
    [("v3-8", "v3-1", True), ("v5e-8", "v5e-1", False), ("v5p-16", "v5p-2", True), (None, None, False)],
)
def test_a_run_on_one_device_has_its_generations_slice_of_one(topology: str | None, one: str | None, alone: bool) -> None:
    run = Run(device="tpu", topology=topology).on_one_device()
    assert (run.topology, run.devices_of_process, run.one_of_host) == (one, 1, alone)


def test_extends_lays_mappings_over_and_replaces_lists(tmp_path: Path) -> None:
    recipe_file(tmp_path, VALID + "evaluate: [held_out, samples]\nrun: {threads: 2, log_interval: 7}\n", "below")
    above = "extends: below\ntitle: Another\nevaluate: [samples]\nrun: {threads: 4}\npretrain: {main: {steps: 9}}\n"
    recipe = load_recipe(recipe_file(tmp_path, above))
    assert (recipe.title, recipe.evaluate, recipe.run.threads, recipe.run.log_interval) == ("Another", ["samples"], 4, 7)
    assert (recipe.pretrain["main"].steps, recipe.pretrain["main"].sequence_length) == (9, 16)


def test_extends_in_a_circle_is_refused(tmp_path: Path) -> None:
    recipe_file(tmp_path, "extends: test\n", "other")
    assert "extends goes in a circle: test -> other -> test" in refusal(tmp_path, "extends: other\n")


def test_extending_an_unknown_recipe_names_the_nearest(tmp_path: Path) -> None:
    recipe_file(tmp_path, VALID, "quickstart")
    assert "there is no recipe 'quickstrat' (did you mean quickstart?)" in refusal(tmp_path, "extends: quickstrat\n")


DATASET = """
title: Letters
licence: CC0-1.0
language: en
format: mediawiki_xml
files:
  a.xml: {sha256: %s, size: 3, sources: [%s]}
"""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{url: 'https://a/b', npm: 'a@1.0.0', member: c}", "a source names exactly one of url, pypi, npm, huggingface"),
        ("{pypi: 'a==1', file: a.whl}", "a source with pypi also needs member"),
        ("{huggingface: a/b, file: c}", "a source with huggingface also needs revision"),
        ("{url: 'ftp://a/b'}", "expected a whole address that begins with https:"),
    ],
)
def test_a_source_that_says_too_little_or_too_much_is_refused(tmp_path: Path, source: str, message: str) -> None:
    path = tmp_path / "letters.yaml"
    path.write_text(DATASET % ("a" * 64, source))
    with pytest.raises(RelmError) as caught:
        load_dataset(path)
    assert message in str(caught.value)
    assert "files.a.xml.sources.0" in str(caught.value)


def test_a_wrong_sha256_is_refused_by_its_form(tmp_path: Path) -> None:
    path = tmp_path / "letters.yaml"
    path.write_text(DATASET % ("xyz", "{url: 'https://a/b'}"))
    with pytest.raises(RelmError, match=r"files\.a\.xml\.sha256"):
        load_dataset(path)


def test_a_model_lacking_a_file_it_promises_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    file = f"{{sha256: '{'0' * 64}', size: 3, sources: [{{url: 'https://a/b'}}]}}"
    path.write_text(f"title: M\nlicence: MIT\ntokenizer: gpt2_bpe\nweights: true\nfiles: {{vocab.json: {file}}}\n")
    with pytest.raises(RelmError, match=r"files lacks config\.json, merges\.txt, model\.safetensors"):
        load_model(path)


PICKLED = (
    "title: M\nlicence: MIT\nweights: true\n"
    f"files: {{pytorch_model.bin: {{sha256: '{'0' * 64}', at_most: 3, sources: [{{url: 'https://a/b'}}]}}%s}}\n%s"
)


@pytest.mark.parametrize(
    ("files", "configuration", "message"),
    [
        ("", "", "configuration: is only for weights converted from pytorch_model.bin; add it for them"),
        (
            f", config.json: {{sha256: '{'0' * 64}', size: 3, sources: [{{url: 'https://a/c'}}]}}",
            "configuration: {model_type: mt5}",
            "files: config.json is built from pytorch_model.bin and configuration",
        ),
    ],
)
def test_weights_released_as_a_pickle_need_a_configuration(
    files: str, configuration: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(PICKLED % (files, configuration))
    with pytest.raises(RelmError, match=re.escape(message)):
        load_model(path)
    path.write_text(PICKLED % ("", "configuration: {model_type: mt5}"))
    assert load_model(path).weights_files == ("pytorch_model.bin", "config.json")


@pytest.mark.parametrize("sizes", ["", "size: 3, at_most: 4, "])
def test_a_file_has_a_size_or_a_bound(sizes: str, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text((PICKLED % ("", "configuration: {}")).replace("at_most: 3, ", sizes))
    with pytest.raises(RelmError, match="size: give it, or at_most where it is not known exactly, and not both"):
        load_model(path)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ("{objective: masked}", "pretrain.main.objective: architecture gpt2 trains with causal, found masked"),
        ("{masked: {whole_words: true}}", "masked: read with objective: masked only, found {'whole_words': True} with"),
        ("{as_published: {builder: graphcore_bert, epochs: 2}}", "epochs: read with builder: graphcore_gpt2 only, found 2"),
        ("{as_published: {builder: run_mlm}}", "as_published.builder: run_mlm builds objective masked, found causal"),
        ("{schedule: {name: linear, warmup_steps: 2, decay_end: 2}}", "schedule.decay_end (2) must lie after the warm-up (2)"),
        ("{optimizer: {learning_rate: 1e-3, sgd: {momentum: no}}}", "expected a number (YAML reads yes, no, on and off"),
        ("{loss_normalisation: per_replica}", "loss_shares (1) needs loss_normalisation"),
        ("{loss_normalisation: per_replica, loss_shares: 4}", "loss_shares (4) must divide global_batch_size (2)"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(tmp_path: Path, phase: str, message: str) -> None:
    recipe_file(tmp_path, VALID, "valid")
    found = refusal(tmp_path, f"extends: valid\npretrain: {{main: {phase}}}\n")
    assert message in found


def test_pairs_are_wanted_in_all_phases_or_in_none(tmp_path: Path) -> None:
    bert = "{architecture: bert, layers: 1, heads: 2, hidden_size: 8, positions: 16}"
    short = "objective: masked, sequence_length: 16, global_batch_size: 2, steps: 5, optimizer: {learning_rate: 1e-3}"
    text = VALID[: VALID.index("model:")] + f"model: {bert}\npretrain:\n"
    text += f"  a: {{{short}, masked: {{packing: sentence_pairs}}}}\n  b: {{{short}}}\n"
    assert "pretrain.b.masked.packing: sentence_pairs in one phase needs them in all" in refusal(tmp_path, text)


def test_the_objective_of_a_task_is_refused(tmp_path: Path) -> None:
    text = VALID.replace("architecture: gpt2", "architecture: bert").replace("objective: causal", "objective: spans")
    message = refusal(tmp_path, text)
    assert "pretrain.main.objective: spans is that of an evaluation by fine-tuning" in message
    assert "architecture gpt2 trains with causal, found spans" in refusal(tmp_path, VALID.replace("causal", "spans"))


def test_threads_have_a_bound_on_every_machine() -> None:
    for section in (Run, OnMachine):
        section(threads=MOST_THREADS)
        with pytest.raises(ValidationError, match="less than or equal to 1024"):
            section(threads=MOST_THREADS + 1)
