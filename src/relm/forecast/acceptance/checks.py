"""The checks of `relm accept`: each takes a run and a recipe, and returns a sentence and figures, or raises.

RelmError: failed; NotApplicable: it does not apply here. docs/devices.md has the limits and tolerances.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.forecast.acceptance.check_run import CheckRun, NotApplicable, TooSlow
from relm.forecast.acceptance.twins import Form, name_phase, place_twin, twin_of, write_examples, write_text
from relm.formatting import format_bytes
from relm.recipes.devices import DEVICES, HOST, list_inference_devices
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import LOG
from relm.training.attested_hashes import line_facts, read_lines
from relm.training.checkpoint_state import read_state
from relm.training.checkpoints import newest_checkpoint

EXACT_STEPS = 6
EXACT, WIDE = 1e-5, 0.03
TOLERANCES = {"cuda": (2e-4, 0.02)}
"""Device -> the relative difference of a loss from a CPU's in float32 in the first steps, and in the recipe's number formats;
others: EXACT and WIDE."""
KILLS = ("checkpoint-renamed:1", "data:2")
Lines = Mapping[int, Mapping[str, Any]]


class Checks:
    """The checks, with the twins, examples and runs that several of them read."""

    def __init__(self, project: Project, device: str) -> None:
        self.project, self.device = project, device
        self.exact, self.wide = TOLERANCES.get(device, (EXACT, WIDE))
        self._twins: dict[str, tuple[Recipe, Path]] = {}
        self._runs: dict[tuple[str, str, Form], Path] = {}

    def compare_losses(self, run: CheckRun, name: str) -> tuple[str, dict[str, Any]]:
        """Compare the first losses in float32 without dropout with a CPU's."""
        ours, theirs = (read_losses(self._train(run, name, device, "exact")) for device in (self.device, HOST))
        first = {step: line for step, line in ours.items() if step <= EXACT_STEPS} or ours  # one call may take more steps
        return judge(find_difference(first, theirs, ("loss",)), self.exact, "float32 losses of the first steps")

    def compare_formats(self, run: CheckRun, name: str) -> tuple[str, dict[str, Any]]:
        """Compare all losses in the recipe's number formats, without dropout, with a CPU's in float32."""
        ours = read_losses(self._train(run, name, self.device, "formats"))
        theirs = read_losses(self._train(run, name, HOST, "exact"))
        return judge(find_difference(ours, theirs, ("loss", "validation_loss")), self.wide, "losses in the recipe's formats")

    def resume(self, run: CheckRun, name: str) -> tuple[str, dict[str, Any]]:
        """Kill a run twice, and compare the bytes of its end with those of a run that was not killed."""
        whole, killed = self._train(run, name, self.device, "own"), run.new_path("killed")
        for kill_at in KILLS:
            self._start(run, name, self.device, "own", killed, kill_at)
            if newest_checkpoint(killed / "checkpoints") is None:
                raise RelmError(f"killed at {kill_at}, the run has no checkpoint to resume")
        self._start(run, name, self.device, "own", killed)
        require_same(digest(whole), digest(killed), "the run that was killed twice")
        return f"killed at {' and '.join(KILLS)}, and resumed to the same bytes", {"kills": list(KILLS), **digest(whole)}

    def repeat(self, run: CheckRun, name: str) -> tuple[str, dict[str, Any]]:
        """Train two more times in new processes, and compare the bytes."""
        whole = self._train(run, name, self.device, "own")
        for number in (1, 2):
            again = run.new_path("again")
            self._start(run, name, self.device, "own", again)
            require_same(digest(whole), digest(again), f"repetition {number}")
        return "two repetitions in new processes have the same bytes", digest(whole)

    def measure(self, run: CheckRun, name: str) -> tuple[str, dict[str, Any]]:
        """Take full-size steps, and report speed and memory."""
        declaration, recipe = DEVICES[self.device], self.project.plan(name).recipe
        if is_stand_in(self.device):
            raise NotApplicable("a stand-in has neither the speed nor the memory of the device")
        if recipe.run.processes > 1:
            raise NotApplicable(f"needs {recipe.run.processes} processes; give NAME@MACHINE with one accelerator")
        if not declaration.runs_torch and not run.full:
            raise NotApplicable("compiles for minutes at full size; --full does it")
        try:
            steps = run.ask_worker("steps", name=name, device=self.device, full=run.full)
        except TooSlow:
            raise NotApplicable("its steps take longer than the time of this check") from None
        except RelmError as error:
            if "memory" in str(error):
                raise NotApplicable(f"does not fit: {error}") from None
            raise
        if not math.isfinite(steps["loss"]) or steps["tokens_per_second"] <= 0:
            raise RelmError(f"the loss is {steps['loss']}, at {steps['tokens_per_second']:.3g} tokens/s")
        if steps["memory_bytes"] is not None and steps["memory_bytes"] <= 0:
            raise RelmError(f"the device reports {steps['memory_bytes']} bytes of memory in use")
        memory = "memory not reported" if steps["memory_bytes"] is None else format_bytes(steps["memory_bytes"])
        return f"{steps['tokens_per_second']:,.0f} tokens/s, {memory}", steps

    def evaluate(self, run: CheckRun, name: str) -> tuple[str, dict[str, Any]]:
        """Evaluate the trained twin on the CPU and on the device."""
        if self.device not in list_inference_devices():
            raise NotApplicable(f"relm evaluates models of {self.device} on the CPU; formats has its held-out loss")
        model, (twin, examples) = self._train(run, name, self.device, "own") / "model", self._twin(run, name)
        objective, text = twin.pretrain[name_phase(twin)].objective, run.new_path("text.txt")
        write_text(text)
        commands = {
            "causal": ["perplexity", "--file", str(text)],
            "masked": ["masked-lm", "--manifest", str(examples / "manifest.json"), "--recipe", f"smoke/{name}"],
        }
        if objective not in commands:
            raise NotApplicable(f"no evaluation of {objective} runs on {self.device}")
        figures = list[Mapping[str, float]]()
        for device in (self.device, HOST):
            output = run.new_path("evaluated.json")
            words = [*commands[objective], "--model", str(model), "--device", device, "--output", str(output)]
            status, stderr = run.run_python(["-m", "relm", *words])
            if status:
                raise RelmError(f"relm {commands[objective][0]} --device {device}: {stderr.strip().splitlines()[-1]}")
            figures.append(read_json(output)["figures"])
        names = tuple(key for key in figures[1] if "accuracy" not in key)
        return judge(
            find_difference({0: figures[0]}, {0: figures[1]}, names), self.exact, f"figures of {commands[objective][0]}"
        )

    def _twin(self, run: CheckRun, name: str) -> tuple[Recipe, Path]:
        """Return a recipe's twin and the folder of its examples, made once."""
        if name not in self._twins:
            twin = twin_of(self.project, name)
            language = self.project.plan(name).dataset.language
            self._twins[name] = twin, write_examples(twin, language, run.new_path("examples"))
        return self._twins[name]

    def _train(self, run: CheckRun, name: str, device: str, form: Form) -> Path:
        """Return the folder of a finished run, which several checks may read."""
        key = name, device, form
        if key not in self._runs:
            folder = run.new_path(f"{device}-{form}")
            self._start(run, name, device, form, folder)
            self._runs[key] = folder
        return self._runs[key]

    def _start(self, run: CheckRun, name: str, device: str, form: Form, folder: Path, kill_at: str = "") -> None:
        """Train a twin in a new process, from its newest checkpoint."""
        twin, examples = self._twin(run, name)
        recipe = place_twin(twin, device, form).model_dump(mode="json")
        run.ask_worker("train", kill_at=kill_at, recipe=recipe, examples=str(examples), folder=str(folder))
        if device == self.device and not kill_at:
            run.made_on = read_state(_last(folder))["made_on"]


def is_stand_in(device: str) -> bool:
    """Return True if a CPU simulates or emulates the device."""
    emulation = DEVICES[device].emulation
    is_emulated = emulation is not None and os.environ.get(emulation[0]) == emulation[1]
    return is_emulated or any(declaration.simulator == device for declaration in DEVICES)


def read_losses(folder: Path) -> Lines:
    """Return the lines of a run's log by step."""
    return {line["step"]: line for line in read_lines(folder / LOG)}


def find_difference(ours: Lines, theirs: Lines, keys: tuple[str, ...]) -> tuple[float, int]:
    """Return the largest relative difference of figures at common steps, and their count; NaN counts as infinite.

    >>> find_difference({1: {"loss": 2.0}, 3: {"loss": 1.5}}, {1: {"loss": 2.5}, 2: {"loss": 9.0}}, ("loss",))
    (0.2, 1)
    """
    pairs = [
        (ours[step][key], theirs[step][key])
        for step in ours.keys() & theirs.keys()
        for key in keys
        if key in ours[step] and key in theirs[step]
    ]
    differences = [abs(our - their) / abs(their) if their else float(our != their) for our, their in pairs]
    return max((math.inf if math.isnan(value) else value for value in differences), default=math.inf), len(pairs)


def judge(found: tuple[float, int], tolerance: float, what: str) -> tuple[str, dict[str, Any]]:
    """Return a sentence and the figures of a difference; raise RelmError if it exceeds the tolerance."""
    difference, count = found
    sentence = f"{count} {what} differ from a CPU's by at most {difference:.1e}, tolerance {tolerance:g}"
    if not difference <= tolerance:
        raise RelmError(sentence)
    return sentence, {"difference": difference, "tolerance": tolerance, "compared": count}


def digest(folder: Path) -> dict[str, Any]:
    """Return hashes of what a run ends with: weights, optimizer state, and log without times."""
    return {
        "weights": sha256_of(folder / "model" / "model.safetensors"),
        "optimizer": sha256_of(_last(folder) / "optimizer.safetensors"),
        "log": line_facts(read_lines(folder / LOG))["sha256"],
    }


def require_same(whole: Mapping[str, Any], other: Mapping[str, Any], what: str) -> None:
    """Raise RelmError with the parts of a run that have other bytes."""
    if differing := [part for part in whole if whole[part] != other[part]]:
        raise RelmError(f"{what} has other bytes than the first run: {', '.join(differing)}")


def _last(folder: Path) -> Path:
    checkpoint = newest_checkpoint(folder / "checkpoints")
    if checkpoint is None:
        raise RelmError(f"{folder}: the run has no checkpoint")
    return checkpoint
