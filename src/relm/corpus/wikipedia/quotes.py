"""Remove the quotes that make wikitext italic and bold."""

import re

from relm.corpus import compiled

_QUOTES = re.compile("''+")


def remove_quotes(text: str) -> str:
    """Remove the quotes of italic and bold text, line by line, and keep apostrophes among them.

    The rules are MediaWiki's, https://www.mediawiki.org/wiki/Markup_spec: of four quotes the first is an apostrophe, of more
    than five all except five are, and ``l'''Iliade''`` is an apostrophe before an italic title.
    """
    if "''" not in text:
        return text
    if compiled.remove_quotes:
        return compiled.remove_quotes(text, _remove_quotes_of_line)
    return "\n".join([_remove_quotes_of_line(line) if "''" in line else line for line in text.split("\n")])


def _remove_quotes_of_line(line: str) -> str:
    if "''''" not in line:
        without_bold = line.replace("'''", "")
        plain = without_bold.replace("''", "")
        bold, italic = (len(line) - len(without_bold)) // 3, (len(without_bold) - len(plain)) // 2
        if not (bold & 1 and italic & 1):
            return plain
    texts, runs = _QUOTES.split(line), [len(run) for run in _QUOTES.findall(line)]
    for place, run in enumerate(runs):
        literal = 1 if run == 4 else max(run - 5, 0)
        texts[place] += "'" * literal
        runs[place] = run - literal
    bold, italic = (sum(run in (marked, 5) for run in runs) for marked in (3, 2))
    if bold & 1 and italic & 1 and 3 in runs:
        texts[_choose_apostrophe(texts, runs)] += "'"
    return "".join(texts)


def _choose_apostrophe(texts: list[str], runs: list[int]) -> int:
    """Return which run of three is an apostrophe and italic, where bold and italic are both left open at the line's end."""
    after_space = after_word = -1
    for place, run in enumerate(runs):
        if run != 3:
            continue
        before = texts[place]
        if before.endswith(" "):
            after_space = place if after_space < 0 else after_space
        elif before[-2:-1] == " ":
            return place
        elif after_word < 0:
            after_word = place
    return after_word if after_word >= 0 else after_space
