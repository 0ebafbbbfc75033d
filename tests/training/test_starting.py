"""A second phase begins with the weights of the first, and with its optimizer state where that is kept."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from relm.errors import RelmError
from relm.models.bert import Bert, BertConfig
from relm.recipes.optimization import LossScaling, Optimizer
from relm.training.checkpoints import save_checkpoint
from relm.training.loop import pretrain
from relm.training.loss_scaling import LossScaler
from relm.training.optimizers import build_optimizer, optimizer_tensors
from relm.training.starting import read_kept_optimizer, restore_kept_optimizer

TINY = BertConfig(
    layers=1, heads=2, hidden_size=8, intermediate_size=12, positions=16, vocabulary_size=23, next_sentence=True,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
SHORT, LONG, UPDATES = 4, 16, 3
FINGERPRINT = "0123456789ab"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw of transformers": {"form": "transformers"},
    "lamb": {"name": "lamb", "weight_decay": 0.01},
    "adafactor": {"name": "adafactor", "adafactor": {"beta1": 0.9}},
    "sgd": {"name": "sgd", "sgd": {"momentum": 0.9}},
}


def batch(length: int, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(2, 23, (2, length), generator=draw),
        "masked_positions": torch.tensor([[1, 2], [2, 3]]),
        "masked_labels": torch.randint(2, 23, (2, 2), generator=draw),
        "next_sentence_labels": torch.tensor([1, 0]),
    }


def update(model: Bert, optimizer: torch.optim.Optimizer, length: int, seed: int) -> None:
    optimizer.zero_grad()
    sum(term.nats for term in model(batch(length, seed)).values()).backward()
    optimizer.step()


def settings(name: str) -> Optimizer:
    return Optimizer.model_validate({"learning_rate": 0.01, **OPTIMIZERS[name]})


def first_phase(name: str, folder: Path, scaler: LossScaler | None = None) -> tuple[Bert, torch.optim.Optimizer, Path]:
    """Take some updates on short sequences, and return the model, its optimizer and the last checkpoint."""
    model = Bert(TINY)
    model.initialise(torch.Generator().manual_seed(0))
    optimizer = build_optimizer(model, settings(name))
    for seed in range(UPDATES):
        update(model, optimizer, SHORT, seed)
    state = {
        "fingerprint": FINGERPRINT,
        "phase": "short",
        "manifest_sha256": "a",
        "start_sha256": "b",
        "step": UPDATES,
        "made_on": {},
    }
    remembered = {**optimizer_tensors(optimizer, model), **(scaler.tensors() if scaler else {})}
    return model, optimizer, save_checkpoint(folder / "checkpoints", state, model.state_dict(), remembered, 1)


def begun_again(model: Bert, name: str) -> tuple[Bert, torch.optim.Optimizer]:
    """Return a copy of the model, and a new optimizer, as another process builds them."""
    again = copy.deepcopy(model)
    again.zero_grad()
    return again, build_optimizer(again, settings(name))


def same(one: Bert, other: Bert) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_update_on_longer_sequences_equals_that_of_the_original_optimizer(name: str, tmp_path: Path) -> None:
    model, optimizer, checkpoint = first_phase(name, tmp_path)
    kept, fresh = begun_again(model, name), begun_again(model, name)
    restore_kept_optimizer(kept[1], kept[0], read_kept_optimizer(checkpoint, FINGERPRINT))
    for second in ((model, optimizer), kept, fresh):
        update(*second, LONG, 99)
    assert same(kept[0], model)
    assert not same(fresh[0], model)
    counts = [
        tensors["updates"] for tensors in (optimizer_tensors(*pair[::-1]) for pair in (kept, fresh)) if "updates" in tensors
    ]
    assert [count.item() for count in counts] == ([UPDATES + 1, 1] if counts else [])


def test_bias_correction_continues_its_count(tmp_path: Path) -> None:
    model, _, checkpoint = first_phase("adamw", tmp_path)
    _, optimizer = kept = begun_again(model, "adamw")
    restore_kept_optimizer(optimizer, kept[0], read_kept_optimizer(checkpoint, FINGERPRINT))
    assert {float(state["step"]) for state in optimizer.state.values()} == {UPDATES}


def test_the_loss_scale_belongs_to_the_phase_and_is_not_kept(tmp_path: Path) -> None:
    scaler = LossScaler(LossScaling(name="automatic", scale=64.0), torch.device("cpu"))
    model, optimizer, checkpoint = first_phase("lamb", tmp_path, scaler)
    kept = read_kept_optimizer(checkpoint, FINGERPRINT)
    assert set(kept) == set(optimizer_tensors(optimizer, model))


AGAIN = r"`snakemake --force \S+/main/model/model.safetensors` makes it again"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, r"step-00000003: no such checkpoint; .*" + AGAIN),
        (lambda folder: (folder / "optimizer.safetensors").unlink(), r"optimizer.safetensors: damaged: .*" + AGAIN),
        (lambda folder: (folder / "optimizer.safetensors").write_bytes(b"x"), r"optimizer.safetensors: damaged: .*" + AGAIN),
        (lambda folder: (folder / "state.json").write_text("{}"), r"state.json: damaged; " + AGAIN),
        (lambda folder: (folder / "state.json").write_text("{"), r"state.json: damaged; " + AGAIN),
    ],
    ids=["gone", "half gone", "another file", "another state", "half a state"],
)
def test_the_error_for_an_absent_or_damaged_checkpoint_names_the_command_that_makes_it_again(damage, message, tmp_path) -> None:
    _, _, checkpoint = first_phase("adamw", tmp_path / "main")
    damage(checkpoint)
    with pytest.raises(RelmError, match=message):
        read_kept_optimizer(checkpoint, FINGERPRINT)


def test_the_optimizer_of_another_run_is_refused(tmp_path: Path) -> None:
    _, _, checkpoint = first_phase("adamw", tmp_path)
    with pytest.raises(RelmError, match="of run ffff, found run 0123456789ab"):
        read_kept_optimizer(checkpoint, "ffff")


def test_the_state_of_another_kind_of_optimizer_is_refused(tmp_path: Path) -> None:
    model, _, checkpoint = first_phase("adamw", tmp_path)
    kept = read_kept_optimizer(checkpoint, FINGERPRINT)
    another, optimizer = begun_again(model, "adamw of transformers")
    with pytest.raises(RelmError, match=r"kept: the phase before has another kind of state: .*optimizer_state: fresh"):
        restore_kept_optimizer(optimizer, another, kept)


@pytest.mark.parametrize(("state", "updates"), [("kept", 4 + 3), ("fresh", 3)])
def test_the_second_phase_counts_its_updates_as_the_recipe_requests(state: str, updates: int, tiny_run) -> None:
    phase = {
        **tiny_run.recipe.pretrain["main"].model_dump(),
        "steps": 3,
        "schedule": {"warmup_steps": 1},
        "optimizer_state": state,
    }
    tiny_run.changes = {"pretrain": {"main": {"steps": 4}, "second": phase}, "run": {"checkpoint_interval": 2}}
    tiny_run.train()
    manifest, tokenizer = tiny_run.examples / "manifest.json", tiny_run.examples / "tokenizer.json"
    before = tiny_run.folder / "main" / "checkpoints" / "step-00000004"
    pretrain(
        tiny_run.recipe, "second", manifest, tokenizer, tiny_run.model_folder, tiny_run.folder / "second" / "model",
        tiny_run.fingerprint, optimizer_from=before if state == "kept" else None,
    )  # fmt: skip
    saved = load_file(tiny_run.folder / "second" / "checkpoints" / "step-00000003" / "optimizer.safetensors")
    assert {float(tensor) for name, tensor in saved.items() if name.endswith(".step")} == {updates}
