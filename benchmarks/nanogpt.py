"""A run of nanoGPT's model and optimizer beside the recipe `shakespeare_char`: same weights, same batches, step by step.

    python benchmarks/nanogpt.py --nanogpt FOLDER [--steps 300]

FOLDER is a checkout of karpathy/nanoGPT (3adf61e1). Both take the recipe's steps on the same random characters; what is printed
is their losses and the largest difference so far, which is that of rounding as long as both do the same.
"""

import argparse
import importlib.util
import math
from pathlib import Path
from typing import Any

import torch

from relm.examples.manifest import TokenizerFacts
from relm.recipes.project import Project
from relm.training.architecture import configuration, unset_model
from relm.training.loss_scaling import finish_gradients
from relm.training.optimizers import build_optimizer, set_learning_rate
from relm.training.schedules import learning_rate_scale

CHARACTERS = 65
STORED_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def nanogpt_model(folder: Path, **sizes: Any) -> torch.nn.Module:
    """nanoGPT's own class, from its `model.py`."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.GPT(module.GPTConfig(**sizes))


def get_lr(update: int) -> float:
    """nanoGPT's learning rate in this run, at an update counted from 0."""
    if update < 100:
        return 1e-3 * (update + 1) / 101
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * (update - 100) / 1900)) * 9e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    recipe = Project().plan("shakespeare_char").recipe
    phase = recipe.pretrain["main"]
    theirs: Any = nanogpt_model(
        given.nanogpt, block_size=64, vocab_size=CHARACTERS, n_layer=4, n_head=4, n_embd=128, dropout=0.0, bias=False
    )
    ours = unset_model(configuration(recipe, TokenizerFacts("0" * 64, CHARACTERS, None)))
    weights = {name: weight.clone() for name, weight in theirs.state_dict().items() if name != "lm_head.weight"}
    ours.load_state_dict({name: w.t() if name.endswith(STORED_TRANSPOSED) else w for name, w in weights.items()})
    their_optimizer = theirs.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    optimizer = build_optimizer(ours, phase.optimizer)
    # Characters of a random walk, so that there is something to learn.
    text = torch.randint(-2, 3, (100_000,)).cumsum(0) % CHARACTERS
    largest = 0.0
    for step in range(1, given.steps + 1):
        starts = torch.randint(len(text) - 64, (12,)).tolist()
        inputs, labels = (torch.stack([text[start + shift : start + shift + 64] for start in starts]) for shift in (0, 1))
        for group in their_optimizer.param_groups:
            group["lr"] = get_lr(step - 1)
        their_loss = theirs(inputs, labels)[1]
        their_loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        their_optimizer.step()
        their_optimizer.zero_grad()

        set_learning_rate(optimizer, phase.optimizer.learning_rate * learning_rate_scale(phase.schedule, step, phase.steps))
        term = ours.terms({"input_ids": inputs, "labels": labels})["next_token"]
        loss = term.nats / term.count
        loss.backward()
        finish_gradients(ours.parameters(), None, phase.optimizer.gradient_clipping)
        optimizer.step()
        optimizer.zero_grad()

        largest = max(largest, abs(loss.item() - their_loss.item()))
        if step in (1, 2, 10) or step % 50 == 0:
            print(f"step {step}: nanoGPT {their_loss.item():.7f}, here {loss.item():.7f}, largest difference {largest:.1e}")


if __name__ == "__main__":
    main()
