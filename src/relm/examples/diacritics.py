"""Text without diacritics, and the standard spelling of letters with them.

A diacritic is a combining mark on a Latin letter. Unicode says which letters carry one: their canonical decomposition (Unicode
Standard Annex 15, form NFD) is a Latin letter followed by nonspacing marks (general category Mn). Thus ș is s and U+0326 COMMA
BELOW, ş is s and U+0327 CEDILLA, ế is e and two marks. Only such letters are changed, one by one:

- Letters without a decomposition are distinct letters and stay: đ ł ø ß æ ı þ.
- Other scripts stay unchanged, byte for byte. There a mark may make another letter (Cyrillic й is и and a breve), be a vowel
  (Devanagari, Arabic, Hebrew) or distinguish words (Greek), and Hangul's decompositions have no diacritics.
- Nothing else is normalised: ligatures, full-width letters, superscripts and compatibility ideographs stay.

This is less than transliteration: no letter is spelt with others, and no text gets longer.
"""

import functools
import itertools
import re
import unicodedata

# The blocks of marks for any script: Combining Diacritical Marks, its Extended and Supplement blocks, Half Marks.
MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\ufe20-\ufe2f"
# No character up to here decomposes, so a text of only these has no diacritics.
PLAIN = re.compile("[\x00-\xbf]*")
# Unicode's blocks with Latin letters; a search of all characters would take half a second in each process.
LATIN = (range(0x41, 0x2200), range(0x2C60, 0x2C80), range(0xA720, 0xA800), range(0xAB30, 0xAB70),
         range(0xFB00, 0xFB07), range(0xFF21, 0xFF5B), range(0x10780, 0x107C0), range(0x1DF00, 0x1E000))  # fmt: skip
# Romanian's letters have a comma below; before Unicode 3.0 (1999) only those with a cedilla, as in Turkish, existed, and much
# text still has them.
COMMA_BELOW = str.maketrans("şŞţŢ", "șȘțȚ")


def without_diacritics(text: str) -> str:
    """Return the text without the diacritics of Latin letters, composed or as separate marks.

    >>> without_diacritics("Știința și ŞTIINŢA, cafe\\u0301; đ ł ß; Йод")
    'Stiinta si STIINTA, cafe; đ ł ß; Йод'
    """
    if PLAIN.fullmatch(text):
        return text
    bare = _bare_letters()
    return _diacritics().sub(lambda found: bare.get(found[0], ""), text)


def with_standard_letters(text: str, language: str) -> str:
    """Return the text with each letter in its standard form, as a model should learn to write it.

    Letters and their marks are composed (Unicode's form NFC). In Romanian (a BCP 47 code such as ro or ro-RO), s and t with a
    cedilla become the letters with a comma below, which are the right ones. In other languages, such as Turkish, the cedilla is
    right and stays.

    >>> with_standard_letters("ştiinţa", "ro")
    'știința'
    """
    composed = unicodedata.normalize("NFC", text)
    return composed.translate(COMMA_BELOW) if language.lower().split("-")[0] == "ro" else composed


@functools.cache
def _bare_letters() -> dict[str, str]:
    """Return composed Latin letter with diacritics -> the letter without them."""
    decomposed = {letter: unicodedata.normalize("NFD", letter) for letter in map(chr, itertools.chain(*LATIN))}
    return {
        letter: parts[0]
        for letter, parts in decomposed.items()
        if len(parts) > 1 and _is_latin(parts[0]) and all(unicodedata.category(mark) == "Mn" for mark in parts[1:])
    }


@functools.cache
def _diacritics() -> re.Pattern[str]:
    """Return a pattern of the letters of `_bare_letters`, and of the marks after any Latin letter."""
    composed = "".join(_bare_letters())
    letters = composed + "".join(filter(_is_latin, map(chr, itertools.chain(*LATIN))))
    return re.compile(f"[{composed}]|(?<=[{letters}])[{MARKS}]+")


def _is_latin(character: str) -> bool:
    # Python has no property for scripts, but the name of a letter begins with its script.
    return unicodedata.category(character)[0] == "L" and unicodedata.name(character, "").startswith("LATIN ")
