"""Losses of sequences that begin alike, whose beginning is computed once, are those of each sequence by itself."""

from pathlib import Path

import numpy as np
import pytest
from llama_form import llama_folder

from harness_tasks import small_model, small_tokenizer
from relm.evaluation.choices.shared_prefixes import _forks, score_groups
from relm.evaluation.execution import Execution
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score

ONE_THREAD = Execution(threads=1)
# Three groups: four choices after a context, one of them scored within what all share; nothing in common; one sequence alone.
ROWS = [
    [5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 9, 12], [5, 6, 7, 8, 9, 13, 14, 15], [5, 6, 7, 8, 9],
    [20, 21, 22], [23, 21, 22],
    [30, 31, 32, 33],
]  # fmt: skip
SCORED = [4, 3, 3, 2, 1, 2, 3]
SIZES = [4, 2, 1]


def sequences_of(rows: list[list[int]], scored: list[int]) -> ScoredSequences:
    ends = np.cumsum([len(row) for row in rows])
    return ScoredSequences(np.concatenate(rows), ends - [len(row) for row in rows], ends, np.array(scored))


@pytest.mark.parametrize("own", [True, False], ids=["relm's", "of transformers"])
def test_losses_are_those_of_each_sequence_by_itself(own: bool, tmp_path: Path) -> None:
    folder = small_model(tmp_path / "model", small_tokenizer(tmp_path), positions=60) if own else llama_folder(tmp_path, True)
    model = load_causal(folder, 100, ONE_THREAD)
    sequences = sequences_of(ROWS, SCORED)
    alone = score(model, sequences, 1)
    for batch_tokens in (1, 20, 1000):
        found = score_groups(model, sequences, SIZES, batch_tokens)
        assert found.nats == pytest.approx(alone.nats, abs=1e-5)
        assert found.likeliest.tolist() == alone.likeliest.tolist()


def test_a_beginning_that_all_share_is_one_part_of_one_row() -> None:
    (fork,) = _forks(sequences_of(ROWS, SCORED), SIZES)
    assert fork.members.tolist() == [0, 1, 2, 3]
    assert fork.input_ids.tolist() == [5, 6, 7, 8, 9, 10, 9, 9, 13, 14]
    assert fork.positions.tolist() == [0, 1, 2, 3, 4, 5, 4, 4, 5, 6]
    assert fork.branches.tolist() == [0, 0, 0, 0, 1, 1, 2, 3, 3, 3]
    assert fork.columns.tolist() == [2, 3, 4, 5, 2, 3, 6, 7, 8, 9, 2, 3]
    assert fork.targets.tolist() == [8, 9, 10, 11, 8, 9, 12, 13, 14, 15, 8, 9]
