"""The recipes of GPT-2 124M have the originals' learning rate at every step, and their published protocols."""

import json
import math
from pathlib import Path

import numpy as np

from relm.recipes.phase import Phase
from relm.recipes.project import Project
from relm.training.schedules import learning_rate_scale


def phase_of(checkout: Path, name: str) -> Phase:
    return Project(checkout).plan(name).recipe.pretrain["main"]


def rate(phase: Phase, step: int) -> float:
    return phase.optimizer.learning_rate * learning_rate_scale(phase.schedule, step, phase.steps)


def test_rates_on_fineweb_are_llm_cs_at_every_step(checkout: Path) -> None:
    """Update u, from 0: 6e-4 (u + 1) / 700 before update 700, and then half a cosine to 0 at update 19,560."""
    phase = phase_of(checkout, "gpt2_124m_fineweb10b")
    assert phase.steps == 19_560 == 10_255_324_043 // 524_288
    for update in range(19_560):
        share = (update + 1) / 700 if update < 700 else (1 + math.cos(math.pi * (update - 700) / (19_560 - 700))) / 2
        assert math.isclose(rate(phase, update + 1), 6e-4 * share, rel_tol=1e-12, abs_tol=1e-18)


def test_rates_on_openwebtext_are_nanogpts_at_some_steps(checkout: Path) -> None:
    phase = phase_of(checkout, "gpt2_124m_openwebtext")
    updates = np.unique(np.concatenate([np.arange(3000), np.linspace(3000, 599_999, 2000).astype(int)])).tolist()
    for update in updates:
        assert math.isclose(rate(phase, update + 1), nanogpt_rate(update), rel_tol=1e-12)


def nanogpt_rate(update: int) -> float:
    """Return 6e-4 (u + 1) / 2001 before update 2,000, and then half a cosine to 6e-5 at update 600,000."""
    if update < 2000:
        return 6e-4 * (update + 1) / 2001
    return 6e-5 + 5.4e-4 * (1 + math.cos(math.pi * (update - 2000) / 598_000)) / 2


def test_tokens_of_a_step_and_of_the_validation_are_the_originals(checkout: Path) -> None:
    project = Project(checkout)
    fineweb, openwebtext = (project.plan(f"gpt2_124m_{name}") for name in ("fineweb10b", "openwebtext"))
    assert fineweb.recipe.pretrain["main"].global_batch_size * 1024 == 524_288
    assert openwebtext.recipe.pretrain["main"].global_batch_size * 1024 == 491_520
    assert fineweb.dataset.held_out_tokens == 20 * 524_288 + 1 == 10 * 2**20 + 1
    assert fineweb.recipe.run.validation_batches == 20


def test_the_files_have_the_sizes_of_the_shards_whose_order_was_compared(checkout: Path) -> None:
    plan = Project(checkout).plan("gpt2_124m_fineweb10b")
    training = [file for name, file in plan.dataset.files.items() if name not in plan.dataset.held_out_files]
    goldens = json.loads((checkout / "tests/examples/as_published/llm_c_order.json").read_text())["cases"][-1]
    assert [(file.size - 1024) // 2 for file in training] == goldens["shards"]
    assert sum(goldens["shards"]) == 10_255_324_043
    assert len(plan.examples_jobs["main"].files("train")) == 103
    assert len(plan.examples_jobs["main"].files("held_out")) == 1


def test_a_twin_of_tokens_reads_text_with_the_originals_processes(checkout: Path) -> None:
    twin = Project(checkout).plan("smoke/gpt2_124m_fineweb10b")
    assert not twin.dataset.is_tokenized
    chosen = twin.recipe.pretrain["main"].as_published
    assert chosen is not None
    assert (chosen.ranks, chosen.batch) == (8, 1)
