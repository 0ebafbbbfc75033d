"""Compare a whole run of ours with `transformers`' Trainer: `python benchmarks/loop.py causal`, `masked` or `seq2seq`.

Both train the same architecture from random weights on the same examples with the same batches, precision, threads, AdamW
(torch's fused kernel), clipping and schedule, log every 10 steps, and save one checkpoint, weights and optimizer, at the end.
Timed is everything from the call to its return: ours makes the model, checks and reads the stored examples, saves, and writes
the finished model as well; the Trainer finds its examples ready in memory. The two take turns, as do the bare steps of both
(forward, backward, clipping, AdamW on one batch), whose ratio is what the whole runs are measured against.

    python benchmarks/loop.py overhead causal

times, with a clock around each part and no profiler, what of a run of ours is spent outside forward, backward and optimizer
(clipping included). That is waiting for input, seeding, logging and all the rest, with the last checkpoint and the start apart.
`--tiny` takes the quickstart's sizes.

The Trainer needs the package accelerate, which the project's environment lacks: `pip install accelerate`.
"""

import argparse
import dataclasses
import json
import logging
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import CONFIGS, Setting, clocks, our_loss, our_model, print_arithmetic, spread, their_loss, their_model
from relm.devices.contract import open_device
from relm.devices.torch import TorchDevice
from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.tokenization.tokenizer_files import train_tokenizer
from relm.models.bert_configuration import BertConfig
from relm.models.gpt2 import Gpt2Config
from relm.models.t5_configuration import T5Config
from relm.recipes.objectives import Objective
from relm.recipes.recipe import Recipe
from relm.training import loop, saves, step, updates
from relm.training.phase_run import open_reader

VOCABULARY, POSITIONS, WORDS, DOCUMENTS = 8192, 128, 400, 400
LEARNING_RATE, WEIGHT_DECAY, CLIPPING, LOGGED_EVERY = 1e-4, 0.01, 1.0, 10
CONFIGS |= {
    "causal": Gpt2Config(4, 4, 256, positions=POSITIONS, vocabulary_size=VOCABULARY),
    "masked": BertConfig(4, 4, 256, 1024, positions=POSITIONS, vocabulary_size=VOCABULARY),
    "seq2seq": T5Config(4, 4, 64, 256, 1024, vocabulary_size=VOCABULARY),
}
MODELS: dict[str, dict[str, Any]] = {
    "causal": {"architecture": "gpt2"},
    "masked": {"architecture": "bert"},
    "seq2seq": {"architecture": "t5", "head_size": 64, "intermediate_size": 1024},
}
KINDS = {"masked": "wordpiece"}
TINY = {"layers": 3, "hidden_size": 128, "vocabulary_size": 1024}


def recipe_of(given: argparse.Namespace) -> Recipe:
    """The model and data that both train."""
    sizes = {"layers": 4, "heads": 4, "hidden_size": 256, "vocabulary_size": VOCABULARY, **(TINY if given.tiny else {})}
    if given.objective in ("causal", "masked"):
        sizes["positions"] = max(POSITIONS, given.length)
    phase = {
        "objective": given.objective,
        "sequence_length": given.length,
        "global_batch_size": given.batch,
        "steps": given.steps,
        "optimizer": {"learning_rate": LEARNING_RATE, "weight_decay": WEIGHT_DECAY, "gradient_clipping": CLIPPING},
        "schedule": {"name": "linear"},
    }
    return Recipe.model_validate(
        {
            "title": "a benchmark",
            "data": {"dataset": "words"},
            "tokenizer": {"train": KINDS.get(given.objective, "byte_level_bpe"), "vocabulary_size": 400},
            "model": {**MODELS[given.objective], **sizes},
            "pretrain": {"main": phase},
            "run": {"threads": given.threads, "checkpoint_interval": 10**9, "log_interval": LOGGED_EVERY},
        }
    )


def write_examples(folder: Path, recipe: Recipe) -> Path:
    """Write examples of random words in relm's usual form, and return their manifest."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyzăâîșț", k=draw.randint(2, 9))) for _ in range(WORDS)]
    documents, tokenizer = folder / "a.train.jsonl", folder / "tokenizer.json"
    with open(documents, "w") as file:
        for number in range(DOCUMENTS):
            text = ". ".join(" ".join(draw.choices(words, k=12)).capitalize() for _ in range(20))
            file.write(json.dumps({"id": str(number), "title": f"{number}", "text": f"{text}."}) + "\n")
    phase = recipe.pretrain["main"]
    train_tokenizer(str(recipe.tokenizer.train), [documents], 400, 10**7, tokenizer)
    stored = Objective.model_validate({key: getattr(phase, key) for key in Objective.model_fields})
    shard = folder / f"a.train{phase.suffix}"
    pregenerate(documents, tokenizer, shard, stored, "en", workers=1)
    write_manifest({"train": [shard]}, folder / "manifest.json")
    return folder / "manifest.json"


def our_run(recipe: Recipe, examples: Path) -> None:
    """Run `relm pretrain` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "run" / "main" / "model"
        loop.pretrain(recipe, "main", examples / "manifest.json", examples / "tokenizer.json", None, model, "0" * 12)


def as_they_take_it(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return relm's batch in the form of `transformers`: a label for every position of a BERT; GPT-2's loss shifts its own."""
    if "masked_labels" in batch:
        dense = torch.full((len(batch["input_ids"]), batch["input_ids"].shape[1] + 1), -100)
        unused = batch["masked_labels"] == -100
        places = batch["masked_positions"].masked_fill(unused, batch["input_ids"].shape[1])  # a column that is cut off
        dense.scatter_(1, places, batch["masked_labels"])
        kept = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        return {**kept, "labels": dense[:, :-1].contiguous()}
    if "attention_mask" in batch:
        return dict(batch)
    return {"input_ids": batch["input_ids"], "labels": batch["input_ids"]}


class Rows(torch.utils.data.Dataset):
    """Examples in memory, in the form that the Trainer reads."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        names = batches[0]
        whole = {name: torch.cat([batch[name] for batch in batches]) for name in names}
        self.rows = [{name: tensor[row] for name, tensor in whole.items()} for row in range(len(whole["input_ids"]))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.rows[index]


def collated(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def their_run(given: argparse.Namespace, setting: Setting, rows: Rows) -> None:
    """Run the Trainer in a temporary folder."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=given.batch,
            max_steps=given.steps,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            max_grad_norm=CLIPPING,
            lr_scheduler_type="linear",
            optim="adamw_torch_fused",
            logging_steps=LOGGED_EVERY,
            save_strategy="steps",
            save_steps=given.steps,
            use_cpu=True,
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            disable_tqdm=True,
            report_to="none",
        )
        model = their_model(setting)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collated)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def bare_steps(model: nn.Module, loss: Callable[..., Tensor], batch: Mapping[str, Tensor], steps: int) -> Callable[[], None]:
    """Run forward, backward, clipping and AdamW repeatedly on one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    model.train()

    def run() -> None:
        torch.use_deterministic_algorithms(False)
        for _ in range(steps):
            loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
            optimizer.step()
            optimizer.zero_grad()

    return run


def setting_of(given: argparse.Namespace, masked: int) -> Setting:
    """Return the same settings in the form of `benchmarks/models.py`."""
    if given.length > POSITIONS and given.objective in ("causal", "masked"):
        CONFIGS[given.objective] = dataclasses.replace(CONFIGS[given.objective], positions=given.length)
    return Setting(
        given.objective, given.length, masked, given.batch, None, 0.1, "float32", given.threads, given.repeats
    )  # fmt: skip


def compare(given: argparse.Namespace, folder: Path) -> None:
    """Print rates and ratios, measured in alternation."""
    recipe = recipe_of(given)
    reader = open_reader(recipe, "main", write_examples(folder, recipe), "train", open_device(recipe.run))
    batches = [reader.step_input(number).micro_batches[0] for number in range(1, given.steps + 1)]
    masked = batches[0]["masked_positions"].shape[1] if given.objective == "masked" else 0
    setting, rows = setting_of(given, masked), Rows([as_they_take_it(batch) for batch in batches])
    ours, theirs = our_model(setting), their_model(setting)
    count = sum(parameter.numel() for parameter in ours.parameters())
    print(f"{given.objective}: {count:,} parameters, {given.batch} x {given.length} tokens a step, {given.steps} steps")
    print_arithmetic(setting)
    few = max(1, given.steps // 2)
    sides: dict[str, tuple[int, Callable[[], None], Callable[[], None]]] = {
        "bare steps": (
            few,
            bare_steps(ours, our_loss, batches[0], few),
            bare_steps(theirs, their_loss, as_they_take_it(batches[0]), few),
        ),
        "whole run": (given.steps, lambda: our_run(recipe, folder), lambda: their_run(given, setting, rows)),
    }
    times = in_turns(sides, given.repeats)
    for name, (steps, *_) in sides.items():
        for clock, label in enumerate(("clock", "processor")):
            mine, other = ([taken[clock] for taken in times[name, side]] for side in (0, 1))
            rates = [spread([steps / seconds for seconds in side]) for side in (mine, other)]
            ratios = spread([b / a for a, b in zip(mine, other, strict=True)])
            print(f"{name}, {label}: relm {rates[0]} steps/s, Trainer {rates[1]} steps/s, ratio {ratios}")


def in_turns(sides: Mapping[str, Any], repeats: int) -> dict[tuple[str, int], list[tuple[float, float]]]:
    """Return the seconds by both clocks of each contest and side; a first round of each is not counted."""
    times = defaultdict(list)
    for turn in range(1 + repeats):
        for name, (_, *both) in sides.items():
            for side in (0, 1) if turn % 2 else (1, 0):
                before = clocks()
                both[side]()
                taken = clocks()
                if turn:
                    times[name, side].append((taken[0] - before[0], taken[1] - before[1]))
    return times


# --- overhead ----------------------------------------------------------------------------------------------------------------

# Of a run of ours: what the clock is put around, and which part of a step it is.
PLACES: list[tuple[Any, str, str]] = [
    (step.torch.autograd, "backward", "step"),
    (updates, "finish_gradients", "step"),
    (torch.optim.AdamW, "step", "step"),
    (torch.optim.AdamW, "zero_grad", "step"),
    (saves.Saves, "save", "checkpoint"),
    (loop, "train", "train"),
]


@contextmanager
def clocked(times: dict[str, Any]) -> Iterator[None]:
    """Time each part of a step, by its name in the loop."""

    def around(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **options: Any) -> Any:
            before = own_clocks()
            result = function(*arguments, **options)
            times[part] = times[part] + own_clocks() - before
            return result

        return measured

    before = [getattr(owner, name) for owner, name, _ in PLACES]
    forward = TorchDevice.forward
    for (owner, name, part), function in zip(PLACES, before, strict=True):
        setattr(owner, name, around(part, function))
    TorchDevice.forward = lambda device, terms: around("step", forward(device, terms))  # type: ignore[method-assign]
    try:
        yield
    finally:
        TorchDevice.forward = forward  # type: ignore[method-assign]
        for (owner, name, _), function in zip(PLACES, before, strict=True):
            setattr(owner, name, function)


def own_clocks() -> Any:
    """Return the seconds by the clock, and the processor time of only this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


def overhead(given: argparse.Namespace, folder: Path) -> None:
    """Print the share of a run outside forward, backward and optimizer."""
    recipe = recipe_of(given)
    write_examples(folder, recipe)
    turns = []
    for _ in range(1 + given.repeats):
        times: dict[str, Any] = defaultdict(lambda: np.zeros(2))
        with clocked(times):
            before = own_clocks()
            our_run(recipe, folder)
            times["whole"] = own_clocks() - before
        turns.append(times)
    print(f"{given.objective}: {given.batch} x {given.length} tokens a step, {given.steps} steps, {given.threads} threads")
    for clock, label in enumerate(("clock", "processor of the main thread")):
        loops = [(t["train"] - t["checkpoint"])[clock] for t in turns[1:]]
        outside = [a - t["step"][clock] for a, t in zip(loops, turns[1:], strict=True)]
        print(
            f"{label}: a step {spread([1000 * a / given.steps for a in loops])} ms, outside forward, backward and optimizer "
            f"{spread([1000 * b / given.steps for b in outside])} ms, "
            f"{spread([100 * b / a for a, b in zip(loops, outside, strict=True)])} %"
        )
    for label, part in (("checkpoint at the end", "checkpoint"), ("whole run", "whole"), ("loop", "train")):
        print(f"{label}: {spread([t[part][0] for t in turns[1:]])} s")


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["compare", "overhead"], default="compare")
    parser.add_argument("objective", choices=["causal", "masked", "seq2seq"])
    parser.add_argument("--length", type=int, help="tokens of a sequence; default: 128")
    parser.add_argument("--batch", type=int, help="sequences of a step; default: 4")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="3 layers x 128, 1,024 tokens, 16 x 64 a step: the quickstart's")
    given = parser.parse_args()
    given.length = given.length or (64 if given.tiny else 128)
    given.batch = given.batch or (16 if given.tiny else 4)
    return given


def main() -> None:
    given = settings()
    logging.disable(logging.WARNING)
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        (overhead if given.what == "overhead" else compare)(given, Path(folder))


if __name__ == "__main__":
    main()
