import lzma
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relm.examples.diacritics import with_standard_letters, without_diacritics


def test_the_worked_example_of_the_published_model_loses_its_diacritics() -> None:
    source = "A inceput sa ii taie un fir de par, iar fata sta in fata, tine camasa de in in mana si canta nota SI"
    target = "A început să îi taie un fir de păr, iar fata stă în față, ține cămașa de in în mână și cântă nota SI"
    assert without_diacritics(target) == source
    assert without_diacritics(source) == source


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("ăâîșț ĂÂÎȘȚ", "aaist AAIST"),  # comma below
        ("şţ ŞŢ", "st ST"),  # cedilla
        ("s\u0326t\u0327 e\u0301\u0302", "st e"),  # marks of their own
        ("s\u0326\u0301̣", "s"),
        ("Việt Nam, ở, ự", "Viet Nam, o, u"),
        ("ç ñ å é ž ő ẛ \u212b", "c n a e z o ſ A"),
        ("İI", "II"),
        ("\u212b\u0301", "A"),  # the sign of a unit, which decomposes to a Latin letter, and one more mark
    ],
)
def test_latin_letters_lose_their_marks(text, bare) -> None:
    assert without_diacritics(text) == bare


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain ASCII, 2 words\n",
        "đ ł ø ß æ œ ı þ ð",  # letters of their own
        "Йод ёлка И\u0306 київ",
        "ελληνικά, ΐ, ᾷ",
        "한국어 \u1112\u1161\u11ab",
        "हिन्दी தமிழ் ไทย่",
        "שָׁלוֹם اَلسَّلَامُ",
        "か\u3099がパ\u309a",
        "ﬁ Ａ ² ª 豈 \u2126 1\u0301 1️⃣ \u0301 \u2260",
    ],
)
def test_distinct_letters_and_other_scripts_stay_byte_for_byte(text) -> None:
    assert without_diacritics(text) == text


def test_a_text_in_two_scripts_changes_in_its_latin_part_only() -> None:
    assert without_diacritics("café Йогурт e\u0301И\u0306 日本") == "cafe Йогурт eИ\u0306 日本"


def has_a_latin_letter_with_a_mark(character: str) -> bool:
    letter, *marks = unicodedata.normalize("NFD", character)
    return bool(marks) and unicodedata.name(letter, "").startswith("LATIN ")


def test_no_composed_latin_letter_of_unicode_is_forgotten() -> None:
    everything = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    changed = [character for character in everything if without_diacritics(character) != character]
    assert changed == [character for character in everything if has_a_latin_letter_with_a_mark(character)]
    assert len(changed) > 400


def test_no_latin_letter_of_unicode_keeps_its_mark() -> None:
    latin = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.name(c, "").startswith("LATIN ")]
    letters = [c for c in latin if unicodedata.category(c)[0] == "L"]
    assert without_diacritics("\u0301 ".join([*letters, ""])) == without_diacritics(" ".join([*letters, ""]))


@given(st.text(alphabet=st.characters(whitelist_categories=["L", "N", "Z", "P", "Mn"], max_codepoint=0x24F)))
def test_composed_and_decomposed_text_have_the_same_bare_form(text) -> None:
    assert without_diacritics(unicodedata.normalize("NFC", text)) == without_diacritics(unicodedata.normalize("NFD", text))


def test_romanian_gets_the_comma_and_turkish_keeps_the_cedilla() -> None:
    assert with_standard_letters("ştiinţă ŞI ŢARĂ", "ro") == "știință ȘI ȚARĂ"
    assert with_standard_letters("s\u0327i s\u0326i t\u0327", "ro") == "și și ț"
    assert with_standard_letters("şeker", "tr") == "şeker"
    assert with_standard_letters("e\u0301", "fr") == "é"
    assert with_standard_letters("ﬁ ²", "ro") == "ﬁ ²"


def test_correct_romanian_is_in_its_standard_letters_already(shared_data) -> None:
    with lzma.open(shared_data / "romanian" / "ud-ro-rrt.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read()
    assert with_standard_letters(text, "ro") == unicodedata.normalize("NFC", text)
    assert set("ăâîșțĂÎȘȚ").isdisjoint(without_diacritics(text))
