"""How long an optimizer step will take on this CPU, from a few steps of a model that is the recipe's, but for its depth.

The same code as a real run's is timed: forward and backward pass of a micro-batch of generated examples, dropout on, then
clipping and the optimizer. With t(k) the seconds of the former for k layers, one layer takes (t(k) - t(1)) / (k - 1), and a
step takes

    micro-batches * (t(1) + (layers - 1) * one layer) + parameters * seconds of an update / parameters updated

A T5's encoder and decoder each have a term of their own. Where a micro-batch is too much for the time there is, fewer sequences
are timed, and seconds are proportional to them; so are those of t(1) without its layer to a vocabulary beyond
`LARGEST_VOCABULARY`. What several processes tell each other is not counted, nor are checkpoints and validation.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.examples.contract import Batch
from relm.examples.generated import GeneratedExamples
from relm.examples.tokenizers import SpecialIds
from relm.limits import available_memory, size_in_words, usable_cores
from relm.models.contract import LanguageModel
from relm.models.t5_configuration import T5Config
from relm.recipes.recipe import Phase, Run
from relm.training.architecture import Config, unset_model
from relm.training.arithmetic import parameters
from relm.training.loss_scaling import build_loss_scaler, finish_gradients
from relm.training.micro_batches import micro_batch_size
from relm.training.optimizers import build_optimizer, weight_type
from relm.training.resources import memory
from relm.training.step import accumulate_terms, loss_denominators, scored_counts

Clock = Callable[[], float]
# Of each model, seconds of its passes and of its update.
Turn = dict[str, tuple[float, float]]

SECONDS = 2.0
"""Of measuring, about; where three turns of `LEAST_TOKENS` take longer, that long."""
LEAST_TOKENS = 512
"""Timed at once, where the run has so many: with fewer, writing the gradients of weights is too large a part."""
LEAST_TURNS, MOST_TURNS = 2, 30
DEEPER = 2
"""Layers that the deeper model has more, where the recipe's has so many."""
LARGEST_VOCABULARY = 2**14
# So many weights are drawn, and repeated: what they are changes no time, as long as they are not denormal.
DRAWN = 2**16


class StepTime(NamedTuple):
    """Seconds of one optimizer step."""

    passes: float
    """Forward and backward."""
    update: float
    """Clipping and the optimizer."""
    sequences: int
    """How many were timed at once."""
    threads: int
    """Of each process."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.passes + self.update


def calibrate(config: Config, phase: Phase, run: Run, clock: Clock = time.perf_counter) -> StepTime:
    """Measure on this machine what a step of a phase will take; torch's number of threads is the recipe's from then on.

    Of several processes one is measured alone, with its own number of threads; where all of them together have more threads
    than there are cores, they take turns.

    Args:
        clock: in seconds, `time.process_time` on a machine that others use.

    Raises:
        RelmError: not even single sequences of the shallow models fit into memory.
    """
    threads = run.threads or max(1, usable_cores() // run.processes)
    alone = run.model_copy(update={"processes": 1, "threads": threads, "compile": False, "device": "cpu"})
    models = shallow_models(config)
    _require_memory(list(models.values()), phase, alone)
    sequences = micro_batch_size(phase, run.micro_batch_size, run.processes)
    micro_batches = phase.global_batch_size // run.processes // sequences
    device = open_device(alone)
    timers = {name: Timer(model, phase, alone, device, clock, micro_batches > 1) for name, model in models.items()}
    timed, turns = _measured(timers, math.ceil(LEAST_TOKENS / phase.sequence_length), sequences)
    passes = {name: statistics.median(turn[name][0] for turn in turns) for name in timers}
    update = sum(statistics.median(turn[name][1] for turn in turns) for name in timers)
    crowd = max(1.0, run.processes * threads / usable_cores())
    updated = sum(parameters(model).total for model in models.values())
    return StepTime(
        passes=crowd * micro_batches * sequences / timed * seconds_of(config, models, passes),
        update=crowd * update * parameters(config).total / updated,
        sequences=timed,
        threads=threads,
    )


def depths(config: Config) -> dict[str, int]:
    """How many layers there are of each kind, by the field that says so."""
    if isinstance(config, T5Config):
        return {"layers": config.layers, "decoder_layers": config.decoder_layers or config.layers}
    return {"layers": config.layers}


def shallow_models(config: Config) -> dict[str, Config]:
    """ "": the model with one layer of each kind; for each kind that has more of them, by its field, with some more."""
    there = depths(config)
    vocabulary = min(config.vocabulary_size, LARGEST_VOCABULARY)
    one = dict.fromkeys(there, 1)
    more = {name: {**one, name: min(depth, 1 + DEEPER)} for name, depth in there.items() if depth > 1}
    changes: dict[str, dict[str, Any]] = {"": one, **more}
    return {name: dataclasses.replace(config, vocabulary_size=vocabulary, **each) for name, each in changes.items()}


def seconds_of(config: Config, models: Mapping[str, Config], passes: Mapping[str, float]) -> float:
    """Seconds of a micro-batch of the whole model from those of the shallow ones, by their name in `shallow_models`."""
    a_layer = {name: (passes[name] - passes[""]) / (depths(model)[name] - 1) for name, model in models.items() if name}
    rest = passes[""] - sum(a_layer.values())
    more_tokens = config.vocabulary_size / models[""].vocabulary_size
    return rest * more_tokens + sum(depths(config)[name] * seconds for name, seconds in a_layer.items())


def _require_memory(models: list[Config], phase: Phase, run: Run) -> None:
    single = run.model_copy(update={"micro_batch_size": 1})
    wanted = [memory(model, phase, single) for model in models]
    needed = sum(each.peak - each.base for each in wanted)
    if needed > (available := available_memory()):
        raise RelmError(
            f"calibration: a model of few layers needs {size_in_words(needed)} of memory for single sequences, "
            f"{size_in_words(available)} is available; give --no-calibration, or try on a larger machine"
        )


def _measured(timers: Mapping[str, "Timer"], least: int, wanted: int) -> tuple[int, list[Turn]]:
    """As many turns as there is time for, and how many sequences each was of.

    The models take turns, so that all see the same machine. The first turn of a shape sets up its kernels and does not count.
    """
    end = time.perf_counter() + SECONDS
    _turn(timers, 1)
    begun = time.perf_counter()
    turns = [_turn(timers, 1)]
    affordable = (end - time.perf_counter()) / (time.perf_counter() - begun) / (1 + LEAST_TURNS)
    if (sequences := min(wanted, max(least, int(affordable)))) > 1:
        _turn(timers, sequences)
        turns.clear()
    while len(turns) < LEAST_TURNS or (len(turns) < MOST_TURNS and time.perf_counter() < end):
        turns.append(_turn(timers, sequences))
    return sequences, turns


def _turn(timers: Mapping[str, "Timer"], sequences: int) -> Turn:
    return {name: timer.turn(sequences) for name, timer in timers.items()}


class Timer:
    """A model with its optimizer, and how long they take."""

    def __init__(self, config: Config, phase: Phase, run: Run, device: Device, clock: Clock, accumulates: bool) -> None:
        """
        Args:
            accumulates: gradients are added to those of the micro-batch before.
        """
        self.phase, self.device, self.clock, self.accumulates = phase, device, clock, accumulates
        self.model: LanguageModel = device.place(filled(unset_model(config))).to(weight_type(phase.optimizer)).train()
        self.model.activation_checkpointing = run.activation_checkpointing
        self.optimizer = build_optimizer(self.model, phase.optimizer)
        self.scaler = build_loss_scaler(phase.loss_scaling, phase.precision, torch.device("cpu"))
        if self.scaler is not None:
            self.scaler.attach(self.optimizer)
        special = SpecialIds(end_of_text=0, pad=0, unk=1, cls=2, sep=3, mask=4)
        self.examples = GeneratedExamples(phase, config.vocabulary_size, special, phase.global_batch_size, seed=0)

    def turn(self, sequences: int) -> tuple[float, float]:
        """Seconds of the passes of so many sequences, and of the update that follows."""
        numbers = np.arange(sequences, dtype=np.int64)
        batch = self.examples.batch(numbers, np.zeros_like(numbers))
        begun = self.clock()
        self._passes(batch)
        passed = self.clock()
        finish_gradients(self.model.parameters(), self.scaler, self.phase.optimizer.gradient_clipping)
        self.optimizer.step()
        updated = self.clock()
        self.optimizer.zero_grad(set_to_none=not self.accumulates)
        return passed - begun, updated - passed

    def _passes(self, batch: Batch) -> None:
        accumulate_terms(
            self.model.terms,
            [self.device.feed(self.device.staged(batch))],
            loss_denominators([scored_counts(batch, self.phase.objective)]),
            lambda: self.device.autocast(self.phase.precision),
            self.scaler.scale if self.scaler is not None else None,
        )


def filled(model: LanguageModel) -> LanguageModel:
    """The model with some weights; a real draw would take longer than a calibration."""
    block = torch.randn(DRAWN) / 50
    with torch.no_grad():
        for parameter in model.parameters():
            for piece in torch.split(parameter.view(-1), DRAWN):
                piece.copy_(block[: len(piece)])
    return model
