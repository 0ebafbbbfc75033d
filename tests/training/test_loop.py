"""Training follows the recipe, and its files are complete."""

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from relm.artifact import checked_sidecar, read_json
from relm.devices.contract import open_device
from relm.devices.torch import TorchDevice
from relm.errors import RelmError
from relm.examples.causal import CausalExamples
from relm.examples.contract import numbers_at
from relm.examples.manifest import read_manifest
from relm.models.gpt2 import Gpt2
from relm.recipes.run import Run
from relm.training import saves, updates
from relm.training.architecture import configuration, initial_model
from relm.training.input import prefetch
from relm.training.phase_run import derived_seed, open_reader
from relm.training.validation import HeldOut


def shorter(**phase: object) -> dict[str, object]:
    return {"pretrain": {"main": {"steps": 6, **phase}}}


def test_the_first_loss_is_that_of_a_guess_and_the_last_is_lower(uninterrupted) -> None:
    lines = uninterrupted.lines()
    assert lines[0]["loss"] == pytest.approx(math.log(257), abs=0.05)
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5


def test_there_is_a_line_for_the_first_step_each_interval_and_the_last_step(tiny_run) -> None:
    tiny_run.changes = {**shorter(steps=7), "run": {"log_interval": 3}}
    sentence = tiny_run.train()
    assert [line["step"] for line in tiny_run.lines()] == [1, 3, 6, 7]
    assert "7 steps, 896 tokens" in sentence


def test_a_line_has_the_loss_and_accuracy_of_each_term_and_the_machines_figures(tiny_run) -> None:
    tiny_run.changes = shorter(steps=4)
    tiny_run.train()
    line = json.loads((tiny_run.folder / "main" / "train.jsonl").read_text().splitlines()[-1])
    assert list(line) == [
        "step", "epoch", "learning_rate", "loss", "next_token_loss", "next_token_accuracy", "gradient_norm",
        "tokens_per_second", "samples_per_second", "memory_bytes", "seconds",
    ]  # fmt: skip
    assert line["next_token_loss"] == pytest.approx(line["loss"], rel=1e-6)
    assert 0 <= line["next_token_accuracy"] <= 1
    assert line["tokens_per_second"] == pytest.approx(16 * line["samples_per_second"], rel=1e-3)
    assert line["memory_bytes"] > 50e6


def test_unknown_memory_is_in_no_line(tiny_run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchDevice, "peak_memory", lambda device: None)
    tiny_run.changes = shorter(steps=4)
    tiny_run.train()
    lines = [json.loads(line) for line in (tiny_run.folder / "main" / "train.jsonl").read_text().splitlines()]
    assert lines
    assert not any("memory_bytes" in line for line in lines)
    assert {"samples_per_second", "seconds"} <= set(lines[0])


def test_the_device_is_read_once_a_log_interval_and_not_in_between(tiny_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of reading a tensor makes the host wait for the device."""
    read: list[str] = []
    loop_runs, taken = False, updates.take_step

    def counted(name: str) -> Callable[[torch.Tensor], object]:
        plain = getattr(torch.Tensor, name)

        def reading(tensor: torch.Tensor) -> object:
            if loop_runs and threading.current_thread() is threading.main_thread():
                read.append(name)
            return plain(tensor)

        return reading

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, counted(name))

    def take_step(*arguments):
        nonlocal loop_runs
        loop_runs = True
        return taken(*arguments)

    def save(*_: object, **__: object) -> Path:
        nonlocal loop_runs
        loop_runs = False  # what a checkpoint reads is its content
        return Path()

    monkeypatch.setattr(updates, "take_step", take_step)
    monkeypatch.setattr(saves.Saves, "save", save)
    tiny_run.changes = {"run": {"log_interval": 10, "checkpoint_interval": 1000}}
    tiny_run.train()
    assert [line["step"] for line in tiny_run.lines()] == [1, 10, 20, 30]
    assert read == ["tolist"] * 4


def test_utilisation_is_relative_to_the_stated_peak(tiny_run) -> None:
    tiny_run.changes = {**shorter(), "run": {"peak_teraflops": 0.5}}
    tiny_run.train()
    line = json.loads((tiny_run.folder / "main" / "train.jsonl").read_text().splitlines()[-1])
    # A layer of width h has matrices of 12 h^2 weights, the head 257 h; scores and values take 4 h a token and a position.
    operations = 16 * 3 * 2 * (2 * (12 * 16**2 + 2 * 16 * 16) + 257 * 16)
    assert line["mfu"] == pytest.approx(line["samples_per_second"] * operations / 0.5e12, rel=0.01, abs=1e-5)


def test_validation_runs_at_its_interval_and_changes_nothing(tiny_run, uninterrupted, monkeypatch) -> None:
    tiny_run.changes = {"run": {"validation_interval": 7, "validation_batches": 3}}
    tiny_run.train()
    assert tiny_run.sha256() == uninterrupted.sha256()
    validation_losses = {line["step"]: line["validation_loss"] for line in tiny_run.lines() if "validation_loss" in line}
    assert list(validation_losses) == [7, 14, 21, 28, 30]
    assert validation_losses[30] < validation_losses[7]

    manifest = tiny_run.examples / "manifest.json"
    model = Gpt2.from_folder(tiny_run.model_folder).eval()
    reader = open_reader(tiny_run.recipe, "main", manifest, "held_out", open_device(Run(threads=1)))
    batches = [{name: torch.from_numpy(array) for name, array in reader.batch(step).items()} for step in (1, 2, 3)]
    losses = [torch.nn.functional.cross_entropy(model.logits(b["input_ids"]).mT, b["labels"]).item() for b in batches]
    assert validation_losses[30] == pytest.approx(np.mean(losses), rel=1e-5)


def test_the_time_of_a_validation_is_in_no_rate(tiny_run, monkeypatch) -> None:
    figures = HeldOut.figures

    def slow(*arguments):
        time.sleep(0.5)
        return figures(*arguments)

    monkeypatch.setattr(HeldOut, "figures", slow)
    tiny_run.changes = {"run": {"log_interval": 1, "validation_interval": 10, "validation_batches": 1}}
    tiny_run.train()
    lines = [json.loads(line) for line in (tiny_run.folder / "main" / "train.jsonl").read_text().splitlines()]
    assert lines[10]["seconds"] - lines[9]["seconds"] > 0.5
    assert lines[10]["tokens_per_second"] > 8 * 16 / 0.4


def test_a_validation_loss_that_is_not_finite_stops_too(tiny_run) -> None:
    tiny_run.changes = {
        "pretrain": {"main": {"optimizer": {"learning_rate": 1e37}, "schedule": {"warmup_steps": 0}}},
        "run": {"validation_interval": 1},
    }
    with pytest.raises(RelmError, match="the loss of the held-out examples is not finite"):
        tiny_run.train()
    assert tiny_run.lines() == []


def test_checkpoints_of_keep_every_are_kept(tiny_run) -> None:
    tiny_run.changes = {"run": {"keep_every": 3, "keep_checkpoints": 1}}
    tiny_run.train()
    assert tiny_run.checkpoints == ["step-00000009", "step-00000018", "step-00000027", "step-00000030"]


def test_lines_have_the_scheduled_learning_rate_and_the_epoch(uninterrupted) -> None:
    by_step = {line["step"]: line for line in uninterrupted.lines()}
    assert by_step[1]["learning_rate"] == pytest.approx(0.01 / 3)
    assert by_step[30]["learning_rate"] == pytest.approx(0.001)
    split = read_json(uninterrupted.examples / "manifest.json")["splits"]["train"]
    assert by_step[30]["epoch"] == 30 * 8 / ((split["tokens"] - 1) // 16)


def test_the_model_folder_loads_in_transformers_with_its_tokenizer(uninterrupted) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(uninterrupted.model_folder)
    ours = Gpt2.from_folder(uninterrupted.model_folder).eval()
    ids = torch.tensor([[84, 104, 101, 256]])
    torch.testing.assert_close(ours.logits(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)
    assert theirs.generation_config.eos_token_id == 256

    text = "  Salut, lume!<|endoftext|>\n\tşi 你好 -- it's 3.14 , isn 't it ?"
    tokenizer = AutoTokenizer.from_pretrained(uninterrupted.model_folder)
    expected = Tokenizer.from_file(str(uninterrupted.examples / "tokenizer.json")).encode(text).ids
    assert tokenizer(text)["input_ids"] == expected
    assert tokenizer.decode(expected) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.model_max_length) == (256, 256, 16)


def test_the_sidecar_describes_the_model(uninterrupted) -> None:
    sidecar = checked_sidecar(uninterrupted.model_folder / "model.safetensors")
    assert sidecar["step"] == 30
    assert sidecar["fingerprint"] == uninterrupted.fingerprint
    assert sidecar["parameters"] == Gpt2.from_folder(uninterrupted.model_folder).parameter_count()


def test_a_damaged_model_is_written_again_from_the_last_checkpoint(tiny_run) -> None:
    tiny_run.changes = shorter()
    tiny_run.train()
    expected, weights = tiny_run.sha256(), tiny_run.model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "trained" in tiny_run.train()
    assert tiny_run.sha256() == expected
    assert [line["step"] for line in tiny_run.lines()] == [1, 2, 4, 6]


def test_the_micro_batch_size_changes_rounding_only(tmp_path: Path, examples: Path, tiny_run) -> None:
    losses = {}
    for size in (2, 8):
        run = type(tiny_run)(tmp_path / str(size), examples)
        run.changes = {**shorter(), "model": {"dropout": 0.0}, "run": {"micro_batch_size": size, "log_interval": 1}}
        run.train()
        losses[size] = [line["loss"] for line in run.lines()]
    assert losses[2] == pytest.approx(losses[8], rel=1e-5)
    assert losses[2] != losses[8], "the batch was not cut at all"


def test_steps_read_the_examples_in_their_order_without_gaps(tiny_run) -> None:
    manifest = tiny_run.examples / "manifest.json"
    examples = CausalExamples(manifest, "train", 16)
    reader = open_reader(tiny_run.recipe, "main", manifest, "train", open_device(Run(threads=1)))
    first_epoch = -(-len(examples) // 8)
    inputs = [given for each in reader.rounds(1, first_epoch, lambda: False) for given in each.steps]
    assert [given.step for given in inputs] == list(range(1, first_epoch + 1))
    read = np.concatenate([piece["input_ids"].numpy() for given in inputs for piece in given.micro_batches])[: len(examples)]
    everything = examples.windows(np.arange(len(examples)))[:, :-1]
    assert not np.array_equal(read, everything), "the order is that of the file"
    assert sorted(map(tuple, read.tolist())) == sorted(map(tuple, everything.tolist()))
    assert [len(piece["labels"]) for piece in inputs[1].micro_batches] == [4, 4]
    for name, array in reader.batch(2).items():
        assert np.array_equal(np.concatenate([piece[name].numpy() for piece in inputs[1].micro_batches]), array)


def test_an_error_of_the_examples_is_raised_at_its_step() -> None:
    def make(number: int) -> int:
        if number == 3:
            raise RelmError("a shard is gone")
        return number * number

    results = prefetch(make, range(1, 10), 2)
    assert [next(results), next(results)] == [1, 4]
    with pytest.raises(RelmError, match="a shard is gone"):
        next(results)


def test_a_learning_rate_of_zero_leaves_the_initial_weights(tiny_run) -> None:
    tiny_run.changes = shorter(steps=1, schedule={"name": "linear", "warmup_steps": 0, "floor": 0.0})
    tiny_run.train()
    tokens = read_manifest(tiny_run.examples / "manifest.json").tokenizer
    initial = initial_model(configuration(tiny_run.recipe, tokens), derived_seed(7, "weights"), init_from=None)
    trained = Gpt2.from_folder(tiny_run.model_folder).state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in initial.state_dict().items())


def test_bfloat16_keeps_float32_weights_and_state(tiny_run) -> None:
    from safetensors.torch import load_file

    tiny_run.changes = shorter(precision="bfloat16")
    tiny_run.train()
    saved = tiny_run.folder / "main" / "checkpoints" / "step-00000006"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert {tensor.dtype for tensor in load_file(saved / file).values()} == {torch.float32}
    exact = type(tiny_run)(tiny_run.folder / "exact", tiny_run.examples, shorter())
    exact.train()
    assert tiny_run.lines()[-1]["loss"] == pytest.approx(exact.lines()[-1]["loss"], rel=0.01)
    assert tiny_run.lines()[-1]["loss"] != exact.lines()[-1]["loss"]


def test_activation_checkpointing_gives_the_same_run(tiny_run, tmp_path: Path) -> None:
    plain = type(tiny_run)(tmp_path / "plain", tiny_run.examples)
    plain.changes = shorter(steps=4)
    tiny_run.changes = {**shorter(steps=4), "run": {"activation_checkpointing": True}}
    for run in (plain, tiny_run):
        run.train()
    assert tiny_run.sha256() == plain.sha256()


def test_a_following_phase_starts_from_the_model_before(tiny_run, uninterrupted) -> None:
    tiny_run.init_from = uninterrupted.model_folder
    tiny_run.changes = {**shorter(), "model": {"dropout": 0.0}}
    tiny_run.train()
    assert tiny_run.lines()[0]["loss"] < uninterrupted.lines()[0]["loss"] - 0.5


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_last_good_checkpoint(tiny_run) -> None:
    tiny_run.changes = {
        "pretrain": {
            "main": {"optimizer": {"learning_rate": 1e30, "gradient_clipping": None}, "schedule": {"warmup_steps": 0}}
        },
        "run": {"checkpoint_interval": 1, "log_interval": 10},
    }
    with pytest.raises(RelmError, match=r"step 2: the .* is nan.*the last good checkpoint is .*step-00000001") as error:
        tiny_run.train()
    assert tiny_run.checkpoints == ["step-00000001"]
    examples = CausalExamples(tiny_run.examples / "manifest.json", "train", 16)
    numbers, _ = numbers_at(examples, derived_seed(7, "order", "main"), np.arange(8, 16))
    assert f"it read examples {', '.join(map(str, numbers))} of epoch 0; " in str(error.value)


def test_a_larger_vocabulary_pads_the_embedding(tiny_run) -> None:
    tiny_run.changes = {**shorter(), "model": {"vocabulary_size": 264}}
    tiny_run.train()
    assert Gpt2.from_folder(tiny_run.model_folder).transformer.wte.weight.shape == (264, 16)


def test_another_tokenizer_than_the_examples_is_refused(tmp_path: Path, tiny_run) -> None:
    from relm.training.loop import pretrain

    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps({"another": "tokenizer"}))
    with pytest.raises(RelmError, match="was built with a tokenizer of sha256"):
        pretrain(tiny_run.recipe, "main", tiny_run.examples / "manifest.json", other, None, tiny_run.model_folder, "f")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"vocabulary_size": 100}}, "model.vocabulary_size is 100, but the tokenizer has 257"),
        ({"model": {"layers": 3, "heads": 4}}, r"init_from: .*layers is 2, expected 3; heads is 2, expected 4"),
        ({"run": {"keep_checkpoints": 10**12}}, "keep_checkpoints"),
        ({"pretrain": {"main": {"global_batch_size": 10**9}}, "run": {"micro_batch_size": None}}, "micro_batch_size"),
    ],
    ids=["vocabulary", "initial weights", "disk", "memory"],
)
def test_what_does_not_fit_is_refused_before_the_first_step(changes, message: str, tiny_run, uninterrupted) -> None:
    tiny_run.init_from, tiny_run.changes = uninterrupted.model_folder, changes
    with pytest.raises(RelmError, match=message):
        tiny_run.train()
    assert not (tiny_run.folder / "main" / "train.jsonl").exists()
