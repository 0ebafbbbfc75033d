import numpy as np
import pytest

from plain_ngrams import list_ngrams, split_words
from relm.corpus import ngrams
from relm.corpus.ngrams import Words, hash_ngrams, hash_words

TEXTS = [
    "The cat sat on the mat, and THE CAT sat on the mat again.",
    "",
    " ... !? ",
    "well @-@ known , and well-known; don't; 1,000.5 m²",
    "Straße ŞI şi \u0218I și I\u0307stanbul \u0130stanbul caf\u00e9 cafe\u0301",
    "ΟΔΟΣ οδος ΟΔΟΣ. हिन्दी भाषा 漢字かな、カナ \U00020000\U0001f600x \u212a K \U000e0100a",
    "snake_case a\u00a0b\u2003c\u200bd\x1ce",
]


def hashes_by_text(words: Words, texts: int) -> list[list[int]]:
    return [words.hashes[words.texts == text].tolist() for text in range(texts)]


def test_words_are_those_of_plain_python() -> None:
    """Equal words have equal hashes, and different words different ones."""
    found = [hash_ for hashes in hashes_by_text(hash_words(TEXTS), len(TEXTS)) for hash_ in hashes]
    expected = [word for text in TEXTS for word in split_words(text)]
    assert len(found) == len(expected)
    assert len(set(found)) == len(set(expected)) == len(set(zip(found, expected, strict=True)))


def test_case_punctuation_and_white_space_do_not_count() -> None:
    one, other = hashes_by_text(hash_words(["Well-known: “Ion's” CAFÉ", "well @-@ known\n ion 's cafe\u0301 !"]), 2)
    assert one == other
    assert len(one) == 5


@pytest.mark.parametrize("n", [1, 2, 13])
def test_ngrams_lie_within_one_text_and_are_those_of_plain_python(n: int) -> None:
    texts = [*TEXTS, " ".join(str(number) for number in range(20)), "5 6 7 8 9 10 11 12 13 14 15 16 17 18"]
    found = hash_ngrams(hash_words(texts), n)
    by_text = [set(found.hashes[found.texts == text].tolist()) for text in range(len(texts))]
    plain = [list_ngrams(text, n) for text in texts]
    assert list(map(len, by_text)) == list(map(len, plain))
    for left in range(len(texts)):
        for right in range(len(texts)):
            assert len(by_text[left] & by_text[right]) == len(plain[left] & plain[right]), (texts[left], texts[right])


def test_the_order_of_words_counts() -> None:
    found = hash_ngrams(hash_words(["a b c", "c b a", "ab c"]), 2)
    assert len(set(found.hashes.tolist())) == 5


def test_texts_hash_alike_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is cut before white space, and several short ones are hashed together."""
    texts = [*TEXTS, "Σ ΑΣ ΣΑΣ " * 40, "word" * 50, "short"]
    whole = hash_words(texts)
    monkeypatch.setattr(ngrams, "AT_ONCE", 10)
    in_pieces = hash_words(texts)
    assert np.array_equal(whole.hashes, in_pieces.hashes)
    assert np.array_equal(whole.texts, in_pieces.texts)


def test_texts_without_words_have_no_ngrams() -> None:
    for texts in ([], [""], ["...", "\n"]):
        assert len(hash_words(texts).hashes) == 0
        assert len(hash_ngrams(hash_words(texts), 13).hashes) == 0


def test_two_hundred_thousand_words_have_hashes_of_their_own() -> None:
    """Numbers and their continuations are alike; a weak hash would have several with one value."""
    words = [f"{number:x}" for number in range(100_000)] + [f"w{number}" for number in range(100_000)]
    hashes = hash_words([" ".join(words)]).hashes
    assert len(np.unique(hashes)) == len(set(words)) == 200_000
    counts = np.bincount((hashes >> np.uint64(56)).astype(np.int64), minlength=256)
    assert counts.min() > 600, "the first bits are not evenly distributed"
    assert counts.max() < 970, "the first bits are not evenly distributed"
