"""The vocabulary loss in chunks of positions: every model's loss and gradients, its memory, and the record of a run."""

from pathlib import Path

import pytest
import torch
from small_phases import BATCH, CASES, cases, model_and_batch
from test_activations import peak_bytes

from relm.artifact import read_json
from relm.recipes.run import Run
from relm.recipes.section import merge
from relm.training.arithmetic import activation_bytes
from relm.training.loop import WARM_UP
from tiny_runs import TinyRun

CHUNK = 5


def loss_and_gradients(case: str, chunk: int | None) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    model, batch = model_and_batch(*cases(dropout=0.0)[case])
    model.loss_chunk, model.keeps_logits = chunk, chunk is None
    terms = model.terms(batch)
    sum(term.nats / 7 for term in terms.values()).backward()
    losses = {f"{name} {key}": value for name, term in terms.items() for key, value in term._asdict().items()}
    return losses, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("case", CASES)
def test_every_models_loss_and_gradients_are_those_of_all_logits(case: str) -> None:
    (losses, gradients), (expected, wanted) = loss_and_gradients(case, CHUNK), loss_and_gradients(case, None)
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=4e-7 * wanted.abs().max().item())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["gpt2", "bert, sentence pairs", "t5, gated, deeper decoder"])
def test_the_estimate_of_activations_bounds_a_step_in_chunks(case: str, precision: str) -> None:
    config, settings = cases(precision=precision)[case]
    model, batch = model_and_batch(config, settings)
    model.loss_chunk, model.keeps_logits = CHUNK, False
    bound, whole = (activation_bytes(config, settings, Run(loss_chunk=chunk), BATCH) or 0 for chunk in (CHUNK, None))
    peak = peak_bytes(model, batch, precision)
    assert peak <= bound <= 1.6 * peak
    assert bound < whole


def test_a_run_in_chunks_has_the_losses_of_a_plain_one_and_records_its_chunk(examples: Path, tmp_path: Path) -> None:
    steps = {"pretrain": {"main": {"steps": 4, "schedule": {"warmup_steps": 1}}}, "run": {"validation_interval": 2}}
    plain = TinyRun(tmp_path / "plain", examples, steps)
    chunks = TinyRun(tmp_path / "chunks", examples, merge(steps, {"run": {"loss_chunk": CHUNK}}))
    for run in (plain, chunks):
        run.train()
    assert len(plain.lines()) == len(chunks.lines())
    for line, expected in zip(chunks.lines(), plain.lines(), strict=True):
        assert line == pytest.approx(expected, rel=1e-4)
    states = [read_json(run.folder / "main" / "checkpoints" / run.checkpoints[-1] / "state.json") for run in (plain, chunks)]
    assert [state["made_on"].get("loss_chunk") for state in states] == [None, CHUNK]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_compiled_run_in_chunks_has_the_losses_of_a_plain_one(examples: Path, tmp_path: Path) -> None:
    steps = {"model": {"dropout": 0.0}, "pretrain": {"main": {"steps": WARM_UP + 2, "schedule": {"warmup_steps": 1}}}}
    plain = TinyRun(tmp_path / "plain", examples, steps)
    chunks = TinyRun(tmp_path / "chunks", examples, merge(steps, {"run": {"loss_chunk": CHUNK, "compile": True}}))
    for run in (plain, chunks):
        run.train()
    for line, expected in zip(chunks.lines(), plain.lines(), strict=True):
        assert line == pytest.approx(expected, rel=1e-4)
