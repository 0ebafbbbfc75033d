"""Fine-tuning on simulated IPUs: the losses and figures are a CPU's, and a killed run ends with the same bytes."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from forked_workers import start_forked
from glue_files import write_parquet
from question_files import SAMPLE
from relm.artifact import sha256_of
from relm.devices.ipu import worker_process
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning import TuningRun
from relm.evaluation.tuning import evaluate_tuning
from relm.recipes.fine_tuning import FineTuning, Glue, Squad
from relm.recipes.pipeline import Pipeline
from relm.training.kill_points import KILL_AT
from tiny_encoders import TINY, TINY_ROBERTA, write_model
from tiny_runs import FORKS

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
WITH_TIMES = ("train.jsonl", "shards.json", "lock", "device.json")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that returns a tiny model, of which large weights learn in a few steps."""
    folder = tmp_path_factory.mktemp("models")

    def made(family: str, dropout: float) -> Path:
        config = {"bert": TINY, "roberta": TINY_ROBERTA}[family]
        own = folder / f"{family}-{dropout}"
        if not own.exists():
            own.mkdir()
            write_model(own, replace(config, initializer_range=0.2, hidden_dropout=dropout, attention_dropout=dropout))
        return own

    return made


@dataclass
class Tuned:
    """An evaluation by fine-tuning, in a folder, on simulated IPUs or on a CPU."""

    model: Path
    folder: Path
    task: str
    pipeline: Pipeline | None = PIPELINE
    """None: on a CPU."""

    def run(self, options: FineTuning | None = None, how: TuningRun | None = None, **execution: Any) -> None:
        """Evaluate in this process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = options or OPTIONS[self.task]
        device = "ipu_simulator" if self.pipeline else "cpu"
        given: dict[str, Any] = {
            "output": self.folder / "result.json",
            "task": "result",
            "options": options,
            "execution": Execution(**{"device": device, "threads": 1, "pipeline": self.pipeline, **execution}),
            "how": how or TuningRun(checkpoint_interval=2, keep_models=True),
        }
        tokenizer = self.model / "tokenizer.json"
        if isinstance(options, Squad):
            evaluate_tuning(self.model, tokenizer, SAMPLE, SAMPLE, **given)
        else:
            file = write_parquet(self.folder / "train.parquet", self.task)
            evaluate_tuning(self.model, tokenizer, file, file, **given)

    def attempt(self, kill_at: str) -> int | None:
        """Evaluate in a process of its own, which kills itself at a point; return its exit code."""
        process = FORKS.Process(target=_attempt, args=(self, kill_at))
        process.start()
        process.join(200)
        process.kill()
        process.join()
        return process.exitcode

    @property
    def phase(self) -> Path:
        """The folder of the one training run."""
        (found,) = self.folder.glob(f"result/*/seed-*/{'squad' if self.task == 'squad' else 'glue'}")
        return found

    def losses(self) -> npt.NDArray[np.float64]:
        """Return the loss of each line of the log."""
        return np.array([json.loads(line)["loss"] for line in (self.phase / "train.jsonl").read_text().splitlines()])

    def result(self) -> dict[str, Any]:
        """Return the content of the result."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def content(self) -> dict[str, str]:
        """Return the sha256 of each file that is left, without those with times and processes."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.name not in WITH_TIMES]
        return {str(path.relative_to(self.folder)): sha256_of(path) for path in files}


def _attempt(tuned: Tuned, kill_at: str) -> None:
    os.environ[KILL_AT] = kill_at
    worker_process.start_worker = start_forked  # type: ignore[assignment]
    try:
        tuned.run()
    except RelmError as error:
        print(error)
        sys.exit(error.exit_code)
    assert "torch._dynamo" not in sys.modules, "torch's compiler was imported, which takes seconds"


@pytest.mark.parametrize(
    ("task", "family"),
    [("squad", "bert"), pytest.param("stsb", "roberta", marks=FULL), pytest.param("mnli", "bert", marks=FULL)],
)
def test_simulated_ipus_take_the_steps_of_a_cpu(task: str, family: str, models: Callable[..., Path], tmp_path: Path) -> None:
    here = Tuned(models(family, 0.0), tmp_path / "cpu", task, pipeline=None)
    there = Tuned(here.model, tmp_path / "ipus", task)
    here.run()
    there.run()
    assert len(there.losses()) > 1
    np.testing.assert_allclose(there.losses(), here.losses(), rtol=1e-5)
    assert there.losses()[-1] < there.losses()[0], "it does not learn"
    made_on = [json.loads((run.phase / "checkpoints.jsonl").read_text().splitlines()[-1])["made_on"] for run in (here, there)]
    assert [each["device"] for each in made_on] == ["cpu", "ipu_simulator"]
    assert made_on[1]["replicas"] == 2
    assert there.content().keys() == here.content().keys(), "other files are left than on a CPU"
    figures = [list(run.result()["figures"].values()) for run in (there, here)]
    np.testing.assert_allclose(*figures, rtol=1e-3)


@pytest.mark.parametrize("kills", [("updates:2",), pytest.param(("checkpoint-renamed:1", "updates:2"), marks=FULL)])
def test_a_killed_run_is_resumed_to_the_same_bytes(kills: tuple[str, ...], models: Callable[..., Path], tmp_path: Path) -> None:
    half = PIPELINE.model_copy(update={"precision": "float16"})  # weights that the simulator rounds at random
    whole = Tuned(models("bert", 0.1), tmp_path / "whole", "mnli", half)
    whole.run()
    killed = replace(whole, folder=tmp_path / "killed")
    for kill in kills:
        assert killed.attempt(kill) == -signal.SIGKILL, kill
        assert not (killed.folder / "result.json").exists()
    assert killed.attempt("") == 0
    assert killed.content() == whole.content()
