"""Compare the text that is extracted with what MediaWiki's own parser tests show: `python benchmarks/parser_cases.py FILE ...`.

The files are `tests/parser/*.txt` of MediaWiki or Parsoid (GPL-2.0-or-later), read from a local copy; they are no part of the
project. A case has a title, wikitext, and the HTML that MediaWiki makes of it. It is equal if the words of our text are those
that a browser shows of the HTML; "up to white space" ignores all spaces. Numbers that MediaWiki gives to links without a label,
the table of contents and its edit links are no text of the page.

`--list` prints the titles of the cases that are prose by the rules below, which look at the case alone and never at our text;
`parser_cases.txt` holds that list for the copy named in its first line.
"""

import argparse
import collections
import html
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relm.corpus.wikipedia.markup import extract_plain_text

PROSE = Path(__file__).with_suffix(".txt")

_PREFERRED = ("html/php+tidy", "html+tidy", "html/php", "html", "html/*", "html/parsoid")
# What makes a case none of prose: other outputs than a page, other wikis, tables, pictures, code, transclusion, extensions.
_OTHER_OPTIONS = re.compile(
    r"\b(pst|msg|comment|show\w+|disabled|language|variant|subpage|title|wg\w+|cat|ill|section|replace|preload|extlinks|styletag)\b",
    re.IGNORECASE,
)
_OTHER_TITLE = re.compile(
    r"sanitizer|\bcss\b|fuzz|crash|xss|langconvert|redirect|tidiers|safety|aside tag|serializ|wts of", re.IGNORECASE
)
_OTHER_SOURCE = re.compile(
    r"\{\||<\s*/?\s*(table|tr|td|th|caption|gallery|pre|ref|references|poem|math|tag|aside|html|style|section|translate|tvar|languages|"
    r"indicator|embed|statictag|rawhtml|timeline|source|syntaxhighlight|hiero|imagemap|score|graph|template\w*|include\w*|noinclude|"
    r"onlyinclude|pwraptest|sealtag|divtag|spantag|metatag|style-tag|ext\w*)\b"
    r"|\[\[\s*:?\s*(file|image|media|category)\s*:|\{\{(?!\s*(formatnum|lc|uc|lcfirst|ucfirst|plural|#if)\s*:|[=!]\}\})|-\{|__\w+__",
    re.IGNORECASE,
)
_OTHER_HTML = re.compile(r"<(table|img|video|audio|figure|pre)\b|class=\"(error|thumb)", re.IGNORECASE)
_HIDDEN_HTML = re.compile(
    r"<!--.*?-->|<(?:style|script)\b.*?</(?:style|script)>|<span class=\"mw-editsection\">.*?\]</span></span>"
    r"|<div id=\"toc\".*?</ul>\s*</div>|<a\b[^>]*class=\"[^\"]*autonumber[^\"]*\"[^>]*>.*?</a>",
    re.DOTALL,
)
_BLOCK = re.compile(r"</?(?:p|div|li|ul|ol|dl|dd|dt|h[1-6]|br|hr|blockquote|center|pre)\b[^>]*>", re.IGNORECASE)
_ANY_TAG = re.compile(r"</?[a-zA-Z](?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")

_FEATURES = {
    "quotes": r"''", "links": r"\[\[", "external links": r"\[(?:https?|ftp|mailto|//|news|irc)|https?://",
    "lists": r"(?m)^[*#:;]", "headings": r"(?m)^=.*=\s*$", "references to characters": r"&#?\w+;", "comments": r"<!--",
    "nowiki": r"<nowiki", "HTML": r"</?(?!nowiki)[a-zA-Z]", "parser functions": r"\{\{", "indented lines": r"(?m)^ ",
    "bars and rulers": r"\||---",
}  # fmt: skip


class Case(NamedTuple):
    """One test of MediaWiki's parser."""

    title: str
    options: str
    wikitext: str
    html: str


def read_cases(path: Path) -> Iterator[Case]:
    """Yield the cases of a file that have both wikitext and HTML."""
    parts: dict[str, str] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not (marker := re.match(r"!! *(\S+)", line)):
            if name:
                parts[name] += line + "\n"
            continue
        name = marker[1].lower()
        if name == "end":
            shown = next((parts[kind] for kind in _PREFERRED if kind in parts), None)
            source = parts.get("wikitext", parts.get("input"))
            if shown is not None and source is not None and "test" in parts:
                yield Case(" ".join(parts["test"].split()), parts.get("options", ""), source[:-1], shown)
            parts, name = {}, ""
            continue
        if name in ("test", "article"):
            parts = {}
        parts[name] = ""


def is_prose(case: Case) -> bool:
    """Return whether a case is one of prose, by its title, options, source and HTML."""
    return not (
        _OTHER_TITLE.search(case.title)
        or _OTHER_OPTIONS.search(case.options)
        or ("html2wt" in case.options and "wt2html" not in case.options)  # the HTML is the input
        or _OTHER_SOURCE.search(case.wikitext)
        or _OTHER_HTML.search(case.html)
        or not re.search(r"\w", read_visible(case.html))
    )


def read_visible(shown: str) -> str:
    """Return the text that a browser shows of HTML."""
    shown = _HIDDEN_HTML.sub("", shown)
    shown = _ANY_TAG.sub("", _BLOCK.sub("\n", shown))
    return fold(html.unescape(shown))


def fill_sections(text: str) -> str:
    """Return wikitext or HTML with a word after each heading: one of a section without text is left out by design."""
    return re.sub(
        r"(</h[1-6]>|^=(?:<nowiki>[^<]*</nowiki>|[^\n])*=(?:[ \t]|<!--(?:[^-]|-(?!->))*-->)*$)",
        r"\1\nword\n",
        text,
        flags=re.MULTILINE,
    )


def fold(text: str) -> str:
    """Return a text with superscripts as plain digits, without marks that show nothing and brackets of links that are none."""
    return re.sub(
        r"\[\[|\]\]|\{\{|\}\}|[\u200b-\u200f\u2060\ufeff\u00ad]", "", unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    )


def print_share(label: str, found: list[tuple[bool, bool]]) -> None:
    """Print how many cases are equal; nothing if there are none."""
    if not found:
        return
    words, letters = (sum(column) for column in zip(*found, strict=True))
    print(f"| {label} | {len(found):,} | {letters / len(found):.1%} | {words / len(found):.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare extracted text with MediaWiki's parser tests.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the titles of the cases of prose")
    parser.add_argument("--differences", type=int, default=0, metavar="N", help="also print so many cases of prose that differ")
    arguments = parser.parse_args()
    cases = [case for path in arguments.files for case in read_cases(path)]
    if arguments.list:
        print("\n".join(dict.fromkeys(case.title for case in cases if is_prose(case))))
        return
    prose = {line for line in PROSE.read_text(encoding="utf-8").splitlines() if not line.startswith("# ")}
    every, chosen = list[tuple[bool, bool]](), list[tuple[bool, bool]]()
    by_feature = collections.defaultdict[str, list[tuple[bool, bool]]](list)
    for case in cases:
        ours, theirs = fold(extract_plain_text(fill_sections(case.wikitext))), read_visible(fill_sections(case.html))
        equal = (ours.split() == theirs.split(), "".join(ours.split()) == "".join(theirs.split()))
        every.append(equal)
        if case.title not in prose:
            continue
        chosen.append(equal)
        for feature, pattern in _FEATURES.items():
            if re.search(pattern, case.wikitext):
                by_feature[feature].append(equal)
        if not equal[1] and arguments.differences > 0:
            arguments.differences -= 1
            print(f"--- {case.title}\n{case.wikitext}\n    MediaWiki: {theirs.split()}\n    relm:      {ours.split()}")
    print("| cases | number | equal up to white space | equal in words |\n|---|---|---|---|")
    print_share("all", every)
    print_share("prose", chosen)
    for feature, found in sorted(by_feature.items(), key=lambda item: -len(item[1])):
        print_share(f"prose with {feature}", found)


if __name__ == "__main__":
    main()
