"""Training on PyTorch/XLA's CPU client, in the TPU's environment: `.venv-tpu/bin/python benchmarks/xla.py step`.

`step` takes steps of a small BERT on XLA's CPU client (one device), on our own `cpu` device, and with `transformers`' Trainer
on the CPU client: the same shapes, examples, precision, AdamW and clipping, attention through `scaled_dot_product_attention`,
one thread. Each has a separate process, whose peak memory is printed, and takes its steps in turns with the others. The Trainer
needs the package accelerate, which the project's environment lacks: `pip install --no-deps accelerate`. Its default optimizer,
torch's fused AdamW, refuses XLA devices, so it has the plain one. XLA's CPU compiler is slow, so it is set to optimise little,
for both that use it; XLA_FLAGS in the environment says otherwise.

    .venv-tpu/bin/python benchmarks/xla.py host bert_large_wikitext103_v3-8_bf16

is what the host does for one step of a recipe at full size: see `benchmarks/xla_host.py`.
"""

import argparse
import dataclasses
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

STEP_SIDES = ("relm on XLA", "relm on cpu", "Trainer on XLA")
# Steps before the first turn: a program is compiled in the first two.
WARM_UP = 3


def prepare_environment(devices: int) -> None:
    """Set what PyTorch/XLA reads when it is loaded: the number of devices, one thread."""
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ["CPU_NUM_DEVICES"] = str(devices)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=1")
    logging.disable(logging.WARNING)


def recipe_of(given: argparse.Namespace, device: str = "cpu") -> Any:
    """The model and data that all sides train."""
    import loop

    from relm.recipes.recipe import Recipe

    plain = loop.recipe_of(given).model_dump()
    plain["model"]["layers"] = given.layers
    plain["run"] |= {"device": device, "micro_batch_size": given.batch}
    return Recipe.model_validate(plain)


def our_steps(given: argparse.Namespace, folder: Path, kind: str) -> Iterator[None]:
    """Yield after each of relm's steps, once the device has finished it."""

    from relm.devices.contract import open_device
    from relm.examples.manifest import read_manifest
    from relm.training.architecture import configuration
    from relm.training.learner import begin
    from relm.training.phase_run import PhaseRun, open_reader
    from relm.training.updates import open_updates

    recipe = recipe_of(given, kind)
    device = open_device(recipe.run)
    reader = open_reader(recipe, "main", folder / "manifest.json", "train", device)
    run = PhaseRun(recipe, "main", recipe.pretrain["main"], folder / "run", {}, reader, device)
    learner = begin(run, configuration(recipe, read_manifest(folder / "manifest.json").tokenizer), None)
    learner.model.train()
    updates = open_updates(run, learner)
    for given_round in reader.rounds(1, given.steps, lambda: False):
        updates.take(given_round)
        device.synchronise()
        yield


def their_steps(given: argparse.Namespace, folder: Path, report: Any) -> None:
    """Run the Trainer's steps on the CPU client; `report` is called after each, when the device has finished it."""
    import loop
    import torch_xla
    import torch_xla.core.xla_model as xm
    import transformers

    from models import their_model
    from relm.devices.contract import open_device
    from relm.training.phase_run import open_reader

    recipe = recipe_of(given)
    reader = open_reader(recipe, "main", folder / "manifest.json", "train", open_device(recipe.run))
    batches = [reader.step_input(number).micro_batches[0] for number in range(1, 9)]
    setting = dataclasses.replace(loop.setting_of(given, batches[0]["masked_positions"].shape[1]), layers=given.layers)

    class AfterEachStep(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch_xla.sync()
            xm.wait_device_ops()
            report()

    transformers.utils.logging.set_verbosity_error()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=given.batch,
        max_steps=given.steps,
        learning_rate=loop.LEARNING_RATE,
        weight_decay=loop.WEIGHT_DECAY,
        max_grad_norm=loop.CLIPPING,
        lr_scheduler_type="linear",
        optim="adamw_torch",
        logging_steps=given.steps,
        save_strategy="no",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
    )
    rows = loop.Rows([loop.as_they_take_it(batch) for batch in batches])
    callbacks = [AfterEachStep()]
    model = their_model(setting)
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=loop.collated, callbacks=callbacks
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


def serve(given: argparse.Namespace, folder: Path, side: str, pipe: Any) -> None:
    """Take a round's steps on each message, and send the seconds by both clocks; send the peak memory at the end."""
    prepare_environment(1)
    import torch

    from models import clocks

    torch.set_num_threads(1)
    left, started = WARM_UP, clocks()

    def one_more() -> None:
        nonlocal left, started
        left -= 1
        if left == 0:
            pipe.send(tuple((after - before) / given.turn for before, after in zip(started, clocks(), strict=True)))
            pipe.recv()
            left, started = given.turn, clocks()

    if side == "Trainer on XLA":
        their_steps(given, folder, one_more)
    else:
        for _ in our_steps(given, folder, "tpu" if side.endswith("XLA") else "cpu"):
            one_more()
    pipe.send(int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024)


def step_times(given: argparse.Namespace, folder: Path) -> dict[str, tuple[list[tuple[float, float]], int]]:
    """Return side -> seconds a step of each turn, by the clock and of processor time, and peak MB."""
    sides = [side for side in STEP_SIDES if side != "Trainer on XLA" or find_spec("accelerate")]
    processes, pipes = {}, {}
    for side in sides:
        pipes[side], theirs = get_context("spawn").Pipe()
        processes[side] = get_context("spawn").Process(target=serve, args=(given, folder, side, theirs))
        processes[side].start()
        theirs.close()  # so that a side that died is an end of file here
        pipes[side].recv()  # warm: one at a time, for the machine is small
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for turn in range(given.repeats):
        for side in sides if turn % 2 else reversed(sides):
            pipes[side].send(True)
            times[side].append(pipes[side].recv())
    memory = {}
    for side in sides:
        pipes[side].send(True)
        memory[side] = pipes[side].recv()
        processes[side].join()
    return {side: (times[side], memory[side]) for side in sides}


def compare_steps(given: argparse.Namespace) -> None:
    """Print seconds a step, ratios and peak memory of all sides."""
    prepare_environment(1)
    import loop

    from models import spread

    given.objective, given.threads, given.tiny = "masked", 1, False
    given.steps = WARM_UP + given.turn * given.repeats
    with tempfile.TemporaryDirectory() as folder:
        loop.write_examples(Path(folder), recipe_of(given))
        found = step_times(given, Path(folder))
    print(
        f"BERT, {given.layers} layers of 256, {given.batch} x {given.length} tokens a step, {given.turn} steps a turn, 1 thread"
    )
    if len(found) < len(STEP_SIDES):
        print("without the Trainer: the package accelerate is not installed")
    ours, _ = found["relm on XLA"]
    for side, (times, memory) in found.items():
        for clock, label in enumerate(("clock", "processor")):
            ratios = [other[clock] / mine[clock] for other, mine in zip(times, ours, strict=True)]
            seconds = spread([1000 * taken[clock] for taken in times])
            print(f"{side}, {label}: {seconds} ms a step, {spread(ratios)} times relm on XLA; peak memory {memory:,} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    step = parts.add_parser("step")
    step.add_argument("--layers", type=int, default=2)
    step.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    step.add_argument("--batch", type=int, default=8, help="sequences of a step")
    step.add_argument("--turn", type=int, default=5, help="steps of a turn")
    step.add_argument("--repeats", type=int, default=7, help="turns")
    host = parts.add_parser("host")
    host.add_argument("recipe", help="such as roberta_base_v3-8")
    host.add_argument("--optimizer", choices=["adamw", "lamb", "adafactor"], help="another than the recipe's")
    host.add_argument("--layers", type=int, help="other than the model has")
    host.add_argument("--devices", type=int, default=8)
    host.add_argument("--repeats", type=int, default=10)
    given = parser.parse_args()
    if given.part == "step":
        compare_steps(given)
    else:
        prepare_environment(given.devices)
        import xla_host

        xla_host.measure(given)


if __name__ == "__main__":
    main()
