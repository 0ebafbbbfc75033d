"""Scores of a model that is a table, which can be checked by hand, and of models with attention."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from relm.errors import RelmError
from relm.evaluation import scoring
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import Execution
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, batches, score

ONE_THREAD = Execution(threads=1)
# Row: the token seen. Column: how likely each of four tokens is to follow it.
FOLLOWING = [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.05, 0.05, 0.6, 0.3]]


class Table(CausalModel):
    """A model that sees only the last token, and records its inputs."""

    folder, sha256, vocabulary_size = Path("table"), "", 4

    def __init__(self, positions: int | None = None) -> None:
        self.positions = positions
        self.shown: list[list[list[int]]] = []
        self.head_sizes: list[int] = []

    def hidden(self, input_ids: torch.Tensor) -> torch.Tensor:
        self.shown.append(input_ids.tolist())
        return torch.nn.functional.one_hot(input_ids, 4).float()

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        self.head_sizes.append(len(hidden))
        return hidden @ torch.tensor(FOLLOWING).log()


def sequences(tokens: list[int], *rows: tuple[int, int, int]) -> ScoredSequences:
    """Return sequences from rows of start, end and count of scored tokens."""
    starts, ends, scored = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return ScoredSequences(np.array(tokens), starts, ends, scored)


def test_each_scored_token_is_given_the_one_before_it() -> None:
    found = score(Table(), sequences([0, 3, 2, 1, 0], (0, 5, 4)), 100)
    assert np.exp(-found.nats) == pytest.approx([0.4, 0.6, 0.25, 0.7])
    assert found.likeliest.tolist() == [True, True, False, True]
    assert (found.nats.dtype, found.likeliest.dtype) == (np.float64, np.bool_)


def test_only_the_last_ones_are_scored_and_reach_the_head() -> None:
    model = Table()
    found = score(model, sequences([0, 3, 2, 1, 0], (0, 5, 2)), 100)
    assert np.exp(-found.nats) == pytest.approx([0.25, 0.7])
    assert model.shown == [[[0, 3, 2, 1]]]
    assert model.head_sizes == [2]


def test_scores_are_in_the_order_of_the_sequences_however_these_are_batched() -> None:
    """Score ragged sequences, not ordered by length, that share tokens."""
    given = sequences([0, 3, 2, 1, 0, 0], (4, 6, 1), (0, 5, 2), (1, 4, 2), (0, 6, 5), (3, 5, 1))
    expected = [0.1, 0.25, 0.7, 0.6, 0.25, 0.4, 0.6, 0.25, 0.7, 0.1, 0.7]
    for batch_tokens in (1, 2, 5, 8, 1000):
        found = score(Table(), given, batch_tokens)
        assert np.exp(-found.nats) == pytest.approx(expected)
    assert given.offsets.tolist() == [0, 1, 3, 5, 10, 11]
    assert len(given) == 5


def test_the_longest_go_first_and_no_batch_has_more_tokens_than_requested() -> None:
    lengths = np.array([2, 5, 3, 9, 3])
    assert [rows.tolist() for rows in batches(lengths, 6)] == [[3], [1], [2, 4], [0]]
    assert [rows.tolist() for rows in batches(lengths, 1)] == [[3], [1], [2], [4], [0]]
    assert [rows.tolist() for rows in batches(lengths, 100)] == [[3, 1, 2, 4, 0]]


def test_a_shorter_sequence_is_padded_at_its_end() -> None:
    model = Table()
    score(model, sequences([0, 3, 2, 1, 0], (0, 5, 1), (0, 3, 1)), 100)
    assert model.shown == [[[0, 3, 2, 1], [0, 3, 3, 3]]]


def test_of_equal_ones_the_first_id_is_the_likeliest() -> None:
    assert score(Table(), sequences([2, 0, 2, 1], (0, 2, 1), (2, 4, 1)), 100).likeliest.tolist() == [True, False]


def test_logits_are_computed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given = sequences([0, 3, 2, 1, 0, 0, 1, 3], (0, 8, 7), (0, 5, 3))
    whole = score(Table(), given, 100)
    monkeypatch.setattr(scoring, "LARGEST_LOGITS", 13)  # three positions of four logits
    model = Table()
    found = score(model, given, 100)
    assert model.head_sizes == [3, 3, 3, 1]
    assert found.nats.tolist() == whole.nats.tolist()
    assert found.likeliest.tolist() == whole.likeliest.tolist()


def test_nothing_to_score_is_no_error() -> None:
    found = score(Table(), sequences([1, 2]), 100)
    assert (found.nats.shape, found.likeliest.shape) == ((0,), (0,))


def test_the_count_of_scored_tokens_is_reported_after_each_batch() -> None:
    counts: list[int] = []
    score(Table(), sequences([0, 3, 2, 1, 0], (0, 5, 4), (0, 3, 1), (1, 4, 2)), 5, counts.append)
    assert counts == [4, 3]


@pytest.mark.parametrize(
    "row",
    [(0, 3, 0), (0, 3, 3), (2, 2, 0), (-1, 2, 1), (1, 5, 1)],
    ids=["nothing scored", "its first scored", "empty", "begins before the tokens", "ends after them"],
)
def test_sequences_that_cannot_be_scored_are_refused(row: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="a sequence scores no token, its first one, or one beyond the array"):
        sequences([0, 1, 2, 3], (0, 2, 1), row)


def test_a_sequence_longer_than_the_model_takes_is_refused() -> None:
    given = sequences([0, 1, 2, 3], (0, 4, 1))
    score(Table(positions=3), given, 100)  # the last token is predicted, and seen by none
    with pytest.raises(RelmError, match="table: has 2 positions; a context of 3 does not fit"):
        score(Table(positions=2), given, 100)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_refused_by_name(value: float) -> None:
    class Broken(Table):
        def head(self, hidden: torch.Tensor) -> torch.Tensor:
            return super().head(hidden) * value

    with pytest.raises(RelmError, match=r"^table: the loss is not finite: training diverged; train with a lower"):
        score(Broken(), sequences([0, 3], (0, 2, 1)), 100)


def test_the_last_layer_is_computed_only_where_it_is_read(evaluated) -> None:
    model = load_causal(evaluated.model, 257, ONE_THREAD)
    fed: list[int] = []
    last = model.model.transformer.h[-1].mlp
    last.register_forward_pre_hook(lambda _module, inputs: fed.append(inputs[0].numel() // 32))
    tokens = evaluated.held_out
    starts = np.array([0, 7, 31])
    score(model, ScoredSequences(tokens, starts, starts + 17, np.array([1, 3, 2])), 1000)
    score(model, ScoredSequences(tokens, starts, starts + 17, np.array([16, 3, 2])), 1000)
    assert fed == [6, 3 * 16]


def test_memory_is_bounded_by_the_scores_and_a_batch() -> None:
    """Measure windows that share their tokens: none is copied before its batch."""
    tokens = np.arange(2000) % 4
    starts = np.arange(1000)
    given = ScoredSequences(tokens, starts, starts + 1001, np.ones(1000, np.int64))

    class Quiet(Table):
        def hidden(self, input_ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(input_ids, 4).float()

    score(Quiet(), given, 1000)  # what is loaded once is loaded now
    tracemalloc.start()
    score(Quiet(), given, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400_000  # all windows as ids would be 8,000,000
