"""Tiny runs on XLA's CPU client, each in a separate process, since a process has a fixed count of devices."""

import json
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from relm.recipes.recipe import Recipe
from relm.recipes.section import merge
from relm.training.loop import pretrain
from tiny_runs import FORKS, TinyRun, _attempt

# Objective -> model options that turn dropout off.
WITHOUT_DROPOUT: dict[str, dict[str, Any]] = {
    "causal": {"dropout": 0.0},
    "masked": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
    "seq2seq": {"dropout": 0.0},
}
SHORT = {
    "pretrain": {"main": {"steps": 6, "precision": "float32", "global_batch_size": 8}},
    "run": {"micro_batch_size": None, "log_interval": 1, "checkpoint_interval": 3},
}


@dataclass
class XlaRun(TinyRun):
    """A run of six steps of eight sequences, on XLA devices or on torch's CPU."""

    devices: int = 8
    """The count of XLA devices; 0: torch's own CPU device."""
    dropout: bool = False
    one_tpu: bool = False

    @property
    def recipe(self) -> Recipe:
        model = {} if self.dropout else {"model": WITHOUT_DROPOUT[self.objective]}
        device = {"run": {"device": "tpu" if self.devices else "cpu"}}
        plain = TinyRun(self.folder, self.examples, merge(merge(merge(SHORT, model), device), self.changes))
        plain.objective = self.objective
        return plain.recipe

    def train(self) -> str:
        """Train in this process, which must not have opened its devices yet."""
        os.environ["CPU_NUM_DEVICES"] = str(self.devices or 1)
        message = self.pretrained()
        if self.devices:
            import torch_xla.debug.metrics as metrics

            (self.folder / "programs").write_text(str(metrics.metric_data("CompileTime")[0]))
        return message

    def pretrained(self) -> str:
        """Train once the count of devices is set, and return the message."""
        return pretrain(
            recipe=self.recipe,
            phase="main",
            manifest=self.examples / "manifest.json",
            tokenizer=self.examples / "tokenizer.json",
            init_from=self.init_from,
            model_folder=self.model_folder,
            run_fingerprint=self.fingerprint,
            one_tpu=self.one_tpu,
        )

    def trained(self, kill_at: str = "") -> "XlaRun":
        """Train to the end, or until it kills itself, once."""
        if not (self.model_folder / "model.safetensors.json").exists():
            code, message = self.attempt(kill_at)
            assert code == (-signal.SIGKILL if kill_at else 0), message
        return self

    def terminated(self, lines: int) -> tuple[int | None, str]:
        """Train until the log has this many lines, send TERM, and return the exit code and the message."""
        self.folder.mkdir(parents=True, exist_ok=True)
        process = FORKS.Process(target=_attempt, args=(self, "", None))
        process.start()
        log, deadline = self.folder / "main" / "train.jsonl", time.monotonic() + 200
        while not log.exists() or log.read_text().count("\n") < lines:
            assert time.monotonic() < deadline, "the trainer did not write its lines"
            assert process.is_alive(), "the trainer ended before it could be stopped"
            time.sleep(0.005)
        process.terminate()
        process.join(200)
        return process.exitcode, (self.folder / "message.txt").read_text()

    @property
    def programs(self) -> int:
        """Return the count of programs compiled by the process that ended the run."""
        return int((self.folder / "programs").read_text())

    def columns(self, *names: str) -> npt.NDArray[np.float64]:
        """Return figures of all lines that have them: (lines, names)."""
        return np.array([[line[name] for name in names] for line in self.lines() if set(names) <= set(line)])

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trained weights without biases: a key's gradient is only rounding, which Adam turns into full steps."""
        tensors = load_file(self.model_folder / "model.safetensors")
        return {name: tensor for name, tensor in tensors.items() if not name.endswith("bias")}

    def made_on(self) -> list[str]:
        """Return the device of each listed checkpoint."""
        return [json.loads(line)["made_on"]["device"] for line in self.listed().splitlines()]


@dataclass
class SecondPhase(XlaRun):
    """The phase "second" of its changes, after the last checkpoint of a finished run of "main"."""

    before: XlaRun | None = None

    def pretrained(self) -> str:
        """Train in this process."""
        assert self.before is not None
        kept = self.recipe.pretrain["second"].optimizer_state == "kept"
        checkpoint = self.before.folder / "main" / "checkpoints" / self.before.checkpoints[-1]
        return pretrain(
            recipe=self.recipe,
            phase="second",
            manifest=self.examples / "manifest.json",
            tokenizer=self.examples / "tokenizer.json",
            init_from=self.before.model_folder,
            model_folder=self.model_folder,
            run_fingerprint=self.fingerprint,
            optimizer_from=checkpoint if kept else None,
        )


def assert_same_figures(run: XlaRun, other: XlaRun, rounding: float = 1e-5) -> None:
    """Compare losses, norms, validation losses and weights up to rounding."""
    figures = ["loss", "gradient_norm", *sorted(name for name in run.lines()[0] if name.endswith("accuracy"))]
    assert len(run.columns("loss")) == len(other.columns("loss")) == run.recipe.pretrain["main"].steps
    np.testing.assert_allclose(run.columns(*figures), other.columns(*figures), rtol=rounding)
    np.testing.assert_allclose(run.columns("validation_loss"), other.columns("validation_loss"), rtol=rounding)
    weights = other.weights()
    for name, weight in run.weights().items():
        np.testing.assert_allclose(weight, weights[name], atol=20 * rounding, err_msg=name)


def assert_same_bytes(run: XlaRun, other: XlaRun) -> None:
    """Compare lines, checkpoints, optimizer state and model byte for byte."""
    assert run.lines() == other.lines()
    assert run.listed() == other.listed()
    assert run.last_optimizer() == other.last_optimizer()
    assert run.sha256() == other.sha256()
