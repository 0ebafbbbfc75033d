"""Detokenisers, which remove the spaces that WikiText's tokenisation put around punctuation.

The rules are those of Megatron-LM's `wikitext_detokenizer`, which Graphcore's GPT-2 and lm_eval copied unchanged. Right or
wrong, they decide how many tokens a text has, and so its perplexity. They are applied to the whole text, in this order, with
their accidents: a quotation is any text between two consecutive marks, even across lines, and ` N `, a number in the Penn
Treebank, becomes ` 1 `.
"""

import re
from collections.abc import Callable

# A string or pattern, and its replacement.
Rule = tuple[str | re.Pattern[str], str]


def _without_inner_space(left: str, right: str) -> Rule:
    """Return a rule that strips the white space inside a pair of marks."""
    begin, end = re.escape(left), re.escape(right)
    return re.compile(rf"{begin}\s*([^{end}]*?)\s*{end}"), rf"{left}\1{right}"


WIKITEXT: tuple[Rule, ...] = (
    ("s '", "s'"),
    # Written between slashes, as for sed and Perl, which Python takes for slashes of the text. So the rule matches nothing in
    # WikiText; where it did match, it would put the pattern into the text.
    (re.compile("/' [0-9]/"), "/'[0-9]/"),
    *((f" @{mark}@ ", mark) for mark in "-,."),
    *((f" {mark} ", f"{mark} ") for mark in ":;.!?,"),
    *(_without_inner_space(*pair) for pair in ("()", "[]", "{}", '""', "''")),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" \N{DEGREE SIGN} ", "\N{DEGREE SIGN}"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


def wikitext(text: str) -> str:
    """Return WikiText, raw or processed, spaced for the most part as its authors wrote it."""
    for found, instead in WIKITEXT:
        text = text.replace(found, instead) if isinstance(found, str) else found.sub(instead, text)
    return text


# Name in a recipe -> function on a document.
DETOKENISERS: dict[str, Callable[[str], str]] = {"none": str, "gpt2_wikitext": wikitext}
