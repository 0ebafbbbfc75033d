"""Pretraining: one phase of a recipe, from examples to a model folder, and exactly the same after any interruption.

Step s of a phase is a function of the weights after step s - 1 and of s alone: the learning rate, the batch and dropout's
random numbers are computed from s, never carried along.
"""

import hashlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor

from relm.artifact import read_json, sha256_of
from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.examples.causal import CausalExamples
from relm.examples.order import example_indices
from relm.launch.limits import require_disk, require_memory, require_time
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.recipe import Phase, Recipe
from relm.training.checkpoints import Checkpoint, load_checkpoint, newest_checkpoint, save_checkpoint
from relm.training.export import is_finished, write_model
from relm.training.interruption import Preempted, StopRequest, run_lock, stop_requests, stop_with_parent
from relm.training.kill_points import kill_point
from relm.training.optimizers import build_optimizer, optimizer_tensors, restore_optimizer, set_learning_rate
from relm.training.progress import Progress
from relm.training.run_log import RunLog
from relm.training.schedules import learning_rate_scale
from relm.training.step import accumulate_gradients

# After so many steps of a process the rate is steady enough to say how long the rest will take.
TIMED_STEPS = 10

logger = logging.getLogger(__name__)


def pretrain(
    recipe: Recipe,
    phase: str,
    manifest: Path,
    tokenizer: Path,
    init_from: Path | None,
    model_folder: Path,
    run_fingerprint: str,
) -> str:
    """Train one phase, going on from its newest checkpoint if there is one.

    Beside `model_folder` lie `train.jsonl`, `checkpoints/` and `lock`. Neither the model's bytes nor `train.jsonl`, its times
    aside, depend on how often training was interrupted.

    Args:
        phase: a key of ``recipe.pretrain``.
        manifest: of the examples.
        tokenizer: the `tokenizer.json` that they were made with.
        init_from: Hugging Face folder with the initial weights, of the phase before or as published; None: random.
        model_folder: where the model is written, the sidecar of its weights last.
        run_fingerprint: what the run means; checkpoints of another are refused.

    Returns:
        A sentence that says what was done.

    Raises:
        Preempted: TERM or INT came; a checkpoint was saved, and the same call goes on.
        RelmError: the inputs do not fit together, the machine is too small, or the loss is no longer a number.
    """
    stop_with_parent()
    settings = recipe.pretrain[phase]
    identity = {"fingerprint": run_fingerprint, "phase": phase, "manifest_sha256": sha256_of(manifest)}
    facts = {"step": settings.steps, "fingerprint": run_fingerprint, "manifest_sha256": identity["manifest_sha256"]}
    with run_lock(model_folder.parent / "lock"):
        if is_finished(model_folder, facts):
            return f"already trained: {model_folder} holds step {settings.steps:,} of phase {phase}"
        tokens = tokenizer_facts(manifest, tokenizer)
        config = architecture(recipe, tokens["vocabulary_size"])
        require_resources(config, recipe, settings, model_folder.parent)
        examples = CausalExamples(manifest, "train", settings.sequence_length)
        device = open_device(recipe.run.device, recipe.run.threads)
        checkpoint = load_checkpoint(model_folder.parent / "checkpoints", identity)
        model = Gpt2(config) if checkpoint else initial_model(config, recipe.seed, init_from)
        with stop_requests() as stop:
            summary = train(recipe, phase, examples, model_folder.parent, identity, device, model, checkpoint, stop)
            facts["parameters"] = model.parameter_count()
            write_model(model, model_folder, tokenizer, tokens["end_of_text_id"], facts)
    return f"{summary}; {model_folder}"


def train(
    recipe: Recipe,
    phase: str,
    examples: CausalExamples,
    run_folder: Path,
    identity: Mapping[str, str],
    device: Device,
    model: Gpt2,
    checkpoint: Checkpoint | None,
    stop: StopRequest,
) -> str:
    """Take the steps of a phase that `checkpoint` has not behind it yet; returns a sentence on all of them."""
    settings, run = recipe.pretrain[phase], recipe.run
    tokens_per_step = settings.global_batch_size * settings.sequence_length
    model = device.place(model).train()
    optimizer = build_optimizer(model, settings.optimizer)
    meter = Meter(device.describe() | {"micro_batch_size": run.micro_batch_size})
    if checkpoint is not None:
        model.load_state_dict(checkpoint.model)
        restore_optimizer(optimizer, model, checkpoint.optimizer)
        meter.resume(checkpoint)
    log = RunLog(run_folder / "train.jsonl", meter.step)
    progress = Progress(f"pretrain {phase}", meter.step, settings.steps, tokens_per_step)

    for step in range(meter.step + 1, settings.steps + 1):
        learning_rate = settings.optimizer.learning_rate * learning_rate_scale(settings.schedule, step, settings.steps)
        set_learning_rate(optimizer, learning_rate)
        batch = examples.batch(batch_indices(recipe.seed, phase, step, settings.global_batch_size, len(examples)))
        micro_batches = seeded_micro_batches(batch, run.micro_batch_size, device, (recipe.seed, "dropout", phase, step))
        loss = accumulate_gradients(
            model, micro_batches, batch[:, 1:].size, lambda: device.autocast(settings.precision)
        )
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.gradient_clipping or math.inf)
        kill_point("step")
        optimizer.step()
        optimizer.zero_grad()
        meter.count(loss, norm)
        progress.advance(step)

        logs = step == 1 or step % run.log_interval == 0 or step == settings.steps
        saves = step % run.checkpoint_interval == 0 or step == settings.steps or bool(stop)
        if logs or saves:
            meter.read(newest_checkpoint(run_folder / "checkpoints"))
        if logs:
            epoch = step * settings.global_batch_size / len(examples)
            line = {"step": step, "epoch": epoch, "learning_rate": learning_rate, **meter.line(tokens_per_step)}
            log.write(line)
            progress.report(line["loss"], line["tokens_per_second"])
        if saves:
            log.sync()
            folder = save_checkpoint(
                run_folder / "checkpoints",
                {**identity, **meter.state()},
                model.state_dict(),
                optimizer_tensors(optimizer, model),
                run.keep_checkpoints,
            )
            if stop and step < settings.steps:
                raise Preempted(
                    f"stopped by {stop.signal} at step {step:,} of {settings.steps:,}; saved {folder}; "
                    "the same command goes on from there"
                )
        if step == first + TIMED_STEPS:
            device.synchronise()
    log.close()
    progress.close()
    return summary
