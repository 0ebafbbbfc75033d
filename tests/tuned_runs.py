"""Evaluations by fine-tuning on tiny files, in this process or in one that kills itself, and transformers' own steps."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file

from glue_files import write_parquet, write_tsv
from question_files import SAMPLE
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.seeds import TuningRun
from relm.evaluation.fine_tuning.tuning import evaluate_tuning
from relm.examples.builders import open_examples
from relm.examples.contract import numbers_at
from relm.models.bert_configuration import BertConfig
from relm.models.bert_model import EncoderModel
from relm.recipes.evaluation.fine_tuning import FineTuning, Glue
from relm.recipes.objectives import Objective
from relm.training.kill_points import KILL_AT
from relm.training.phase_run import derived_seed
from tiny_encoders import write_model
from tiny_runs import FORKS

WITH_TIMES = ("train.jsonl", "shards.json", "lock", "device.json")
ONE_THREAD = Execution(threads=1)
OFTEN = TuningRun(micro_batch_size=1, checkpoint_interval=3, keep_models=True)
# Large weights and no dropout, with which a few steps change predictions.
LEARNING = {"initializer_range": 0.2, "hidden_dropout": 0.0, "attention_dropout": 0.0}


def learner(folder: Path, config: BertConfig, **changes: Any) -> Path:
    """Write a model that learns fast into a new folder, and return it."""
    folder.mkdir()
    return write_model(folder, BertConfig(**{**vars(config), **LEARNING, **changes}))


@dataclass
class Tuned:
    """An evaluation by fine-tuning, in a folder."""

    model: Path
    folder: Path
    options: FineTuning
    execution: Execution = ONE_THREAD
    how: TuningRun = OFTEN
    mismatched: bool = False

    def run(self, **changes: Any) -> dict[str, Any]:
        """Evaluate in this process, and return the figures."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file, other = SAMPLE, None
        if isinstance(self.options, Glue):
            file = self.folder / "train.parquet"
            if not file.exists():
                write_parquet(file, self.options.task)
            other = write_tsv(self.folder / "other.tsv", self.options.task) if self.mismatched else None
        given = {
            "training_file": file,
            "file": file,
            "mismatched_file": other,
            "output": self.folder / "result.json",
            "task": "result",
            "options": self.options,
            "execution": self.execution,
            "how": self.how,
        }
        evaluate_tuning(self.model, self.model / "tokenizer.json", **given | changes)
        return self.figures()

    def prepare(self) -> None:
        """Do nothing, in a process of `attempt`, before it evaluates."""

    def attempt(self, kill_at: str = "") -> int | None:
        """Evaluate in a separate process, which kills itself at a point, and return its exit code."""
        process = FORKS.Process(target=_attempt, args=(self, kill_at))
        process.start()
        process.join(400)
        process.kill()
        process.join()
        return process.exitcode

    @property
    def runs(self) -> Path:
        """The folder of the training runs, of which there must be one."""
        (found,) = (self.folder / "result").glob("*/")
        return found

    def trained(self, seed: int) -> Path:
        """Return the folder of a seed's model."""
        (found,) = self.runs.glob(f"seed-{seed}/*/model")
        return found

    def losses(self) -> list[float]:
        """Return the loss of each line of the log of the only seed."""
        (log,) = self.runs.glob("seed-*/*/train.jsonl")
        return [json.loads(line)["loss"] for line in log.read_text().splitlines()]

    def figures(self) -> dict[str, Any]:
        """Return the figures of the result."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())["figures"]
        return found

    def content(self) -> dict[str, str]:
        """Return the sha256 of each file that is left, without those with times and processes."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.name not in WITH_TIMES]
        return {str(path.relative_to(self.folder)): sha256_of(path) for path in files}


def _attempt(tuned: Tuned, kill_at: str) -> None:
    os.environ[KILL_AT] = kill_at
    tuned.prepare()
    try:
        tuned.run()
    except RelmError as error:
        print(error)
        sys.exit(error.exit_code)
    assert {"torch_xla", "torch._dynamo"} & set(sys.modules) != {"torch._dynamo"}, "torch's compiler takes seconds to import"


@dataclass
class TransformersSteps:
    """The steps that transformers' own model takes on the examples of a run with one seed, from the same weights."""

    tuned: Tuned
    start: EncoderModel
    """The encoder with the new head of seed 0."""
    kind: Any
    """The class of transformers."""
    objective: str
    phase: str
    labels: Mapping[str, str] | None = None
    """Argument of transformers' model -> label of the examples; None: `answer_positions`, as starts and ends."""

    tolerance: ClassVar[dict[str, float]] = {"rtol": 1e-3, "atol": 1e-4}

    def require_same(self, steps: int) -> None:
        """Train, and compare the weights."""
        options, begun = self.tuned.options, self.tuned.folder / "start"
        begun.mkdir()
        self.start.save_folder(begun, {})
        theirs = self.kind.from_pretrained(begun).train()
        named = dict(theirs.named_parameters())
        groups = [
            {"params": [weight for weight in named.values() if weight.dim() > 1], "weight_decay": 0.01},
            {"params": [weight for weight in named.values() if weight.dim() == 1], "weight_decay": 0.0},
        ]
        optimizer, warmup, size = torch.optim.AdamW(groups, eps=1e-6), int(0.1 * steps), options.batch_size
        objective = Objective(objective=self.objective, sequence_length=options.sequence_length)
        examples = open_examples(self.tuned.runs / "examples" / "manifest.json", "train", objective, 0)
        for step in range(1, steps + 1):
            order = numbers_at(examples, derived_seed(0, "order", self.phase), np.arange(size * (step - 1), size * step))
            batch = {name: torch.from_numpy(array) for name, array in examples.batch(*order).items()}
            theirs(**self.given(batch, theirs.config.model_type)).loss.backward()
            torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
            for group in optimizer.param_groups:  # the warm-up, and then a line to 0
                group["lr"] = options.learning_rate * min(step / warmup, (steps - step) / (steps - warmup))
            optimizer.step()
            optimizer.zero_grad()
        ours, before = (load_file(folder / "model.safetensors") for folder in (self.tuned.trained(0), begun))
        assert set(ours) == set(named)
        for name, weight in named.items():
            torch.testing.assert_close(ours[name], weight.detach(), msg=lambda m, n=name: f"{n}: {m}", **self.tolerance)
            assert name.endswith("key.bias") or not torch.equal(ours[name], before[name]), name

    def given(self, batch: dict[str, torch.Tensor], family: str) -> dict[str, torch.Tensor]:
        """Return the arguments of transformers' model."""
        if family == "roberta":  # it has one kind of segment
            del batch["token_type_ids"]
        if self.labels is not None:
            return batch | {theirs: batch.pop(ours) for theirs, ours in self.labels.items()}
        starts, ends = batch.pop("answer_positions").T
        return batch | {"start_positions": starts, "end_positions": ends}
