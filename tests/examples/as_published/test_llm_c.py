"""The order of llm.c's sequences equals that of its C loader, and a run can begin at any step of it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from token_streams import write_stream

from relm.errors import RelmError
from relm.examples.as_published.llm_c import Geometry, LlmCExamples, draw_integers, order_of_epoch, permute
from relm.examples.builders import open_examples
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Objective

GOLDENS = json.loads(Path(__file__).with_name("llm_c_order.json").read_text())


def order_sha256(case: dict[str, Any]) -> str:
    geometry = Geometry(tuple(case["shards"]), case["ranks"], case["batch"], case["sequence_length"])
    epochs = -(-case["steps"] // geometry.epoch_samples)
    order = np.concatenate([order_of_epoch(geometry, epoch) for epoch in range(epochs)])[: case["steps"]]
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()


def small_examples(folder: Path, **keys: int) -> LlmCExamples:
    stream = [number % 251 for number in range(600)]
    manifest = write_stream(folder, {"train": {"a": stream[:300], "b": stream[300:]}, "held_out": {"a": stream[:50]}})
    examples = open_examples(manifest, "train", objective(**keys), seed=5)
    assert isinstance(examples, LlmCExamples)
    return examples


def objective(**keys: int) -> Objective:
    chosen = {"builder": "llm_c", "ranks": 2, "batch": 4, "seed": 42, **keys}
    return Objective.model_validate({"objective": "causal", "sequence_length": 8, "as_published": chosen})


@pytest.mark.parametrize("case", GOLDENS["cases"], ids=lambda case: f"{case['ranks']} ranks, {len(case['shards'])} shards")
def test_the_order_of_all_steps_is_that_of_the_c_loader(case: dict[str, Any]) -> None:
    assert order_sha256(case) == case["sha256"]


def test_draws_are_those_of_mt19937_whose_ten_thousandth_the_cpp_standard_states() -> None:
    assert draw_integers(5489, 10_000)[-1] == 4_123_659_995


def test_a_permutation_swaps_from_the_end() -> None:
    values = [0, 1, 2, 3]
    permute(values, np.array([5, 5, 1], dtype=np.uint32))  # 5 % 4 = 1, 5 % 3 = 2, 1 % 2 = 1
    assert values == [0, 3, 2, 1]


def test_a_sequence_has_the_tokens_of_its_rank_and_row_in_the_sample(tmp_path: Path) -> None:
    examples = small_examples(tmp_path)
    order = order_of_epoch(examples.geometry, 0)
    assert len(examples) == 2 * 4 * examples.geometry.epoch_samples == 64
    batch = examples.batch(np.arange(64), np.zeros(64, dtype=np.int64))
    for position in range(64):
        shard, start = order[position // 8, position // 4 % 2]
        first = 300 * shard + start + 8 * (position % 4)
        assert batch["input_ids"][position].tolist() == [number % 251 for number in range(first, first + 8)]
        assert batch["labels"][position].tolist() == [number % 251 for number in range(first + 1, first + 9)]


def test_an_epoch_reads_each_sequence_once_and_the_next_in_another_order(tmp_path: Path) -> None:
    examples = small_examples(tmp_path)
    first, second = (examples.starts(np.arange(64), np.full(64, epoch)) for epoch in (0, 1))
    assert len(set(first.tolist())) == 64
    assert sorted(first.tolist()) == sorted(second.tolist()) != second.tolist()
    assert (first != second).any()
    mixed = examples.starts(np.array([63, 0]), np.array([0, 1]))
    assert mixed.tolist() == [first[63], second[0]]


def test_held_out_sequences_are_read_from_the_first_on(tmp_path: Path) -> None:
    small_examples(tmp_path)
    held_out = open_examples(tmp_path / "manifest.json", "held_out", objective(), seed=5)
    assert held_out.batch(np.array([0, 1]), np.zeros(2, np.int64))["input_ids"].tolist() == [[*range(8)], [*range(8, 16)]]
    assert held_out.is_ordered  # type: ignore[attr-defined]


def test_a_shard_shorter_than_a_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"shard 1 has 300 tokens.* needs 513; lower as_published\.ranks"):
        small_examples(tmp_path, batch=32)


def test_ranks_and_batch_go_only_with_llm_c() -> None:
    with pytest.raises(ValidationError, match="llm_c needs ranks and batch"):
        AsPublished(builder="llm_c", ranks=8)
    with pytest.raises(ValidationError, match="batch: read with builder: llm_c or modded_nanogpt only, found 8"):
        AsPublished(builder="graphcore_gpt2", batch=8)
