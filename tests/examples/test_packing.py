import numpy as np
import pytest
from scipy import stats

from relm.errors import RelmError
from relm.examples import packing as module
from relm.examples.packing import FOLLOWS, NO_PAIR, RANDOM, Packing, Sequences, Text, cut_sentences, packed, truncated
from relm.recipes.objectives import Masked


def text_of(*documents: list[int]) -> Text:
    """Return a text with sentences of the given sizes."""
    sentence_starts = np.cumsum([0, *(size for document in documents for size in document)])
    return Text(sentence_starts, np.cumsum([0, *map(len, documents)]))


def random_text(documents: int, sentences: int, longest: int, seed: int = 0) -> Text:
    generator = np.random.default_rng(seed)
    sizes = (generator.integers(1, longest + 1, generator.integers(1, sentences + 1)).tolist() for _ in range(documents))
    return text_of(*sizes)


def options(name: str, sequence_length: int, repetition: int = 0, source: str = "a", **more: object) -> Packing:
    return Packing(Masked.model_validate({"packing": name, **more}), sequence_length, source, repetition)


def all_of(text: Text, packing: Packing) -> Sequences:
    parts = list(packed(text, packing))
    arrays = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:6])
    return Sequences(*arrays, sum(part.truncated for part in parts))


def document_of(text: Text, tokens: np.ndarray) -> np.ndarray:
    return np.searchsorted(text.sentence_starts[text.document_starts], tokens, "right") - 1


def first_segments(found: Sequences) -> list[tuple[int, int]]:
    return list(zip(found.first_start.tolist(), found.first_stop.tolist(), strict=True))


TINY = text_of([3, 2, 4], [2, 1], [6])  # tokens 0 to 9, 9 to 12, 12 to 18


def test_full_sentences_fill_a_sequence_across_documents_with_a_separator_between() -> None:
    found = all_of(TINY, options("full_sentences", 12))  # room for ten: 3 + 2 + 4, and then the separator and 2 are too many
    assert first_segments(found) == [(0, 9), (9, 18)]  # 2 + 1 + separator + 6 are ten
    found = all_of(TINY, options("full_sentences", 14))
    assert first_segments(found) == [(0, 11), (11, 18)]
    assert {9, 12} <= set(found.separators.tolist())
    assert found.label.tolist() == [NO_PAIR, NO_PAIR]
    assert found.second_start.tolist() == found.second_stop.tolist() == found.first_stop.tolist()


def test_document_sentences_end_with_their_document() -> None:
    found = all_of(TINY, options("document_sentences", 9))
    assert first_segments(found) == [(0, 5), (5, 9), (9, 12), (12, 18)]
    assert found.separators.tolist() == []


@pytest.mark.parametrize("name", ["full_sentences", "document_sentences"])
def test_sequences_lose_no_token_and_stop_only_where_the_next_sentence_does_not_fit(name: str) -> None:
    text = random_text(300, 12, 20)
    room = 38
    found = all_of(text, options(name, room + 2))
    assert found.first_start[0] == 0
    assert found.first_stop[-1] == text.sentence_starts[-1]
    assert np.array_equal(found.first_start[1:], found.first_stop[:-1])
    bounds = text.sentence_starts[text.document_starts]
    separators = np.searchsorted(bounds, found.first_stop, "left") - np.searchsorted(bounds, found.first_start, "right")
    sizes = found.first_stop - found.first_start + separators
    assert sizes.max() <= room
    following = text.sentence_starts[np.searchsorted(text.sentence_starts, found.first_stop[:-1], "right")]
    opens = np.isin(found.first_stop[:-1], bounds)
    if name == "document_sentences":
        assert not separators.any()
        assert (opens | (sizes[:-1] + following - found.first_stop[:-1] > room)).all()
    else:
        assert separators.any()
        assert (sizes[:-1] + opens + following - found.first_stop[:-1] > room).all()


@pytest.mark.parametrize("name", ["full_sentences", "document_sentences"])
def test_a_sentence_longer_than_a_sequence_is_cut_into_pieces(name: str) -> None:
    found = all_of(text_of([2, 25, 3], [1]), options(name, 12))
    last = [(22, 31)] if name == "full_sentences" else [(22, 30), (30, 31)]
    expected = [(0, 2), (2, 12), (12, 22), *last]
    assert first_segments(found) == expected


def test_pieces_begin_where_sentences_and_their_parts_do() -> None:
    assert cut_sentences(np.array([0, 3, 14, 16]), 5, 4).tolist() == [0, 3, 7, 11, 14, 16]
    assert cut_sentences(np.array([5, 10, 20]), 10, 5).tolist() == [5, 10, 20]
    assert cut_sentences(np.array([7]), 10, 5).tolist() == [7]


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_pairs_take_every_token_once_but_what_is_truncated(probability: float) -> None:
    text = random_text(400, 20, 30)
    packing = options("sentence_pairs", 64, short_sequence_probability=probability)
    found = all_of(text, packing)
    first, second = found.first_stop - found.first_start, found.second_stop - found.second_start
    assert first.min() >= 1
    assert second.min() >= 1
    assert (first + second).max() == packing.room
    assert found.truncated > 0
    assert first.sum() + second[found.label == FOLLOWS].sum() + found.truncated == text.sentence_starts[-1]


def test_a_second_segment_that_follows_is_the_rest_and_one_that_is_random_is_of_another_document() -> None:
    text = random_text(400, 20, 30)
    found = all_of(text, options("sentence_pairs", 64))
    first, second = (document_of(text, starts) for starts in (found.first_start, found.second_start))
    follows = found.label == FOLLOWS
    assert set(found.label.tolist()) == {FOLLOWS, RANDOM}
    assert (first == second)[follows].all()
    assert (first != second)[~follows].all()
    assert (document_of(text, found.second_stop - 1) == second).all()
    assert (found.second_start >= found.first_stop)[follows].all()


def test_a_rest_replaced_by_a_random_segment_begins_the_next_sequence() -> None:
    found = all_of(text_of(*[[4] * 30] * 40), options("sentence_pairs", 23))  # five sentences fill a pair: none is truncated
    follows = found.label == FOLLOWS
    assert 0 < follows.sum() < len(follows)
    assert (found.second_start == found.first_stop)[follows].all()
    assert np.array_equal(found.first_start[1:], np.where(follows, found.second_stop, found.first_stop)[:-1])
    assert found.truncated == 0


def test_a_random_segment_continues_until_the_sequence_is_full_or_its_document_ends() -> None:
    text = text_of(*[[4] * 30] * 40)
    found = all_of(text, options("sentence_pairs", 23))
    first, second = found.first_stop - found.first_start, found.second_stop - found.second_start
    ended = found.second_stop % 120 == 0
    assert (second == 20 - first)[(found.label == RANDOM) & ~ended].all()
    assert (second <= 20 - first)[ended].all()
    assert (second < 20 - first)[ended].any()
    text = random_text(400, 20, 30)
    found = all_of(text, options("sentence_pairs", 64))
    first, second = found.first_stop - found.first_start, found.second_stop - found.second_start
    room_left = (found.label == RANDOM) & (first + second < 61)
    assert np.isin(found.second_stop[room_left], text.sentence_starts[text.document_starts]).all()
    assert np.isin(found.second_start[room_left], text.sentence_starts).all()


def test_half_of_the_pairs_are_random_and_all_without_a_rest() -> None:
    lonely = text_of(*[[4]] * 500)
    assert (all_of(lonely, options("sentence_pairs", 23)).label == RANDOM).all()
    long = text_of([4] * 40_000, [4] * 40_000)
    label = all_of(long, options("sentence_pairs", 23)).label
    assert stats.binomtest(int((label == RANDOM).sum()), len(label)).pvalue > 1e-4


def test_segments_that_are_too_long_lose_from_the_longer_one() -> None:
    def one_by_one(first: int, second: int, room: int) -> tuple[int, int]:
        while first + second > room:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        return first, second

    sizes = np.arange(1, 20)
    for room in range(2, 14):
        first, second = (part.ravel() for part in np.meshgrid(sizes, sizes))
        kept = zip(*(part.tolist() for part in truncated(first, second, room)), strict=True)
        assert list(kept) == [one_by_one(a, b, room) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


def test_truncation_takes_from_the_front_and_from_the_back() -> None:
    found = all_of(text_of([30] * 3000, [30] * 3000), options("sentence_pairs", 53))  # room 50: first and second lose 5 each
    rows = found.label == FOLLOWS
    for starts in (found.first_start, found.second_start):
        cut = np.bincount(starts[rows] % 30, minlength=6)
        assert len(cut) == 6
        assert stats.chisquare(cut).pvalue > 1e-4


def test_a_sentence_longer_than_a_pair_becomes_pairs() -> None:
    found = all_of(text_of([400], [5, 5]), options("sentence_pairs", 23))  # room 20, pieces of 10
    of_long = found.first_start < 400
    assert of_long.sum() > 15
    assert (found.label[of_long] == FOLLOWS).any()
    assert found.truncated == 0


def test_the_given_share_of_sequences_is_short_and_any_length_is_equally_likely() -> None:
    text = text_of([1] * 400_000)
    found = all_of(text, options("document_sentences", 22, short_sequence_probability=0.25))
    sizes = np.bincount(found.first_stop[:-1] - found.first_start[:-1], minlength=21)
    assert sizes[:2].tolist() == [0, 0]
    assert stats.chisquare(sizes[2:20]).pvalue > 1e-4
    assert stats.binomtest(int(sizes[2:20].sum()), int(sizes.sum()), 0.25 * 18 / 19).pvalue > 1e-4


@pytest.mark.parametrize("name", ["full_sentences", "document_sentences", "sentence_pairs"])
def test_the_count_of_sentences_packed_together_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = random_text(300, 9, 90)
    packing = options(name, 40, short_sequence_probability=0.2)
    expected = all_of(text, packing)
    for window in (1, 7, 100):
        monkeypatch.setattr(module, "WINDOW", window)
        assert len(list(packed(text, packing))) > 3
        for mine, theirs in zip(all_of(text, packing)[:5], expected[:5], strict=True):
            assert np.array_equal(mine, theirs)
        assert all_of(text, packing).truncated == expected.truncated


def test_seed_repetition_and_source_give_other_pairs() -> None:
    text = random_text(100, 20, 30)
    changes = [{}, {"repetition": 1}, {"source": "b"}, {"seed": 1}]
    found = [all_of(text, options("sentence_pairs", 64, **change)).second_start.tolist() for change in changes]
    assert all(found[i] != found[j] for i in range(4) for j in range(i))
    assert found[0] == all_of(text, options("sentence_pairs", 64)).second_start.tolist()


def test_the_pairs_of_a_seed_never_change() -> None:
    # Shards are made again by these numbers: they may not change for any reason.
    found = all_of(random_text(5, 8, 9), options("sentence_pairs", 23, short_sequence_probability=0.5))
    assert found.first_start.tolist() == [0, 6, 11, 14, 19, 20, 34, 39, 45, 67, 72, 88, 102, 103]
    assert found.first_stop.tolist() == [6, 11, 14, 19, 20, 28, 39, 45, 59, 72, 78, 100, 103, 115]
    assert found.second_start.tolist() == [95, 46, 102, 87, 61, 28, 20, 87, 61, 14, 78, 116, 72, 116]
    assert found.second_stop.tolist() == [102, 61, 103, 102, 80, 34, 28, 95, 67, 17, 87, 124, 87, 124]
    assert found.label.tolist() == [1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0]


def test_no_documents_give_no_sequences() -> None:
    nothing = Text(np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert list(packed(nothing, options("sentence_pairs", 23))) == []


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(RelmError, match=r"random second segments from other documents.*use full_sentences"):
        all_of(text_of([3, 4]), options("sentence_pairs", 23))
    with pytest.raises(RelmError, match=r"sequence_length: 4 leaves no room .* sentence_pairs; set at least 5"):
        all_of(TINY, options("sentence_pairs", 4))
    with pytest.raises(RelmError, match=r"sequence_length: 2 .* full_sentences; set at least 3"):
        all_of(TINY, options("full_sentences", 2))
    assert all_of(TINY, options("sentence_pairs", 5)).truncated > 0
    assert len(all_of(TINY, options("full_sentences", 3)).label) == 18
