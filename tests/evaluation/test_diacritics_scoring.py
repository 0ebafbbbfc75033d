"""Scores of restored diacritics and their baselines, by hand and on real Romanian."""

import itertools
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relm.evaluation.diacritics.diacritics_baselines import Forms, collect_forms, count_forms
from relm.evaluation.diacritics.diacritics_scoring import (
    RestorationCounts,
    align_words,
    compare_texts,
    letters_of,
    plain,
    words_of,
)
from relm.evaluation.diacritics.restored_texts import WORKED_EXAMPLES
from relm.examples.diacritics import with_standard_letters, without_diacritics

ROMANIAN = "AaĂăÂâÎîȘșȚțTtBb -.,2S"


def test_every_count_of_a_sentence_by_hand() -> None:
    """Count Fata (ambiguous), în and casei as right, and sta and fata (both ambiguous) as wrong by one diacritic."""
    found = compare_texts("Fata stă în fața casei.", "Fata sta în fata casei.", {"fata", "sta"})
    assert found == RestorationCounts(
        words=5, right_words=3, ambiguous_words=3, right_ambiguous_words=1,
        characters=18, right_characters=16, diacritics=3, right_diacritics=1,
    )  # fmt: skip
    assert found.accuracies() == {
        "character_accuracy": 16 / 18,
        "word_accuracy": 3 / 5,
        "ambiguous_word_accuracy": 1 / 3,
        "diacritic_accuracy": 1 / 3,
    }


def test_counts_add_up_and_shares_of_nothing_are_left_out() -> None:
    a, b = compare_texts("să", "sa", {"sa"}), compare_texts("in 2", "in 2 ani", ())
    assert a + b == RestorationCounts(2, 1, 1, 0, 4, 3, 1, 0, extra_words=1)
    assert b.accuracies() == {"character_accuracy": 1.0, "word_accuracy": 1.0}
    assert compare_texts("", "", ()) == RestorationCounts()
    assert compare_texts("... 2", "", ()).accuracies() == {}


def test_case_and_false_diacritics_are_faults_and_what_is_between_words_is_not() -> None:
    assert compare_texts("Țara", "țara", ()) == RestorationCounts(1, 0, 0, 0, 4, 3, 1, 0)
    assert compare_texts("casa", "casă", ()) == RestorationCounts(1, 0, 0, 0, 4, 3, 0, 0)
    assert compare_texts("într-o zi, da", "într – o\nzi da!", ()).right_words == 4


@pytest.mark.parametrize("output", ["ştiinţa", "s\u0327tiint\u0327a", "s\u0326tiint\u0326a", "știința"])
def test_cedilla_comma_and_separate_marks_are_one_letter(output: str) -> None:
    assert compare_texts("știința", with_standard_letters(output, "ro"), ()) == RestorationCounts(1, 1, 0, 0, 7, 7, 2, 2)


def test_a_letter_keeps_the_marks_that_no_letter_of_unicode_has() -> None:
    assert letters_of("q\u0303a\u0331\u0301") == ["q\u0303", "a\u0331\u0301"]
    assert words_of("q\u0303a b") == ["q\u0303a", "b"]
    assert compare_texts("q\u0303a", "qa", ()) == RestorationCounts(1, 0, 0, 0, 2, 1, 1, 0)
    assert compare_texts("q\u0303a", "qa\u0331", ()) == RestorationCounts(1, 0, 0, 0, 2, 0, 1, 0)


@pytest.mark.parametrize(
    ("expected", "found", "pairs"),
    [
        ("a b c", "a c", [(0, 0), (2, 1)]),
        ("a b c", "a x b c", [(0, 0), (1, 2), (2, 3)]),
        ("a b a b", "b a", [(1, 0), (2, 1)]),
        ("a b", "", []),
        ("a b", "c d", []),
        ("sa să", "să", [(1, 0)]),  # of two partners the equal one
        ("să sa x", "sa să", [(0, 0), (1, 1)]),  # two pairs are more than one equal word
    ],
)
def test_texts_of_other_lengths_are_aligned_by_their_words(expected: str, found: str, pairs: list[tuple[int, int]]) -> None:
    assert align_words(expected.split(), found.split()) == pairs


def best_by_trying(expected: list[str], found: list[str]) -> tuple[int, int]:
    """Return the most pairs of any alignment, and the most equal ones among such alignments."""
    best = (0, 0)
    for size in range(1, min(len(expected), len(found)) + 1):
        for left in itertools.combinations(range(len(expected)), size):
            for right in itertools.combinations(range(len(found)), size):
                words = [(expected[a], found[b]) for a, b in zip(left, right, strict=True)]
                if all(plain(a) == plain(b) for a, b in words):
                    best = max(best, (size, sum(a == b for a, b in words)))
    return best


some_words = st.lists(st.sampled_from(["a", "ă", "A", "b"]), max_size=6)


@given(expected=some_words, found=some_words)
def test_no_alignment_is_better(expected: list[str], found: list[str]) -> None:
    pairs = align_words(expected, found)
    assert pairs == sorted(pairs)
    assert all(len(set(side)) == len(pairs) for side in zip(*pairs, strict=True))
    equal = sum(expected[a] == found[b] for a, b in pairs)
    if list(map(plain, expected)) == list(map(plain, found)):
        assert pairs == [(index, index) for index in range(len(expected))]
    else:
        assert (len(pairs), equal) == best_by_trying(expected, found)


@given(st.text(), st.text(alphabet=ROMANIAN))
def test_any_two_texts_can_be_compared(one: str, other: str) -> None:
    for reference, output in itertools.product((one, other, without_diacritics(one)), repeat=2):
        reference, output = (with_standard_letters(text, "ro") for text in (reference, output))
        found = compare_texts(reference, output, ())
        assert found.right_words <= found.words == len(words_of(reference))
        assert found.right_diacritics <= found.right_characters <= found.characters
        assert compare_texts(reference, reference, ()).accuracies().get("word_accuracy", 1.0) == 1.0


def forms_in(*texts: str) -> Forms:
    return collect_forms([count_forms(texts)], {"sa", "fata", "tara", "in", "si"})


def test_forms_are_those_of_wanted_words_whatever_their_case() -> None:
    forms = forms_in("Să sa SĂ și", "șI tac", "fată")
    assert forms.counts == {"sa": {"să": 2, "sa": 1}, "si": {"și": 2}, "fata": {"fată": 1}}
    assert (forms.words, forms.ambiguous) == (7, {"sa"})


def test_the_most_frequent_form_is_put_in_place_of_each_word_in_its_case() -> None:
    forms = forms_in("Să sa să țară în")
    assert forms.restore("Sa sa SA, tara-tara TARA Tara; IN fata") == "Să să SĂ, țară-țară ȚARĂ Țară; ÎN fata"


def test_of_equally_frequent_forms_the_first_by_code_points_is_taken() -> None:
    assert forms_in("fată față fata", "țara țară").likeliest == {"fata": "fata", "tara": "țara"}
    assert forms_in("țară țara").likeliest == {"tara": "țara"}


def test_the_worked_example_is_that_of_the_card() -> None:
    example = WORKED_EXAMPLES["ro"]
    source = "A inceput sa ii taie un fir de par, iar fata sta in fata, tine camasa de in in mana si canta nota SI."
    card = "A început să îi taie un fir de păr, iar fata stă în față, ține cămașa de in în mână și cântă nota SI"
    assert without_diacritics(example) == source
    assert with_standard_letters(example.replace("ț", "ţ").replace("ș", "ş"), "ro") == example
    assert compare_texts(example, card, ()).accuracies()["word_accuracy"] == 1.0
    found = compare_texts(example, source, ())
    assert (found.words, found.right_words, found.diacritics, found.right_diacritics) == (24, 11, 17, 0)


def romanian(shared_data: Path, name: str) -> list[str]:
    with lzma.open(shared_data / "romanian" / name, "rt", encoding="utf-8") as file:
        return [with_standard_letters(line.strip(), "ro") for line in file if line.strip()]


def test_baselines_on_real_romanian_are_where_they_should_be(shared_data: Path) -> None:
    """Compare baselines on UD's Romanian sentences, with RO-STS as training text; `pytest -s` prints the figures."""
    training, held_out = romanian(shared_data, "ro-sts-train.ro.txt.xz"), romanian(shared_data, "ud-ro-rrt.txt.xz")
    forms = collect_forms([count_forms(training)], {plain(word) for text in held_out for word in words_of(text)})
    nothing, likeliest = RestorationCounts(), RestorationCounts()
    for text in held_out:
        source = without_diacritics(text)
        nothing += compare_texts(text, source, forms.ambiguous)
        likeliest += compare_texts(text, forms.restore(source), forms.ambiguous)
    of_nothing, of_likeliest = nothing.accuracies(), likeliest.accuracies()
    print(f"\n{len(forms.ambiguous)} ambiguous forms, {forms.words:,} training words\n{nothing}\n{of_nothing}\n{of_likeliest}")

    assert (nothing.words, nothing.characters) == (likeliest.words, likeliest.characters)
    assert nothing.extra_words == likeliest.extra_words == 0
    # In the file itself: words with a letter that carries a diacritic are those that come out wrong without any.
    with_one = sum(any(letter in "ăâîșțéăóüö" for letter in word.lower()) for text in held_out for word in words_of(text))
    assert nothing.words - nothing.right_words == pytest.approx(with_one, abs=20)
    assert of_nothing["diacritic_accuracy"] == 0.0
    # A quarter to a third of Romanian words have a diacritic; most of these are frequent words with one likely form.
    assert 0.6 < of_nothing["word_accuracy"] < 0.8
    assert 0.85 < of_likeliest["word_accuracy"] < 0.97
    for figure in of_nothing:
        assert of_likeliest[figure] > of_nothing[figure]
    assert of_likeliest["ambiguous_word_accuracy"] < of_likeliest["word_accuracy"], "these are the hard ones"
