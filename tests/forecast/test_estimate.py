"""`relm estimate`: phrases and figures that follow only from the recipe."""

import re
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.forecast.estimate import describe_estimate
from relm.forecast.expected_tokenizer import SENTENCEPIECES, vocabulary
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.section import read_yaml
from small_project import CHECKOUT, Commands

TWO_PHASES = """
title: Two lengths
data: {dataset: sample}
tokenizer: {train: wordpiece, vocabulary_size: 600}
model: {architecture: bert, layers: 2, heads: 2, hidden_size: 32, positions: 64}
pretrain:
  short: {objective: masked, sequence_length: 16, global_batch_size: 4, steps: 6, optimizer: {learning_rate: 1e-3}}
  long: {objective: masked, sequence_length: 64, global_batch_size: 4, steps: 2, precision: bfloat16,
         optimizer: {learning_rate: 1e-3}}
run: {threads: 1, micro_batch_size: 2}
"""


@pytest.fixture
def plans(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Project:
    (project.folder / "recipes" / "two.yaml").write_text(TWO_PHASES)
    monkeypatch.chdir(project.folder)
    return Project()


def changed(plans: Project, changes: str) -> Plan:
    """Return the plan of a recipe that differs in some keys."""
    (plans.recipes / "other.yaml").write_text(f"extends: two\n{changes}\n")
    return Project().plan("other")


def figures(text: str, row: str) -> str:
    return re.search(rf"^  {row} +(.*)$", text, re.M)[1]


def test_each_phase_has_a_table_and_all_have_a_sum(plans: Project) -> None:
    output = describe_estimate(plans.plan("two"), None)
    assert re.findall(r"^(phase \w+): masked, (\d) steps", output, re.M) == [("phase short", "6"), ("phase long", "2")]
    assert re.findall(r"^  tokens +([\d,]+)", output, re.M) == ["384", "512", "896"]
    each = [float(found) for found in re.findall(r"; ([\d.e+]+) in all$", output, re.M)]
    assert float(figures(output.split("in all\n")[-1], "operations")) == pytest.approx(sum(each), rel=0.01)
    assert figures(output, "vocabulary") == "600 rows; 600 tokens, taken from tokenizer.vocabulary_size; it is not made yet"
    assert re.match(r"at least [\d.]+ kB of .* available, and activations of 2 sequences at once", figures(output, "memory"))
    assert figures(output, "time here") == "relm rehearse two --phase short measures it"
    assert "published peak in bfloat16 and float32" in output


def test_hours_are_operations_by_the_peak_and_cost_their_price(plans: Project) -> None:
    plan = changed(plans, "run: {peak_teraflops: 1.0e-9}")
    output = describe_estimate(plan, 3.0)
    found = float(figures(output.split("in all\n")[-1], "operations")) / 1e3 / 3600
    hours, price = re.match(r"1 +1e-09 +([\d,.]+) \(([\d,.]+)\)", figures(output, "run's own")).groups()
    assert float(hours.replace(",", "")) == pytest.approx(found / 0.2, rel=0.01)
    assert float(price.replace(",", "")) == pytest.approx(3 * found / 0.2, rel=0.01)
    with pytest.raises(RelmError, match=r"--price-per-hour: expected a number from 0 on, found nan"):
        describe_estimate(plan, float("nan"))


def test_a_device_that_is_not_here_is_arithmetic(plans: Project) -> None:
    plan = changed(plans, "run: {device: tpu}")
    output = describe_estimate(plan, None)
    assert "of each device, and activations of 2 sequences at once" in figures(output, "memory")


def test_the_runs_machine_comes_first_and_then_all_that_can_train_and_have_a_peak(plans: Project) -> None:
    shipped = Project(CHECKOUT)
    output = describe_estimate(shipped.plan("roberta_base_v3-8@v5e-8"), None, machines=shipped.machines())
    table = output.partition("hours by arithmetic")[2]
    names = re.findall(r"^  (\S+) +\d+ +\d", table, re.M)
    assert names[:3] == ["v5e-8", "a100", "a100-8"]
    assert sorted(names) == [
        "a100",
        "a100-8",
        "h100",
        "h100-8",
        "h100-8x2",
        "l4",
        "rtx4090",
        "v3-8",
        "v4-8",
        "v5e-8",
        "v5p-8",
        "v6e-8",
    ]
    assert figures(table, "v5e-8").split()[:2] == ["8", "197"]
    assert "TPUs multiply float32 in one pass of bfloat16" in table
    assert figures(output, "machine") == "v5e-8: Google Cloud TPU v5e-8, eight chips on one host"
    assert figures(output, "fits").startswith(
        "yes: 192 sequences at once, 24 on each device: 11.3 GB of 17.2 GB of each device, by the TPU's compiler"
    )


def test_a_machine_without_a_published_peak_has_no_hours(plans: Project) -> None:
    shipped = Project(CHECKOUT)
    output = describe_estimate(shipped.plan("quickstart@cpu"), None, machines=shipped.machines())
    assert figures(output, "cpu").split() == ["1", "none", "published"]


def test_each_device_of_a_slice_computes_its_part_of_the_sequences(plans: Project) -> None:
    sliced = changed(plans, "run: {device: tpu, topology: v5e-4, micro_batch_size: 4}")
    output = figures(describe_estimate(sliced, None), "memory")
    assert re.match(r"at least [\d.]+ kB of each device, and activations of 1 sequence at once", output)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ("", 600, "taken from tokenizer.vocabulary_size"),
        ("tokenizer: {train: characters, vocabulary_size: null}", 256, "256 tokens are ASSUMED: the text's characters"),
        (
            "tokenizer: {train: characters, vocabulary_size: null}\nmodel: {vocabulary_size: 99}",
            99,
            "taken from model.vocabulary_size",
        ),
    ],
    ids=["trained", "assumed", "the model's"],
)
def test_the_source_of_the_vocabulary_is_stated(plans: Project, changes: str, size: int, message: str) -> None:
    facts, sentence = vocabulary(changed(plans, changes))
    assert facts.vocabulary_size == size
    assert message in sentence


def test_the_sentencepiece_models_with_a_known_size_are_those_of_the_shipped_files(checkout: Path, plans: Project) -> None:
    shipped = {}
    for name in ("t5", "mt5", "stories260k"):
        (file,) = read_yaml(checkout / "recipes" / "models" / f"{name}_tokenizer.yaml")["files"].values()
        shipped[file["sha256"]] = name
    sizes = {shipped[sha256]: size for sha256, size in SENTENCEPIECES.items()}
    assert sizes == {"t5": 32_100, "mt5": 250_100, "stories260k": 512}


def test_the_command_needs_no_data(project: Commands) -> None:
    done = project.relm("estimate", "smoke/tiny", "--price-per-hour", "2")
    assert done.returncode == 0, done.stderr
    assert re.match(r"at least \d+(\.\d+)? [MG]B of .* available", figures(done.stdout, "memory"))
    assert not (project.folder / "work").exists()


def test_a_damaged_tokenizer_is_an_error_and_not_an_assumption(plans: Project) -> None:
    plan = plans.plan("tiny")
    plan.tokenizer.parent.mkdir(parents=True)
    plan.tokenizer.write_text("{")
    with pytest.raises(RelmError, match=r"tokenizer.json"):
        vocabulary(plan)
