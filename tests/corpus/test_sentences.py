import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relm.corpus.sentences import split_sentences

CHARACTERS = st.one_of(
    st.characters(exclude_categories=("Cs",)),
    st.sampled_from(
        " .!?…。！？\"'“”«»()[]\n\r\t\x00\x0b\x0c\x1c\x85\u00a0\u200b\u2028\u2029\u3000\ufeff\u0301\U0001f469\u200d"
    ),
    st.sampled_from(["Mr. ", "U.S. ", "a. B", "\n\n", "\r\n", "1. ", "?! ", "... "]),
)


@settings(max_examples=500, deadline=None)
@given(
    text=st.lists(CHARACTERS, max_size=40).map("".join),
    language=st.sampled_from(["en", "ro", "de", "ja", "hi", "ru", "zh-Hant", "tlh", "", "en_US"]),
)
def test_the_concatenated_sentences_are_the_text(text: str, language: str) -> None:
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    if text.strip():
        assert all(sentence.strip() for sentence in sentences)


@pytest.mark.parametrize("space", ["\u00a0", "\u2028", "\u2029", "\u3000", "\x85"])
def test_a_text_at_which_the_segmenter_panics_is_cut_all_the_same(space: str) -> None:
    text = f"So much for plan B{space}. Another one came."
    assert split_sentences(text, "en") == [f"So much for plan B{space}.", " Another one came."]


def test_white_space_leads_the_next_sentence_and_the_last_keeps_the_rest() -> None:
    text = "  He came.\t She  left!\u00a0\n\n \nWhy?  "
    assert split_sentences(text, "en") == ["  He came.", "\t She  left!", "\u00a0\n\n \nWhy?  "]


def test_nothing_and_white_space() -> None:
    assert split_sentences("", "en") == []
    assert split_sentences(" \n", "en") == [" \n"]


def test_english_abbreviations_initials_and_numbers_end_no_sentence() -> None:
    text = "Dr. J. Smith paid $ 3.50 to the U.S. Navy at 5 p.m. on Jan. 5. Mrs. Li left. It ended 2 – 1 ."
    assert split_sentences(text, "en-GB") == [
        "Dr. J. Smith paid $ 3.50 to the U.S. Navy at 5 p.m. on Jan. 5.",
        " Mrs. Li left.",
        " It ended 2 – 1 .",
    ]


def test_a_language_without_its_own_rules_gets_the_english_ones() -> None:
    romanian = "Prof. Ionescu a venit. Și a plecat! Țara nr. 5 este mică."
    assert split_sentences(romanian, "ro") == ["Prof. Ionescu a venit.", " Și a plecat!", " Țara nr. 5 este mică."]
    for language in ("tlh", "en", "", "x-private"):
        assert split_sentences(romanian, language) == split_sentences(romanian, "ro")


def test_a_language_with_its_own_rules_gets_them() -> None:
    german = "Sie kam z.B. Montag bzw. Dienstag. Er ging."
    assert split_sentences(german, "de") == ["Sie kam z.B. Montag bzw. Dienstag.", " Er ging."]
    assert len(split_sentences(german, "en")) > 2
    assert split_sentences("これは本です。あれは？はい。", "ja") == ["これは本です。", "あれは？", "はい。"]
