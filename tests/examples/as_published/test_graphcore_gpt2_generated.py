"""Generated tokens are the original's: one draw of numpy's generator, in its order, and found again at any index."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from relm.errors import RelmError
from relm.examples.as_published.graphcore_gpt2_generated import BLOCK, GeneratedTokens
from relm.examples.builders import open_examples
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Objective


def objective(**keys: int) -> Objective:
    chosen = {"builder": "graphcore_gpt2_generated", "examples": 40, "vocabulary_size": 7, "seed": 1234, **keys}
    return Objective.model_validate({"objective": "causal", "sequence_length": 16, "as_published": chosen})


def read(indices: list[int], epoch: int = 0, **keys: int) -> dict[str, np.ndarray]:
    examples = open_examples(Path("absent"), "train", objective(**keys), seed=5)
    return dict(examples.batch(np.array(indices), np.full(len(indices), epoch)))


def test_tokens_lie_between_one_and_the_vocabularys_end_and_labels_follow_inputs() -> None:
    batch = read(list(range(40)))
    assert batch["input_ids"].shape == batch["labels"].shape == (40, 16)
    assert set(np.unique(batch["input_ids"])) == {1, 2, 3, 4, 5, 6}
    assert (batch["input_ids"][:, 1:] == batch["labels"][:, :-1]).all()


def test_a_sample_is_the_same_in_any_batch_and_epoch_and_another_with_another_seed() -> None:
    together, alone = read([3, 1, 2]), read([2], epoch=4)
    assert (together["input_ids"][2] == alone["input_ids"][0]).all()
    assert (read([2], seed=7)["input_ids"] != alone["input_ids"]).any()
    assert len({row.tobytes() for row in read(list(range(40)))["input_ids"]}) == 40


def test_the_tokens_of_the_small_recipe_begin_as_the_originals() -> None:
    first = read([0], examples=262_144, vocabulary_size=50_272)["input_ids"][0]
    whole = Objective.model_validate(objective(vocabulary_size=50_272).model_dump() | {"sequence_length": 1024})
    longer = open_examples(Path("absent"), "train", whole, seed=5).batch(np.array([0]), np.array([0]))["input_ids"][0]
    assert first[:5].tolist() == longer[:5].tolist() == [27440, 34087, 23925, 17049, 32400]


def test_blocks_in_any_order_are_parts_of_one_draw() -> None:
    count = 2 * BLOCK + 5
    drawn = np.random.RandomState(1234).randint(1, 7, size=(count, 17))
    indices = [count - 1, 0, BLOCK, BLOCK - 1, 2 * BLOCK, 3]
    batch = read(indices, examples=count)
    assert (batch["input_ids"] == drawn[indices, :-1]).all()
    assert (batch["labels"] == drawn[indices, 1:]).all()


def test_they_are_read_in_the_order_of_the_original_and_no_further() -> None:
    examples = open_examples(Path("absent"), "train", objective(), seed=5)
    assert len(examples) == 40
    assert getattr(examples, "is_ordered", False)
    with pytest.raises(IndexError):
        examples.batch(np.array([40]), np.array([0]))


def test_a_seed_that_numpy_does_not_take_is_named() -> None:
    chosen = AsPublished(builder="graphcore_gpt2_generated", seed=2**32, examples=40, vocabulary_size=30)
    with pytest.raises(RelmError, match=r"as_published.seed: 4,294,967,296, but numpy's generator takes 0 to 4,294,967,295"):
        GeneratedTokens(chosen, 8)


def test_their_number_and_vocabulary_are_required_and_belong_to_this_builder() -> None:
    with pytest.raises(ValidationError, match="needs examples and vocabulary_size; give both"):
        AsPublished(builder="graphcore_gpt2_generated", examples=40)
    with pytest.raises(ValidationError, match="examples: read with builder: graphcore_gpt2_generated only, found 40"):
        AsPublished(builder="graphcore_gpt2", examples=40)
