import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relm.evaluation.windows import Windows, cut_documents, cut_windows, overlapping, rolling, strided

SIZES = st.tuples(st.integers(0, 80), st.integers(2, 12)).flatmap(lambda a: st.tuples(*map(st.just, a), st.integers(1, a[1])))


def rows(windows: Windows) -> list[tuple[int, int, int]]:
    """Return (start, end, scored) of each window."""
    return list(zip(windows.starts.tolist(), windows.ends.tolist(), windows.scored.tolist(), strict=True))


def as_megatron_masks(tokens: int, context: int, stride: int) -> list[tuple[int, list[int]]]:
    """Return Megatron's windows as (start, scored positions): padded to the context, later ones score the last `stride`."""
    count = max(int(np.ceil(max(tokens - 1 - stride, 0) / stride)) + 1, 1)
    found = []
    for index in range(count):
        start = index * stride
        targets = list(range(start + 1, start + context + 1))
        if stride != context and index != 0:
            targets = targets[-stride:]
        found.append((start, [position for position in targets if position < tokens]))
    return found


def as_the_page_on_perplexity_loops(tokens: int, context: int, stride: int) -> list[tuple[int, int, list[int], int]]:
    """Return (start, end, positions with a loss, weight of their mean) of each iteration."""
    found, reached = [], 0
    for start in range(0, tokens, stride):
        end = min(start + context, tokens)
        labels = list(range(start, end))[-(end - reached) :]
        found.append((start, end, [position for position in labels if position > start], len(labels) - 1))
        reached = end
        if end == tokens:
            break
    return found


def test_overlapping_windows_score_the_first_whole_and_then_their_last_tokens() -> None:
    windows = overlapping(tokens=12, context=5, stride=2)
    # Positions 1 to 5, then 6 7, 8 9, 10 11.
    assert rows(windows) == [(0, 6, 5), (2, 8, 2), (4, 10, 2), (6, 12, 2)]
    assert windows.published == 6  # two more begin before the end, at 8 and 10, and score nothing
    # One token less: the last window scores one.
    assert rows(overlapping(11, 5, 2))[-1] == (6, 11, 1)


def test_overlapping_windows_as_long_as_their_stride_do_not_overlap() -> None:
    windows = overlapping(12, 5, 5)
    assert rows(windows) == [(0, 6, 5), (5, 11, 5), (10, 12, 1)]
    assert windows.published == 3


def test_rolling_windows_overlap_by_one_token_and_the_last_reaches_back() -> None:
    windows = rolling(13, 5)
    assert rows(windows) == [(0, 6, 5), (5, 11, 5), (7, 13, 2)]
    assert rows(rolling(4, 5)) == [(0, 4, 3)]
    assert rows(rolling(11, 5)) == [(0, 6, 5), (5, 11, 5)]


def test_strided_windows_score_the_tokens_that_the_one_before_did_not_reach() -> None:
    windows = strided(13, 6, 4)
    assert rows(windows) == [(0, 6, 5), (4, 10, 4), (8, 13, 3)]
    # The page takes one from each, not only from the first, which alone loses a token.
    assert windows.weights.tolist() == [5, 3, 2]
    assert windows.published == 3


def test_strided_windows_that_do_not_overlap_lose_their_first_tokens() -> None:
    windows = strided(13, 4, 4)
    assert rows(windows) == [(0, 4, 3), (4, 8, 3), (8, 12, 3)]
    assert windows.weights.tolist() == [3, 3, 3]
    assert windows.published == 4  # the last one is a single token: on the page its loss is not a number


@given(SIZES)
def test_overlapping_windows_are_megatrons(sizes) -> None:
    tokens, context, stride = sizes
    windows = cut_windows("overlapping", tokens, context, stride)
    if tokens < 2:
        assert (len(windows), windows.published) == (0, 0)
        return
    original = as_megatron_masks(tokens, context, stride)
    assert windows.published == len(original)
    scoring = [(start, positions) for start, positions in original if positions]
    assert [(start, list(range(end - scored, end))) for start, end, scored in rows(windows)] == scoring
    assert windows.ends.tolist() == [min(start + context + 1, tokens) for start, _ in scoring]
    assert rows(windows)[0] == (0, min(context + 1, tokens), min(context, tokens - 1))


@given(SIZES)
def test_strided_windows_are_those_of_the_page_on_perplexity(sizes) -> None:
    tokens, context, stride = sizes
    windows = cut_windows("strided", tokens, context, stride)
    original = as_the_page_on_perplexity_loops(tokens, context, stride) if tokens > 1 else []
    assert windows.published == len(original)
    scoring = [iteration for iteration in original if iteration[2]]
    found = [(start, end, list(range(end - scored, end))) for start, end, scored in rows(windows)]
    assert found == [iteration[:3] for iteration in scoring]
    assert windows.weights.tolist() == [iteration[3] for iteration in scoring]


def test_no_window_crosses_from_one_document_into_the_next() -> None:
    windows = cut_documents("rolling", [4, 1, 0, 7], 3, 3)
    assert rows(windows) == [(0, 4, 3), (5, 9, 3), (8, 12, 3)]
    assert windows.published == 3
    assert len(cut_documents("rolling", [], 3, 3)) == 0


def test_a_limit_keeps_the_first_windows() -> None:
    windows = overlapping(12, 5, 2)
    assert rows(windows.first(2)) == [(0, 6, 5), (2, 8, 2)]
    assert windows.first(2).published == 2
    assert windows.first(None) is windows
    assert windows.first(100).published == 6


@pytest.mark.parametrize(
    ("tokens", "stride_32", "stride_1024"), [(270_330, 8448, 264), (236_892, 7403, 232), (278_365, 8699, 272)]
)
def test_wikitext_has_as_many_windows_as_published(tokens: int, stride_32: int, stride_1024: int) -> None:
    assert overlapping(tokens, 1024, 32).published == stride_32
    assert overlapping(tokens, 1024, 1024).published == stride_1024
    assert overlapping(tokens, 1024, 32).scored.sum() == overlapping(tokens, 1024, 1024).scored.sum() == tokens - 1
