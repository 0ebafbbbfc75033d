"""Tidy the spaces of text whose markup is gone."""

import re

from relm.corpus import compiled

# A search for a pattern that begins with a literal is several times as fast as one with a choice or a look back first.
_EMPTY_PARENTHESES = re.compile(r"\((?<![^ \n]\()[ ,;:/|–—-]*\)")
_OPENED = re.compile(r"\((?:[ ]+|[,;:][ ])[ ,;:]*")
_BEFORE_PUNCTUATION = re.compile(r" (?=[,.](?:[ \n]|\Z))(?<=[^ \n] )")
_BEFORE_COMMA = re.compile(r" ,(?=[ \n]|\Z)(?<=[^ \n] ,)")
_BEFORE_POINT = re.compile(r" \.(?=[ \n]|\Z)(?<=[^ \n] \.)")


def tidy_spaces(text: str) -> str:
    """Leave one space between words, and remove empty lines and what omitted templates left in parentheses."""
    if compiled.tidy_spaces:
        return compiled.tidy_spaces(text).strip()
    for space in ("\xa0", "\t", "\r", "\u2009", "\u202f", "\u3000"):
        text = text.replace(space, " ")
    text = _leave_single_spaces(text)
    text = _OPENED.sub("(", text)
    text = _tidy_before_closing(text)
    text = _EMPTY_PARENTHESES.sub("", text)
    text = _leave_single_spaces(text)
    text = _tidy_before_punctuation(text)
    if "\n\n" in text or " \n" in text or "\n " in text:
        lines = [line.strip(" ") for line in text.split("\n")]
        text = "\n".join([line for line in lines if line])
    return text.strip()


def _leave_single_spaces(text: str) -> str:
    while len(shorter := text.replace("  ", " ")) < len(text):
        text = shorter
    return text


def _tidy_before_punctuation(text: str) -> str:
    """Remove the space before a comma or a point that ends a word."""
    has_comma, has_point = " ," in text, " ." in text
    if has_comma and has_point:
        return _BEFORE_PUNCTUATION.sub("", text)
    if has_comma:
        return _BEFORE_COMMA.sub(",", text)
    return _BEFORE_POINT.sub(".", text) if has_point else text


def _tidy_before_closing(text: str) -> str:
    """Remove a space before a closing parenthesis, and one comma, semicolon or colon before that: (1815 , )."""
    *pieces, last = text.split(" )")
    for place, piece in enumerate(pieces):
        if piece.endswith((",", ";", ":")):
            pieces[place] = piece[:-1].rstrip(" ")
    return ")".join((*pieces, last))
