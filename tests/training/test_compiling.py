"""A compiled forward and backward pass: one program, the same numbers to rounding, and the same bits after an interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from process_runs import SharedRun, finished, start_ranks

from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.models.losses import Term
from relm.recipes.run import Run
from relm.recipes.section import merge
from relm.training.loop import WARM_UP, require_same_programs


@pytest.mark.full
def test_a_new_shape_after_the_warm_up_is_an_error() -> None:
    device = open_device(Run(threads=1, compile=True))

    def terms(batch: dict[str, torch.Tensor]) -> dict[str, Term]:
        scores = batch["input_ids"] * 2.0
        return {"next_token": Term(scores.sum(), (scores > 0).sum(), (scores > 1).sum())}

    forward, programs = device.forward(terms), None
    before = device.programs()
    for step in range(1, WARM_UP + 3):
        found = forward({"input_ids": torch.ones(2, 3)})["next_token"]
        assert (found.nats.item(), found.count.item()) == (12.0, 6)
        programs = require_same_programs(device, step, programs)
    assert programs == before + 1
    forward({"input_ids": torch.ones(2, 4)})
    with pytest.raises(RelmError, match=rf"after {WARM_UP + 3} steps another program was compiled \({programs} before"):
        require_same_programs(device, WARM_UP + 3, programs)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_validation_runs_a_separate_compiled_program_with_the_same_loss(tmp_path: Path, examples: Path) -> None:
    held_out = {"validation_interval": 1, "validation_batches": 1}
    changes = {
        "model": {"layers": 1, "hidden_size": 4, "dropout": 0.0},
        "pretrain": {"main": {"steps": WARM_UP + 1, "schedule": {"warmup_steps": 1}}},
    }
    plain = SharedRun(tmp_path / "plain", examples, merge(changes, {"run": held_out}))
    compiled = SharedRun(tmp_path / "compiled", examples, merge(changes, {"run": {**held_out, "compile": True}}))
    plain.train()
    torch._dynamo.reset()
    before = graphs()
    compiled.train()
    assert graphs() == before + 2, "one program of a step, one of a validation, and none after the first step"
    np.testing.assert_allclose(compiled.columns("validation_loss"), plain.columns("validation_loss"), rtol=1e-4)


def graphs() -> int:
    """Return the count of graphs that torch.compile has made in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def test_the_error_without_a_compiler_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(RelmError, match=r"run.compile: .*needs a C\+\+ compiler.*install g\+\+, or set run.compile: false"):
        open_device(Run(threads=1, compile=True))


WITHOUT_DROPOUT: dict[str, dict[str, Any]] = {
    "causal": {"dropout": 0.0},
    "masked": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    "seq2seq": {"dropout": 0.0},
}


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("objective", WITHOUT_DROPOUT)
def test_a_compiled_run_takes_the_steps_of_an_uncompiled_one(
    tmp_path: Path, examples_of: Callable[[str], Path], objective: str, precision: str
) -> None:
    held_out = {"run": {"validation_interval": 2, "validation_batches": 1}}
    changes = {"model": WITHOUT_DROPOUT[objective], "pretrain": {"main": {"precision": precision}}, **held_out}
    plain = SharedRun(tmp_path / "plain", examples_of(objective), changes, objective=objective)
    compiled = SharedRun(tmp_path / "compiled", plain.examples, merge(changes, {"run": {"compile": True}}), objective=objective)
    plain.train()
    torch._dynamo.reset()
    before = graphs()
    compiled.train()
    assert graphs() == before + 2, "one program of a step, one of a validation"
    figures = ("loss", "gradient_norm", "validation_loss")
    rounding = {"float32": 1e-4, "bfloat16": 3e-2}[precision]
    np.testing.assert_allclose(compiled.columns(*figures), plain.columns(*figures), rtol=rounding)
    assert compiled.sha256() != plain.sha256(), "nothing was compiled"


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_compiled_run_resumes_to_the_same_bits_whether_or_not_its_programs_are_kept(tmp_path: Path, examples: Path) -> None:
    changes = {"run": {"compile": True, "activation_checkpointing": True}}
    whole, killed = (SharedRun(tmp_path / name, examples, changes) for name in ("whole", "killed"))
    dying = SharedRun(killed.folder, examples, changes, own={"0": {"RELM_KILL_AT": "checkpoint-saved:1"}})
    caches = [{"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)} for name in ("one", "other")]
    assert finished(start_ranks([whole], 1, **caches[0]), timeout=900).returncode == 0
    assert finished(start_ranks([dying], 1, **caches[1]), timeout=900).returncode == 1
    assert killed.checkpoints == ["step-00000003"]
    assert finished(start_ranks([killed], 1, **caches[0]), timeout=900).returncode == 0
    assert killed.sha256() == whole.sha256()
    assert killed.lines() == whole.lines()
