"""Fine-tuning as an evaluation on XLA devices: the steps are a CPU's, and a killed run ends with the same bytes."""

import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from as_tpu import behave_as_tpu

from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.seeds import TuningRun
from relm.recipes.evaluation.fine_tuning import FineTuning, Glue, Squad
from small_pci import pci_bus
from tiny_encoders import TINY, TINY_ROBERTA
from tuned_runs import ONE_THREAD, Tuned, learner

DEVICES = 4
FULL = pytest.mark.full
SHORT: dict[str, Any] = {"batch_size": 8, "epochs": 13, "seeds": 1, "seed": 5, "learning_rate": 1e-3}
OPTIONS: dict[str, FineTuning] = {
    "mnli": Glue(task="mnli", sequence_length=32, **SHORT),
    "stsb": Glue(task="stsb", sequence_length=32, **SHORT),
    "squad": Squad(sequence_length=48, doc_stride=16, max_query_length=12, **SHORT),
}
HOW = TuningRun(checkpoint_interval=3, keep_models=True)
ON_XLA = Execution("tpu", threads=1)


@dataclass
class OnXla(Tuned):
    """An evaluation on XLA devices, or on torch's CPU, whose processes open their devices."""

    pci: Path | None = None
    """A PCI bus with TPU chips, as which the CPU client behaves; None: as itself."""

    def prepare(self) -> None:
        """Set the count of devices, and behave as a TPU."""
        os.environ["CPU_NUM_DEVICES"] = str(DEVICES if self.execution == ON_XLA else 1)
        if self.pci is not None:
            behave_as_tpu(self.pci)

    def done(self) -> "OnXla":
        """Evaluate to the end."""
        assert self.attempt() == 0
        return self


@pytest.mark.parametrize(
    ("task", "family"),
    [("mnli", "bert"), pytest.param("squad", "bert", marks=FULL), pytest.param("stsb", "roberta", marks=FULL)],
)
def test_xla_devices_take_the_steps_of_a_cpu(task: str, family: str, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", {"bert": TINY, "roberta": TINY_ROBERTA}[family])
    here = OnXla(model, tmp_path / "cpu", OPTIONS[task], ONE_THREAD, HOW).done()
    there = OnXla(model, tmp_path / "xla", OPTIONS[task], ON_XLA, HOW).done()
    assert len(there.losses()) > 1
    np.testing.assert_allclose(there.losses(), here.losses(), rtol=1e-5)
    assert there.losses()[-1] < there.losses()[0], "it does not learn"
    made_on = [
        json.loads((run.trained(5).parent / "checkpoints.jsonl").read_text().splitlines()[-1])["made_on"]
        for run in (here, there)
    ]
    assert [each["device"] for each in made_on] == ["cpu", "tpu"]
    assert (made_on[1]["name"], made_on[1]["devices"]) == ("XLA:CPU", DEVICES)
    assert there.content().keys() == here.content().keys(), "other files are left than on a CPU"
    np.testing.assert_allclose(list(there.figures().values()), list(here.figures().values()), rtol=1e-3)


def test_a_killed_run_is_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    model = learner(tmp_path / "model", TINY, hidden_dropout=0.1, attention_dropout=0.1)
    whole = OnXla(model, tmp_path / "whole", OPTIONS["mnli"], ON_XLA, HOW).done()
    killed = replace(whole, folder=tmp_path / "killed")
    for kill in ("checkpoint-renamed:1", "gradient:5"):
        assert killed.attempt(kill) == -signal.SIGKILL, kill
        assert not (killed.folder / "result.json").exists()
    assert killed.done().content() == whole.content()


@FULL
def test_a_tpu_keeps_its_programs_until_all_seeds_are_scored(tmp_path: Path) -> None:
    here = OnXla(learner(tmp_path / "model", TINY), tmp_path / "cpu", OPTIONS["mnli"], ONE_THREAD, HOW).done()
    chips = pci_bus(tmp_path / "pci", "v3", "v3")
    there = OnXla(here.model, tmp_path / "tpu", OPTIONS["mnli"], ON_XLA, HOW, pci=chips)
    assert there.attempt("model-written:1") == -signal.SIGKILL
    (kept,) = there.folder.glob("result/*/compiled/*")
    assert any(kept.iterdir())
    assert not list(there.runs.glob("seed-*/*/compiled/*")), "a run has programs of its own"
    np.testing.assert_allclose(there.done().losses(), here.losses(), rtol=1e-5)
    assert there.figures() == here.figures()
    assert not kept.exists()
