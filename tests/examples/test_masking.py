import numpy as np
import pytest
from scipy import stats

from relm.errors import RelmError
from relm.examples import masking as module
from relm.examples.masking import MaskedRows, candidates, capacity, choose_fitting, mask_rows, selected
from relm.examples.order import row_keys
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.objectives import Masked

PAD, UNK, CLS, SEP, MASK = 0, 1, 2, 3, 4
SPECIAL = SpecialIds(pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK)
VOCABULARY = 50


def keys_of(rows: int, epoch: int = 0, seed: int = 0, first: int = 0) -> np.ndarray:
    return row_keys("test", seed, np.full(rows, epoch), np.arange(first, first + rows))


def rows_like(row: list[int], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of a row, padded or not, and their lengths."""
    ids = np.tile(np.array(row, dtype=np.uint16), (count, 1))
    return ids, np.count_nonzero(ids != PAD, axis=1)


def hide(row: list[int], count: int, epoch: int = 0, **options: object) -> MaskedRows:
    settings = Masked.model_validate(options)
    ids, lengths = rows_like(row, count)
    return mask_rows(ids, lengths, keys_of(count, epoch), settings, SPECIAL, VOCABULARY, capacity(settings, ids.shape[1]))


def masked_flags(found: MaskedRows) -> np.ndarray:
    """Return (rows, L), True for masked tokens."""
    rows = np.repeat(np.arange(len(found.counts)), found.counts)
    flags = np.zeros(found.input_ids.shape, bool)
    flags[rows, found.positions[np.arange(found.positions.shape[1]) < found.counts[:, None]]] = True
    return flags


def flags_of(starts: list[int], count: int) -> np.ndarray:
    return np.tile(np.array(starts, dtype=bool), (count, 1))


TWENTY = [CLS, *range(10, 19), SEP, *range(20, 28), SEP]  # 17 candidates


def test_only_tokens_of_text_are_masked() -> None:
    ids, lengths = rows_like([CLS, 10, UNK, SEP, 11, SEP, PAD, PAD], 1)
    assert candidates(ids, lengths, SPECIAL).tolist() == [[False, True, True, False, True, False, False, False]]
    assert not candidates(ids, lengths, SpecialIds(cls=CLS, sep=SEP))[0, 6:].any()


def test_the_capacity_is_what_the_selection_can_need() -> None:
    sizes = {(128, None): 19, (128, 20): 19, (512, None): 77, (512, 75): 75, (384, 58): 58, (4, None): 1}
    for (length, most), size in sizes.items():
        assert capacity(Masked(max_predictions=most), length) == size
    bernoulli = [capacity(Masked(selection="bernoulli"), length) for length in (8, 64, 128, 384, 512)]
    assert bernoulli == [8, 32, 48, 104, 128]
    assert capacity(Masked(selection="bernoulli", max_predictions=80), 512) == 80
    assert stats.binom.sf(np.array(bernoulli), [8, 64, 128, 384, 512], 0.15).max() < 1e-8


@pytest.mark.parametrize("probability", [0.01, 0.15, 0.4, 0.97])
def test_the_bound_of_a_binomial_is_the_least_value_that_is_safe(probability: float) -> None:
    for length in (5, 100, 512):
        bound = module._binomial_bound(length, probability)
        assert stats.binom.sf(bound, length, probability) < 1e-8
        assert bound == 0 or stats.binom.sf(bound - 1, length, probability) >= 1e-8


def test_exact_masks_its_count_of_tokens() -> None:
    lengths = np.arange(3, 41)
    ids = np.where(np.arange(40) < lengths[:, None], 9, PAD).astype(np.int32)
    ids[:, 0], ids[np.arange(38), lengths - 1] = CLS, SEP
    options = Masked(probability=0.15, max_predictions=4)
    found = mask_rows(ids, lengths, keys_of(38), options, SPECIAL, VOCABULARY, 4)
    # The nearest whole number to 15 % of the length, one at least and four at most: 1.5 gives 2, 2.5 would give 2.
    expected = [1] * 7 + [2] * 7 + [3] * 7 + [4] * 17
    assert found.counts.tolist() == expected == [min(4, max(1, round(0.15 * length))) for length in lengths]
    assert masked_flags(found).sum(axis=1).tolist() == expected
    assert mask_rows(ids[:1], lengths[:1], keys_of(1), Masked(probability=0.9), SPECIAL, 50, 9).counts.tolist() == [1]


def test_masked_tokens_are_labels_in_order_and_all_else_stays() -> None:
    found = hide([*TWENTY, PAD, PAD], 2000, probability=0.3)
    ids, _ = rows_like([*TWENTY, PAD, PAD], 2000)
    flags = masked_flags(found)
    assert not flags[:, [0, 10, 19, 20, 21]].any()
    assert np.array_equal(found.input_ids[~flags], ids[~flags])
    assert np.array_equal(found.labels[:, :6].ravel(), ids[flags])
    assert (np.diff(found.positions[:, :6].astype(int)) > 0).all()
    assert set(found.counts.tolist()) == {6}
    assert found.input_ids.dtype == found.labels.dtype == np.uint16


def test_unused_entries_are_zero_and_the_given_rows_unchanged() -> None:
    ids, lengths = rows_like([CLS, 10, 11, SEP, *[PAD] * 36], 3)
    before = ids.copy()
    found = mask_rows(ids, lengths, keys_of(3), Masked(), SPECIAL, VOCABULARY, 6)
    assert np.array_equal(ids, before)
    assert found.counts.tolist() == [1, 1, 1]
    assert not found.positions[:, 1:].any()
    assert not found.labels[:, 1:].any()


@pytest.mark.parametrize("options", [{"probability": 0.2}, {"probability": 0.2, "selection": "bernoulli"}])
def test_every_token_and_every_pair_of_tokens_is_masked_equally_often(options: dict[str, object]) -> None:
    flags = masked_flags(hide(TWENTY, 40_000, **options))[:, [*range(1, 10), *range(11, 19)]].astype(int)
    together = flags.T @ flags
    share = together.diagonal().mean() / len(flags)
    spread = ((together.diagonal() - len(flags) * share) ** 2).sum() / (len(flags) * share * (1 - share))
    fixed = "selection" not in options  # with a fixed number in each row the counts vary less, as if drawn without putting back
    assert stats.chi2.sf(spread * (16 / 17 if fixed else 1), 16) > 1e-4
    pairs = together[np.triu_indices(17, 1)]
    assert stats.chisquare(pairs).pvalue > 1e-4


def test_bernoulli_with_a_maximum_keeps_the_shares_of_all_positions() -> None:
    found = hide(TWENTY, 40_000, selection="bernoulli", max_predictions=3, probability=0.3)
    assert found.positions.shape[1] == found.counts.max() == 3
    free = hide(TWENTY, 40_000, selection="bernoulli", probability=0.3)
    assert np.array_equal(found.counts, np.minimum(free.counts, 3))
    assert not (masked_flags(found) & ~masked_flags(free)).any()
    counts = masked_flags(found)[:, [*range(1, 10), *range(11, 19)]].sum(axis=0)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_more_masked_tokens_than_capacity_are_an_error_not_a_lost_label() -> None:
    ids, lengths = rows_like(TWENTY, 1000)
    options = Masked(selection="bernoulli", probability=0.15)
    with pytest.raises(RelmError, match=r"bernoulli drew more than 5 tokens of one sequence.*set masked.max_predictions: 5"):
        mask_rows(ids, lengths, keys_of(1000), options, SPECIAL, VOCABULARY, 5)
    with pytest.raises(ValueError, match="bernoulli with whole_words needs max_predictions"):
        Masked(selection="bernoulli", whole_words=True)


def test_eighty_ten_ten() -> None:
    for shares in ({}, {"mask_share": 0.5, "random_share": 0.5}, {"mask_share": 1.0, "random_share": 0.0}):
        options = Masked.model_validate(shares)
        found = hide(TWENTY, 20_000, **shares)
        now, before = found.input_ids[masked_flags(found)], found.labels.ravel()
        random = (now != MASK) & (now != before)
        observed = [(now == MASK).sum(), random.sum(), (now == before).sum()]
        itself = options.random_share / 45  # a random token may be the one that was there
        kept = 1 - options.mask_share - options.random_share + itself
        expected = np.array([options.mask_share, options.random_share - itself, kept])
        possible = expected > 1e-9
        assert not np.array(observed)[~possible].any()
        if possible.sum() > 1:
            wanted = expected[possible] / expected[possible].sum() * len(now)
            assert stats.chisquare(np.array(observed)[possible], wanted).pvalue > 1e-4


def test_random_replacements_are_any_token_but_a_special_one() -> None:
    found = hide([CLS, *[20] * 18, SEP], 20_000, mask_share=0.0, random_share=1.0)
    drawn = np.bincount(found.input_ids[masked_flags(found)], minlength=VOCABULARY)
    assert not drawn[:5].any()
    assert stats.chisquare(drawn[5:]).pvalue > 1e-4
    special = SpecialIds(end_of_text=7, pad=49, unk=48, cls=5, sep=7, mask=0)  # anywhere, two of them the same
    ids = np.full((5000, 20), 20, np.uint16)
    options = Masked(mask_share=0.0, random_share=1.0)
    found = mask_rows(ids, np.full(5000, 20), keys_of(5000), options, special, VOCABULARY, 3)
    drawn = np.bincount(found.input_ids[masked_flags(found)], minlength=VOCABULARY)
    assert not drawn[[0, 5, 7, 48, 49]].any()
    assert np.count_nonzero(drawn) == 45


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_row_has_the_same_mask_in_every_batch(whole_words: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    lengths = generator.integers(3, 61, 200)
    ids = np.where(np.arange(60) < lengths[:, None], generator.integers(5, VOCABULARY, (200, 60)), PAD).astype(np.uint16)
    ids[:, 0], ids[np.arange(200), lengths - 1] = CLS, SEP
    starts = generator.random((200, 60)) < 0.6
    options = Masked(whole_words=whole_words, max_predictions=8)

    def run(rows: np.ndarray) -> MaskedRows:
        return mask_rows(ids[rows], lengths[rows], keys_of(200)[rows], options, SPECIAL, VOCABULARY, 8, starts[rows])

    together = run(np.arange(200))
    order = generator.permutation(200)
    for mine, theirs in zip(run(order), together, strict=True):
        assert np.array_equal(mine, theirs[order])
    for row in (0, 57, 199):
        for mine, theirs in zip(run(np.array([row])), together, strict=True):
            assert np.array_equal(mine[0], theirs[row])
    monkeypatch.setattr(module, "BLOCK", 7 * 60)
    for mine, theirs in zip(run(np.arange(200)), together, strict=True):
        assert np.array_equal(mine, theirs)
    assert run(np.arange(0)).positions.shape == (0, 8)


def test_the_masks_of_a_seed_never_change() -> None:
    # Runs are resumed by these numbers: they may not change for any reason.
    found = hide(TWENTY, 3)
    assert found.positions.tolist() == [[4, 6, 17], [5, 12, 13], [1, 7, 8]]
    # The first row's are a random token, a random token and the mask token.
    assert found.input_ids[0].tolist() == [2, 10, 11, 12, 20, 14, 28, 16, 17, 18, 3, 20, 21, 22, 23, 24, 25, 4, 27, 3]
    starts = flags_of([1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1], 3)
    ids, lengths = rows_like(TWENTY, 3)
    words = mask_rows(ids, lengths, keys_of(3), Masked(whole_words=True, probability=0.25), SPECIAL, VOCABULARY, 5, starts)
    assert words.positions.tolist() == [[6, 11, 12, 13, 17], [3, 4, 5, 6, 13], [1, 2, 7, 8, 9]]


WORDS = [1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 1]
"""The words of TWENTY: [1 2] [3 4 5] [6] [7 8 9], after the separator the rest of one [11], then [12 13] [14] [15 to 18]."""
WORD_LIST = [[1, 2], [3, 4, 5], [6], [7, 8, 9], [11], [12, 13], [14], [15, 16, 17, 18]]


def masked_words(count: int, capacity: int, **options: object) -> list[list[int]]:
    """Return the masked positions of each row."""
    ids, lengths = rows_like(TWENTY, count)
    settings = Masked.model_validate({"whole_words": True, **options})
    starts = flags_of(WORDS, count)
    found = mask_rows(ids, lengths, keys_of(count), settings, SPECIAL, VOCABULARY, capacity, starts)
    return [np.flatnonzero(row).tolist() for row in masked_flags(found)]


def test_whole_words_are_masked_and_one_that_would_exceed_the_count_is_skipped() -> None:
    rows = masked_words(3000, 3)
    for row in rows:
        words = [word for word in WORD_LIST if word[0] in row]
        assert row == [position for word in words for position in word]
        assert 0 < len(row) <= 3
        left_out = [word for word in WORD_LIST if word not in words]
        assert all(len(row) + len(word) > 3 for word in left_out)  # nothing that still fits was left out
    assert not any(15 in row for row in rows)  # four tokens never fit
    assert {len(row) for row in rows} == {3}  # there are words of one token enough to fill up


def test_a_row_of_one_long_word_has_no_mask() -> None:
    ids, lengths = rows_like([CLS, 10, 11, 12, SEP], 2)
    starts = flags_of([1, 1, 0, 0, 1], 2)
    found = mask_rows(ids, lengths, keys_of(2), Masked(whole_words=True), SPECIAL, VOCABULARY, 1, starts)
    assert found.counts.tolist() == [0, 0]
    assert np.array_equal(found.input_ids, ids)


def test_a_word_ends_with_its_row() -> None:
    ids = np.full((3, 4), 20, np.uint16)  # no special token between the rows, and no word starts
    options = Masked(whole_words=True, probability=0.99)
    found = mask_rows(ids, np.full(3, 4), keys_of(3), options, SPECIAL, VOCABULARY, 4, np.zeros((3, 4), bool))
    assert found.counts.tolist() == [4, 4, 4]


def test_items_are_taken_as_one_by_one() -> None:
    generator = np.random.default_rng(1)
    sizes = generator.integers(0, 9, (2000, 25))
    room = generator.integers(1, 30, 2000)
    expected = np.zeros(sizes.shape, bool)
    for row in range(2000):
        left = room[row]
        for thing, size in enumerate(sizes[row]):
            if 0 < size <= left:
                expected[row, thing] = True
                left -= size
    assert np.array_equal(choose_fitting(sizes, room), expected)
    assert choose_fitting(np.array([[4, 3, 2, 1]]), np.array([4])).tolist() == [[True, False, False, False]]


def test_the_count_of_words_offered_together_changes_nothing() -> None:
    generator = np.random.default_rng(2)
    ids = generator.integers(5, VOCABULARY, (500, 64)).astype(np.uint16)
    ids[:, [0, 63]] = CLS, SEP
    starts = generator.random((500, 64)) < 0.35  # long words, so that many are passed over before a short one fits
    candidate = candidates(ids, np.full(500, 64), SPECIAL)
    options = Masked(whole_words=True, probability=0.03)
    hidden = selected(keys_of(500), candidate, np.full(500, 64), options, 2, starts)
    assert hidden.any(axis=1).mean() > 0.9
    starts[:, 1:] |= ~candidate[:, :-1]
    for row in range(500):
        words = np.split(np.arange(64), np.flatnonzero(starts[row] | ~candidate[row]))
        words = [word for word in words if len(word) and candidate[row, word[0]]]
        taken = [word for word in words if hidden[row, word].any()]
        assert all(hidden[row, word].all() for word in taken)
        left = 2 - sum(map(len, taken))
        assert left >= 0
        assert not any(len(word) <= left for word in words if not hidden[row, word].any())
