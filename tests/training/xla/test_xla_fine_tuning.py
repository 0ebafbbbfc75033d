"""Fine-tuning as an evaluation on XLA devices: the steps are a CPU's, and a killed run ends with the same bytes."""

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
from as_tpu import behave_as_tpu

from glue_files import write_parquet
from question_files import SAMPLE
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning import TuningRun
from relm.evaluation.tuning import evaluate_tuning
from relm.recipes.fine_tuning import FineTuning, Glue, Squad
from relm.training.kill_points import KILL_AT
from small_pci import pci_bus
from tiny_encoders import TINY, TINY_ROBERTA, write_model
from tiny_runs import FORKS

DEVICES = 4
FULL = pytest.mark.full
OPTIONS: dict[str, FineTuning] = {
    "mnli": Glue(task="mnli", sequence_length=32, batch_size=8, epochs=13, seeds=1, seed=5, learning_rate=1e-3),
    "stsb": Glue(task="stsb", sequence_length=32, batch_size=8, epochs=13, seeds=1, seed=5, learning_rate=1e-3),
    "squad": Squad(
        sequence_length=48, doc_stride=16, max_query_length=12, batch_size=8, epochs=13, seeds=1, learning_rate=1e-3
    ),
}
WITH_TIMES = ("train.jsonl", "shards.json", "lock", "device.json")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that returns a tiny model, of which large weights learn in a few steps."""
    folder = tmp_path_factory.mktemp("models")

    def made(family: str, dropout: float) -> Path:
        config = replace(
            {"bert": TINY, "roberta": TINY_ROBERTA}[family],
            initializer_range=0.2,
            hidden_dropout=dropout,
            attention_dropout=dropout,
        )
        own = folder / f"{family}-{dropout}"
        if not own.exists():
            own.mkdir()
            write_model(own, config)
        return own

    return made


@dataclass
class Tuned:
    """An evaluation by fine-tuning, in a folder, on XLA devices or on torch's CPU."""

    model: Path
    folder: Path
    task: str = "mnli"
    devices: int = DEVICES
    """The count of XLA devices; 0: torch's own CPU device."""
    pci: Path | None = None
    """A PCI bus with TPU chips, as which the CPU client behaves; None: as itself."""

    def run(self) -> None:
        """Evaluate in this process, which must not have opened its devices yet."""
        os.environ["CPU_NUM_DEVICES"] = str(self.devices or 1)
        if self.pci is not None:
            behave_as_tpu(self.pci)
        options = OPTIONS[self.task]
        given: dict[str, Any] = {
            "output": self.folder / "result.json",
            "task": "result",
            "options": options,
            "execution": Execution("tpu" if self.devices else "cpu", threads=1),
            "how": TuningRun(checkpoint_interval=3, keep_models=True),
        }
        tokenizer = self.model / "tokenizer.json"
        if isinstance(options, Squad):
            evaluate_tuning(self.model, tokenizer, SAMPLE, SAMPLE, **given)
        else:
            file = write_parquet(self.folder / "train.parquet", self.task)
            evaluate_tuning(self.model, tokenizer, file, file, **given)

    def attempt(self, kill_at: str = "") -> tuple[int | None, str]:
        """Evaluate in a process of its own, which kills itself at a point; return its exit code and the message."""
        self.folder.mkdir(parents=True, exist_ok=True)
        process = FORKS.Process(target=_attempt, args=(self, kill_at))
        process.start()
        process.join(200)
        process.kill()
        process.join()
        message = self.folder / "message.txt"
        return process.exitcode, message.read_text() if message.exists() else ""

    def done(self) -> "Tuned":
        """Evaluate to the end."""
        code, message = self.attempt()
        assert code == 0, message
        return self

    @property
    def phase(self) -> Path:
        """The folder of the one training run."""
        name = "squad" if self.task == "squad" else "glue"
        (found,) = self.folder.glob(f"result/*/seed-*/{name}")
        return found

    def losses(self) -> npt.NDArray[np.float64]:
        """Return the loss of each line of the log."""
        return np.array([json.loads(line)["loss"] for line in (self.phase / "train.jsonl").read_text().splitlines()])

    def figures(self) -> list[float]:
        """Return the figures of the trained model."""
        found: dict[str, float] = json.loads((self.folder / "result.json").read_text())["figures"]
        return list(found.values())

    def content(self) -> dict[str, str]:
        """Return the sha256 of each file that is left, without those with times and processes."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.name not in WITH_TIMES]
        return {str(path.relative_to(self.folder)): sha256_of(path) for path in files}


def _attempt(tuned: Tuned, kill_at: str) -> None:
    os.environ[KILL_AT] = kill_at
    try:
        tuned.run()
    except RelmError as error:
        (tuned.folder / "message.txt").write_text(str(error))
        sys.exit(error.exit_code)


@pytest.mark.parametrize(
    ("task", "family"),
    [("mnli", "bert"), pytest.param("squad", "bert", marks=FULL), pytest.param("stsb", "roberta", marks=FULL)],
)
def test_xla_devices_take_the_steps_of_a_cpu(task: str, family: str, models: Callable[..., Path], tmp_path: Path) -> None:
    here = Tuned(models(family, 0.0), tmp_path / "cpu", task, devices=0).done()
    there = Tuned(here.model, tmp_path / "xla", task).done()
    assert len(there.losses()) > 1
    np.testing.assert_allclose(there.losses(), here.losses(), rtol=1e-5)
    assert there.losses()[-1] < there.losses()[0], "it does not learn"
    made_on = [json.loads((run.phase / "checkpoints.jsonl").read_text().splitlines()[-1])["made_on"] for run in (here, there)]
    assert [each["device"] for each in made_on] == ["cpu", "tpu"]
    assert (made_on[1]["name"], made_on[1]["devices"]) == ("XLA:CPU", DEVICES)
    assert there.content().keys() == here.content().keys(), "other files are left than on a CPU"
    np.testing.assert_allclose(there.figures(), here.figures(), rtol=1e-3)


def test_a_killed_run_is_resumed_to_the_same_bytes(models: Callable[..., Path], tmp_path: Path) -> None:
    whole = Tuned(models("bert", 0.1), tmp_path / "whole").done()
    killed = replace(whole, folder=tmp_path / "killed")
    for kill in ("checkpoint-renamed:1", "gradient:5"):
        assert killed.attempt(kill)[0] == -signal.SIGKILL, kill
        assert not (killed.folder / "result.json").exists()
    assert killed.done().content() == whole.content()


@FULL
def test_a_tpu_keeps_its_programs_until_all_seeds_are_scored(models: Callable[..., Path], tmp_path: Path) -> None:
    here = Tuned(models("bert", 0.0), tmp_path / "cpu", devices=0).done()
    there = Tuned(here.model, tmp_path / "tpu", pci=pci_bus(tmp_path / "pci", "v3", "v3"))
    assert there.attempt("model-written:1")[0] == -signal.SIGKILL
    (kept,) = there.folder.glob("result/*/compiled/*")
    assert any(kept.iterdir())
    assert not list(there.phase.glob("compiled/*")), "a run has programs of its own"
    np.testing.assert_allclose(there.done().losses(), here.losses(), rtol=1e-5)
    assert there.figures() == here.figures()
    assert not kept.exists()
