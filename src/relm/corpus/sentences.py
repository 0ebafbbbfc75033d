"""Split text into sentences by the rules of Wikimedia's segmenter, https://github.com/wikimedia/sentencex, without a model.

A full stop ends a sentence unless it follows an abbreviation of the language or a number, or is inside quotes or parentheses.
Languages without rules, such as Romanian, get the English abbreviations: "Str. Mare" becomes two sentences.
"""

import itertools
import re

import sentencex

_SUBTAG = re.compile(r"[A-Za-z]{2,3}")
_PLAIN_SPACES = {code: " " for code in range(0x80, 0x3001) if chr(code).isspace()}


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of a text in order; concatenated, they are the text, character for character.

    White space between two sentences begins the second one, because in byte-level BPE a space belongs to the word after it; at
    the end of the text it stays with the last sentence. Only a text of white space gives a piece of white space. The first
    subtag of the BCP 47 code chooses the rules; a language without rules gets the English ones.

    >>> split_sentences("Dr. Li left.  He came back?", "en")
    ['Dr. Li left.', '  He came back?']
    """
    sentences: list[str] = []
    before = ""
    for segment in _cut_segments(text, _choose_rules(language)):
        sentence = segment.rstrip()
        if sentence:
            sentences.append(before + sentence)
            before = segment[len(sentence) :]
        else:
            before += segment
    if before:
        sentences.append(sentences.pop() + before if sentences else before)
    return sentences


def _cut_segments(text: str, rules: str) -> list[str]:
    """Return the segments of a text, as the segmenter splits it.

    It panics at a single letter, a non-ASCII space and a full stop, as in "plan B .": then such spaces are replaced by plain
    ones for it. A text at which it still panics stays whole.
    """
    try:
        return list(sentencex.segment(rules, text))
    except BaseException as error:  # a panic of Rust is not an Exception
        _require_panic(error)
    try:
        ends = list(itertools.accumulate(len(found) for found in sentencex.segment(rules, text.translate(_PLAIN_SPACES))))
    except BaseException as error:
        _require_panic(error)
        return [text]
    return [text[start:end] for start, end in itertools.pairwise([0, *ends])]


def _require_panic(error: BaseException) -> None:
    """Raise any error that is not a panic of Rust."""
    if type(error).__name__ != "PanicException":
        raise error


def _choose_rules(language: str) -> str:
    """Return the code of the rules for a language.

    >>> _choose_rules("pt-BR"), _choose_rules("EN_us"), _choose_rules("")
    ('pt', 'en', 'en')
    """
    subtag = _SUBTAG.match(language)
    return subtag[0].lower() if subtag else "en"
