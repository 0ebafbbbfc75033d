import numpy as np

from relm.examples.packing import FOLLOWS, NO_PAIR, RANDOM, Packing, Sequences
from relm.examples.sequences import Specials, rows_of
from relm.recipes.objectives import Masked

CLS, SEP, PAD = 1, 2, 0
SPECIALS = Specials(CLS, SEP, PAD)
TOKENS = np.arange(10, 40, dtype=np.uint16)
STARTS = np.arange(30) % 3 == 0  # words of three tokens


def sequences(spans: list[tuple[int, int, int, int, int]], separators: tuple[int, ...] = ()) -> Sequences:
    first_start, first_stop, second_start, second_stop, label = (np.array(column) for column in zip(*spans, strict=True))
    return Sequences(first_start, first_stop, second_start, second_stop, label.astype(np.int8), np.array(separators, int), 0)


def test_pairs_are_two_segments_between_special_tokens() -> None:
    spans = [(2, 5, 5, 7, FOLLOWS), (0, 2, 27, 30, RANDOM), (28, 30, 0, 1, RANDOM)]
    rows = rows_of(TOKENS, STARTS, sequences(spans), Packing(Masked(packing="sentence_pairs"), 9, ""), SPECIALS)
    assert rows.input_ids.tolist() == [
        [CLS, 12, 13, 14, SEP, 15, 16, SEP, PAD],
        [CLS, 10, 11, SEP, 37, 38, 39, SEP, PAD],
        [CLS, 38, 39, SEP, 10, SEP, PAD, PAD, PAD],
    ]
    assert rows.input_ids.dtype == np.uint16
    assert rows.length.tolist() == [8, 8, 6]
    assert rows.second_start.tolist() == [5, 4, 4]
    assert rows.next_sentence_label.tolist() == [FOLLOWS, RANDOM, RANDOM]
    # Special tokens begin words, as does what is left of a word where a segment begins; padding does not.
    assert rows.word_starts.astype(int).tolist() == [
        [1, 1, 1, 0, 1, 1, 1, 1, 0],
        [1, 1, 0, 1, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 1, 1, 0, 0, 0],
    ]


def test_documents_in_one_sequence_are_separated_and_where_one_begins_a_sequence_nothing_is_added() -> None:
    spans = [(3, 7, 7, 7, NO_PAIR), (7, 9, 9, 9, NO_PAIR), (9, 14, 14, 14, NO_PAIR)]
    found = sequences(spans, separators=(5, 9, 10, 12, 14, 25))
    rows = rows_of(TOKENS, STARTS, found, Packing(Masked(), 9, ""), SPECIALS)
    assert rows.input_ids.tolist() == [
        [CLS, 13, 14, SEP, 15, 16, SEP, PAD, PAD],
        [CLS, 17, 18, SEP, PAD, PAD, PAD, PAD, PAD],
        [CLS, 19, SEP, 20, 21, SEP, 22, 23, SEP],
    ]
    assert rows.length.tolist() == rows.second_start.tolist() == [7, 4, 9]
    assert rows.word_starts[2].tolist() == [True, True, True, False, False, True, True, False, True]
    assert rows.word_starts[1].tolist() == [True, True, False, True, False, False, False, False, False]
