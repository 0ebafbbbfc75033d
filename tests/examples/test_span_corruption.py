from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from token_streams import write_stream

from relm.errors import RelmError
from relm.examples.order import row_keys
from relm.examples.span_corruption import (
    SENTINELS,
    CorruptionShape,
    SpanCorruptionExamples,
    fitting_shape,
    masked_tokens,
    segment_starts,
    with_sentinels,
)
from relm.examples.tokenization.tokenizer_files import import_tokenizer, load_tokenizer
from relm.recipes.objectives import Objective, SpanCorruption

END, FIRST_SENTINEL = 1, 999


def keys(rows: int, seed: int = 0) -> np.ndarray:
    return row_keys("test", seed, np.zeros(rows, dtype=np.int64), np.arange(rows))


def test_t5s_sequence_of_512_takes_568_tokens_and_its_targets_are_114() -> None:
    shape = fitting_shape(512, SpanCorruption())
    assert shape == CorruptionShape(raw_length=568, masked=85, spans=28)
    assert (shape.input_length, shape.target_length) == (512, 114)


@pytest.mark.parametrize(
    ("sequence_length", "noise_density", "mean_span_length", "raw_length", "target_length"),
    [  # from T5's random_spans_helper
        (128, 0.15, 3.0, 141, 29),
        (1024, 0.15, 3.0, 1137, 229),
        (256, 0.3, 8.0, 346, 118),
        (114, 0.5, 10.0, 206, 114),
        (98, 0.5, 3.0, 146, 98),
    ],
)
def test_lengths_are_those_of_t5(sequence_length, noise_density, mean_span_length, raw_length, target_length) -> None:
    shape = fitting_shape(sequence_length, SpanCorruption(noise_density=noise_density, mean_span_length=mean_span_length))
    assert (shape.raw_length, shape.target_length) == (raw_length, target_length)


def test_spans_become_sentinels_on_either_side() -> None:
    tokens = np.array([[10, 11, 12, 13, 14, 15, 16], [20, 21, 22, 23, 24, 25, 26]])
    hidden = np.array([[0, 0, 1, 1, 0, 0, 1], [0, 1, 0, 0, 0, 1, 1]], dtype=bool)
    assert with_sentinels(tokens, hidden, 7, 999, END).tolist() == [
        [10, 11, 999, 14, 15, 998, 1],
        [20, 999, 22, 23, 24, 998, 1],
    ]
    assert with_sentinels(tokens, ~hidden, 6, 999, END).tolist() == [[999, 12, 13, 998, 16, 1], [999, 21, 998, 25, 26, 1]]


def rebuilt(inputs: list[int], targets: list[int]) -> list[int]:
    """Return the text: the inputs with each sentinel replaced by the tokens after it in the targets."""
    assert inputs[-1] == targets[-1] == END
    spans: dict[int, list[int]] = {}
    for token in targets[:-1]:
        if token > FIRST_SENTINEL - SENTINELS:
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    assert list(spans) == [token for token in inputs if token > FIRST_SENTINEL - SENTINELS]
    assert list(spans) == list(range(FIRST_SENTINEL, FIRST_SENTINEL - len(spans), -1))
    return [kept for token in inputs[:-1] for kept in spans.get(token, [token])]


@given(st.integers(3, 300), st.floats(0.02, 0.9), st.floats(1, 20), st.integers(0, 2**40))
def test_inputs_and_targets_together_are_the_text_and_lengths_are_exact(length, density, mean, seed) -> None:
    try:
        shape = fitting_shape(length, SpanCorruption(noise_density=density, mean_span_length=mean))
    except RelmError:
        assume(False)
    tokens = np.arange(2 * shape.raw_length).reshape(2, -1) % 800 + 2
    hidden = masked_tokens(keys(2, seed), shape)
    assert hidden.sum(axis=1).tolist() == [shape.masked] * 2
    assert not hidden[:, 0].any(), "a text begins with what is kept"
    inputs = with_sentinels(tokens, hidden, shape.input_length, FIRST_SENTINEL, END)
    targets = with_sentinels(tokens, ~hidden, shape.target_length, FIRST_SENTINEL, END)
    assert (inputs.shape, targets.shape) == ((2, length), (2, shape.target_length))
    assert [rebuilt(*pair) for pair in zip(inputs.tolist(), targets.tolist(), strict=True)] == tokens.tolist()


def test_all_ways_to_cut_a_row_are_equally_likely() -> None:
    starts = segment_starts(keys(42_000), 8, 4)
    assert starts[:, 0].all()
    ways, counts = np.unique(starts, axis=0, return_counts=True)
    expected = {(0, *cuts) for cuts in combinations(range(1, 8), 3)}
    assert {tuple(np.flatnonzero(way).tolist()) for way in ways} == expected
    assert stats.chisquare(counts).pvalue > 1e-3


def test_as_many_segments_as_tokens_and_a_single_one_leave_no_choice() -> None:
    assert segment_starts(keys(2), 3, 3).tolist() == [[True, True, True]] * 2
    assert segment_starts(keys(2), 3, 1).tolist() == [[True, False, False]] * 2
    assert segment_starts(keys(2), 1, 1).tolist() == [[True]] * 2


def span_lengths(hidden: np.ndarray) -> np.ndarray:
    """Return the lengths of all masked spans, in order."""
    edges = np.diff(np.pad(hidden, ((0, 0), (1, 1))).astype(int), axis=1)
    return np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]


def test_spans_have_the_lengths_of_a_random_partition() -> None:
    shape = fitting_shape(512, SpanCorruption())
    hidden = masked_tokens(keys(2000), shape)
    lengths = span_lengths(hidden)
    assert len(lengths) == 2000 * 28
    assert lengths.mean() == 85 / 28
    first = lengths.reshape(2000, 28)[:, 0]
    chances = np.array([comb(85 - k - 1, 26) / comb(84, 27) for k in range(1, 9)])
    counts = np.bincount(np.minimum(first, 9), minlength=10)[1:]
    assert stats.chisquare(counts, 2000 * np.append(chances, 1 - chances.sum())).pvalue > 1e-3
    # Away from the ends, which are certainly kept and masked, every position is masked equally often.
    assert hidden[:, 50:275].mean() == pytest.approx(hidden[:, 275:500].mean(), abs=0.003)
    assert hidden[:, -1].all()


def objective(sequence_length: int = 16, **options: float) -> Objective:
    return Objective(objective="span_corruption", sequence_length=sequence_length, span_corruption=SpanCorruption(**options))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write a stream of 2 to 101 and again, 900 tokens in two shards, of a vocabulary of 1000."""
    tokens = (np.arange(900) % 100 + 2).tolist()
    splits = {"train": {"a": tokens[:333], "b": tokens[333:]}, "held_out": {"a": tokens[:10]}}
    return write_stream(tmp_path, splits, vocabulary_size=1000, end_of_text_id=END)


def test_each_example_is_a_piece_of_the_stream(manifest) -> None:
    examples = SpanCorruptionExamples(manifest, "train", objective(), seed=3)
    raw = examples.shape.raw_length
    assert (raw, len(examples)) == (17, 900 // 17)
    indices = np.arange(len(examples))
    batch = examples.batch(indices, np.zeros_like(indices))
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "input_ids": ((52, 16), "int64"),
        "attention_mask": ((52, 16), "bool"),
        "labels": ((52, examples.shape.target_length), "int64"),
    }
    assert batch["attention_mask"].all()
    pairs = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
    assert examples.batch(indices[:0], indices[:0])["input_ids"].shape == (0, 16)
    assert [rebuilt(*pair) for pair in pairs] == (np.arange(52 * raw).reshape(52, raw) % 100 + 2).tolist()


def test_an_example_is_the_same_in_every_batch_and_new_in_every_epoch(manifest) -> None:
    examples = SpanCorruptionExamples(manifest, "train", objective(32), seed=3)
    together = examples.batch(np.array([4, 0, 4, 7]), np.array([0, 5, 1, 5]))
    for row, (index, epoch) in enumerate([(4, 0), (0, 5), (4, 1), (7, 5)]):
        alone = examples.batch(np.array([index]), np.array([epoch]))
        assert all(np.array_equal(together[name][row], array[0]) for name, array in alone.items())
    assert together["input_ids"][0].tolist() != together["input_ids"][2].tolist()
    other = SpanCorruptionExamples(manifest, "train", objective(32), seed=4)
    assert other.batch(np.array([4]), np.array([0]))["labels"].tolist() != [together["labels"][0].tolist()]


def test_the_spans_never_change() -> None:
    # Runs are resumed by these: they may not change for any reason.
    found = masked_tokens(row_keys("hidden spans", 0, np.array([0, 1]), np.array([0, 5])), CorruptionShape(20, 6, 2)).astype(
        int
    )
    assert ["".join(map(str, row)) for row in found] == ["00000000000001110111", "00000000011110000011"]


def test_an_example_that_does_not_exist_is_refused(manifest) -> None:
    examples = SpanCorruptionExamples(manifest, "train", objective(), seed=0)
    with pytest.raises(IndexError, match="examples are 0 to 51, requested 52"):
        examples.batch(np.array([52]), np.array([0]))


def test_a_split_shorter_than_one_example_is_refused(manifest) -> None:
    with pytest.raises(RelmError, match="split held_out has 10 tokens, an example of sequence_length 16 takes 17"):
        SpanCorruptionExamples(manifest, "held_out", objective(), seed=0)


def test_a_vocabulary_without_sentinels_is_refused(tmp_path) -> None:
    tokens = (np.arange(900) % 250).tolist()
    with pytest.raises(RelmError, match=r"the last 100 ids of its vocabulary, 150 to 249, .* are 300 of its first 900 tokens"):
        SpanCorruptionExamples(write_stream(tmp_path, {"train": {"a": tokens}}, 250), "train", objective(), seed=0)
    with pytest.raises(RelmError, match="the last 100 ids of its vocabulary, -1 to 98"):
        SpanCorruptionExamples(write_stream(tmp_path, {"train": {"a": [1] * 99}}, 99), "train", objective(), seed=0)


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path) -> None:
    manifest = write_stream(tmp_path, {"train": {"a": [5] * 99}}, end_of_text_id=None)
    with pytest.raises(RelmError, match="no end-of-text token, which ends each sequence"):
        SpanCorruptionExamples(manifest, "train", objective(), seed=0)


def test_options_that_fit_no_text_are_refused() -> None:
    with pytest.raises(RelmError, match="no text fits sequence_length 2 with noise_density"):
        fitting_shape(2, SpanCorruption())
    with pytest.raises(RelmError, match=r"no text fits sequence_length 100 with noise_density 0\.9 and mean_span_length 1\.0"):
        fitting_shape(100, SpanCorruption(noise_density=0.9, mean_span_length=1))
    with pytest.raises(RelmError, match="114 spans would be masked in a sequence, but there are 100 sentinels"):
        fitting_shape(2048, SpanCorruption())


def test_t5s_vocabularies_end_with_their_sentinels(tmp_path, shared_data) -> None:
    models = {name: shared_data / "tokenizers" / name / "spiece.model" for name in ("t5", "mt5")}
    import_tokenizer("t5_sentencepiece", {"spiece.model": models["t5"]}, tmp_path / "t5.json")
    t5 = load_tokenizer(tmp_path / "t5.json")
    last = [t5.tokenizer.id_to_token(t5.vocabulary_size - 1 - number) for number in range(SENTINELS)]
    assert last == [f"<extra_id_{number}>" for number in range(SENTINELS)]
    mt5 = sentencepiece.SentencePieceProcessor(model_file=str(models["mt5"]))
    last = [mt5.id_to_piece(mt5.vocab_size() - 1 - number) for number in range(SENTINELS)]
    assert last == [f"▁<extra_id_{number}>" for number in range(SENTINELS)]
