"""Fine-tuning on simulated IPUs: the losses and figures are a CPU's, and a killed run ends with the same bytes."""

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked_workers import start_forked
from relm.devices.ipu import worker_process
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.seeds import TuningRun
from relm.recipes.evaluation.fine_tuning import FineTuning, Glue, Squad
from relm.recipes.machine.pipeline import Pipeline
from tiny_encoders import TINY, TINY_ROBERTA
from tuned_runs import Tuned, learner

FULL = pytest.mark.full
# Three stages: the embeddings and a layer, a layer, and the head.
PIPELINE = Pipeline(
    layers_per_ipu=[1, 1], replicas=2, gradient_accumulation=5, precision="float32", first_moment_precision="float32"
)
SHORT: dict[str, Any] = {"batch_size": 10, "seeds": 1, "seed": 5, "learning_rate": 1e-3}
OPTIONS: dict[str, FineTuning] = {
    "mnli": Glue(task="mnli", sequence_length=32, epochs=10, **SHORT),
    "stsb": Glue(task="stsb", sequence_length=32, epochs=10, **SHORT),
    "squad": Squad(sequence_length=48, doc_stride=16, max_query_length=12, epochs=10, **SHORT),
}
pytestmark = pytest.mark.usefixtures("forked_workers")
EVERY_SECOND = TuningRun(checkpoint_interval=2, keep_models=True)


@dataclass
class OnIpus(Tuned):
    """An evaluation on simulated IPUs."""

    def prepare(self) -> None:
        """Fork the worker, which takes seconds to start."""
        worker_process.start_worker = start_forked  # type: ignore[assignment]


def on_ipus(model: Path, folder: Path, task: str, pipeline: Pipeline = PIPELINE) -> OnIpus:
    execution = Execution("ipu_simulator", threads=1, pipeline=pipeline)
    return OnIpus(model, folder, OPTIONS[task], execution, EVERY_SECOND)


@pytest.mark.parametrize(
    ("task", "family"),
    [("squad", "bert"), pytest.param("stsb", "roberta", marks=FULL), pytest.param("mnli", "bert", marks=FULL)],
)
def test_simulated_ipus_take_the_steps_of_a_cpu(task: str, family: str, tmp_path: Path) -> None:
    model = learner(tmp_path / "model", {"bert": TINY, "roberta": TINY_ROBERTA}[family])
    here = Tuned(model, tmp_path / "cpu", OPTIONS[task], how=EVERY_SECOND)
    there = on_ipus(model, tmp_path / "ipus", task)
    here.run()
    there.run()
    assert len(there.losses()) > 1
    np.testing.assert_allclose(there.losses(), here.losses(), rtol=1e-5)
    assert there.losses()[-1] < there.losses()[0], "it does not learn"
    made_on = [
        json.loads((run.trained(5).parent / "checkpoints.jsonl").read_text().splitlines()[-1])["made_on"]
        for run in (here, there)
    ]
    assert [each["device"] for each in made_on] == ["cpu", "ipu_simulator"]
    assert made_on[1]["replicas"] == 2
    assert there.content().keys() == here.content().keys(), "other files are left than on a CPU"
    figures = [list(run.figures().values()) for run in (there, here)]
    np.testing.assert_allclose(*figures, rtol=1e-3)


@pytest.mark.parametrize("kills", [("updates:2",), pytest.param(("checkpoint-renamed:1", "updates:2"), marks=FULL)])
def test_a_killed_run_is_resumed_to_the_same_bytes(kills: tuple[str, ...], tmp_path: Path) -> None:
    half = PIPELINE.model_copy(update={"precision": "float16"})  # weights that the simulator rounds at random
    model = learner(tmp_path / "model", TINY, hidden_dropout=0.1, attention_dropout=0.1)
    whole = on_ipus(model, tmp_path / "whole", "mnli", half)
    whole.run()
    killed = replace(whole, folder=tmp_path / "killed")
    for kill in kills:
        assert killed.attempt(kill) == -signal.SIGKILL, kill
        assert not (killed.folder / "result.json").exists()
    assert killed.attempt("") == 0
    assert killed.content() == whole.content()
