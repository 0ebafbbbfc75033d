"""Judge the text that is extracted from wikitext, and that of two other programs: `python benchmarks/wikitext.py FILE ...`.

- `*.txt`, parser tests of MediaWiki or Parsoid (GPL-2.0-or-later): cases of wikitext and HTML, equal if the words are those
  that a browser shows. `wikitext_cases.txt` lists those of prose. Ignored are the numbers of links without a label, the table
  of contents, edit links, and double brackets that are not a link. Each heading gets a word under it in both texts, because a
  section without text loses its heading.
- Dumps: residues (brackets, braces, tags), the numbers kept in paragraphs, outside notes, formulas, code and templates, and for
  relm the share of templates within sentences that are in its table, and the most frequent other ones.

The files are local copies and not part of the project. mwparserfromhell and WikiExtractor 3.1.0 (AGPL-3.0), which expands no
templates here, are installed from PyPI into a temporary environment, or run by the Python that `--peers` names.
"""

import argparse
import collections
import html
import json
import re
import subprocess
import sys
import tempfile
import unicodedata
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from extraction import read_articles

from relm.corpus.wikipedia import markup, templates
from relm.corpus.wikipedia.names import WikiNames, names_of

PROSE = Path(__file__).with_name("wikitext_cases.txt")
OURS = "relm"
PEERS = {
    "mwparserfromhell==0.7.2": "import mwparserfromhell as m\ndef clean(w): return str(m.parse(w).strip_code())",
    "wikiextractor==3.1.0": "from wikiextractor.extract import Extractor\ndef clean(w): return '\\n'.join("
    "Extractor('1', '1', 'x', 'T', [w]).clean_text(w, expand_templates=False, html_safe=False))",
}
LOOP = "\nimport json, sys; print(json.dumps([clean(w) for w in json.load(sys.stdin)]))"

_KINDS = ("html/php+tidy", "html+tidy", "html/php", "html", "html/*", "html/parsoid")
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
_RESIDUE = re.compile(r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|</?[a-zA-Z][^<>\n]{0,200}>")
_RAISED = re.compile(r"(?<=[^\W⁰¹²³⁴-⁹])(?=[⁰¹²³⁴-⁹])")
_VERBATIM = re.compile(r"<(math|nowiki|source|syntaxhighlight|code|pre)\b.*?</\1\s*>", re.DOTALL)
_NO_PROSE = re.compile(  # notes, tables, templates, pictures, addresses and targets of links
    r"<!--.*?-->|<ref[^<>]*/>|<(ref|gallery|timeline|imagemap)\b.*?</\1>|\{\|.*?\n\|\}|<[^<>]*>|&#?\w+;"
    r"|\{\{(?:[^{}]|\{(?!\{)|\}(?!\}))*\}\}|\[\[[^\[\]|:]+:(?:[^\[\]]|\[[^\[\]]*\])*\]\]|\[\[[^\[\]|]*\||\[(?:https?:)?//\S+",
    re.DOTALL,
)


def fold(text: str) -> str:
    """Return a text with plain digits, and without characters that show nothing and double brackets."""
    text = unicodedata.normalize("NFKC", text).replace("\u2212", "-")
    return re.sub(r"\[\[|\]\]|\{\{|\}\}|[\u200b-\u200f\u2060\ufeff\u00ad]", "", text)


def numbers_of(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,]\d+)*", fold(_RAISED.sub(" ", text)))


def texts_of(cleaner: str, python: str, wikitexts: Sequence[str], names: WikiNames) -> list[str]:
    """Return what a program makes of wikitexts."""
    if cleaner == OURS:
        return [markup.extract_plain_text(wikitext, names) for wikitext in wikitexts]
    done = subprocess.run([python, "-c", PEERS[cleaner] + LOOP], input=json.dumps(wikitexts), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{cleaner} failed:\n{done.stderr[-3000:]}")
    texts: list[str] = json.loads(done.stdout)
    return texts


# --- MediaWiki's parser tests ----------------------------------------------------------------------------------------------


def read_cases(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield title, wikitext and HTML of each case that has both."""
    for case in re.split(r"(?m)^!! *end\b", path.read_text(encoding="utf-8")):
        parts = dict(reversed(re.findall(r"(?ms)^!! *(\S+)[^\n]*\n(.*?)(?=^!!|\Z)", case.rpartition("!! article")[2])))
        shown = next((parts[kind] for kind in _KINDS if kind in parts), None)
        source = parts.get("wikitext", parts.get("input"))
        if shown is not None and source is not None and "test" in parts:
            yield " ".join(parts["test"].split()), fill_sections(source[:-1]), fill_sections(shown)


def fill_sections(text: str) -> str:
    heading = r"(</h[1-6]>|^=(?:<nowiki>[^<]*</nowiki>|[^\n])*=(?:[ \t]|<!--(?:[^-]|-(?!->))*-->)*$)"
    return re.sub(heading, r"\1\nword\n", text, flags=re.MULTILINE)


def judge_cases(path: Path, cleaners: Mapping[str, str], differences: int) -> None:
    prose = set(PROSE.read_text(encoding="utf-8").splitlines())
    cases = list(read_cases(path))
    print("| program | cases | number | equal up to white space | equal in words |\n|---|---|---|---|---|")
    for cleaner, python in cleaners.items():
        texts = texts_of(cleaner, python, [source for _, source, _ in cases], names_of("en"))
        found = collections.defaultdict[str, list[tuple[bool, bool]]](list)
        for (title, source, shown), text in zip(cases, texts, strict=True):
            ours = fold(text).split()
            theirs = fold(html.unescape(_ANY_TAG.sub("", _BLOCK.sub("\n", _HIDDEN_HTML.sub("", shown))))).split()
            equal = ("".join(ours) == "".join(theirs), ours == theirs)
            found["all"].append(equal)
            kinds = [f"prose with {name}" for name, pattern in _FEATURES.items() if re.search(pattern, source)]
            for kind in ["prose", *(kinds if cleaner == OURS else [])] * (title in prose):
                found[kind].append(equal)
            if not equal[0] and title in prose and cleaner == OURS and (differences := differences - 1) >= 0:
                print(f"--- {title}\n{source}\n    MediaWiki: {theirs}\n    relm:      {ours}")
        for kind, rows in sorted(found.items(), key=lambda item: -len(item[1])):
            letters, words = (sum(column) / len(rows) for column in zip(*rows, strict=True))
            print(f"| {cleaner} | {kind} | {len(rows):,} | {letters:.1%} | {words:.1%} |")


# --- dumps -----------------------------------------------------------------------------------------------------------------


def numbers_of_prose(wikitext: str, names: WikiNames) -> collections.Counter[str]:
    """Return the numbers in the paragraphs of an article, outside sections of links."""
    lines, dropped = list[str](), 0
    for _ in range(6):
        wikitext = _NO_PROSE.sub(" ", wikitext)
    for line in wikitext.split("\n"):
        if heading := re.fullmatch(r"(=+)(.*?)\1\s*", line):
            level = len(heading[1])
            if not dropped or level <= dropped:
                dropped = level if heading[2].strip(" ':").lower() in names.sections else 0
        elif not dropped and line[:1] not in tuple("|!{}*#:; ="):
            lines.append(line)
    return collections.Counter(numbers_of(" ".join(lines)))


def count_templates(sources: Sequence[str], names: WikiNames) -> tuple[int, collections.Counter[str]]:
    """Return how many templates stand within sentences, and the names of those that are in no table."""
    within, unknown = list[bool](), collections.Counter[str]()

    def counted(match: re.Match[str], **options: Any) -> str:
        within.append(len(match[1] or "") in range(1, templates.LONGEST + 1) and templates.is_within_sentence(match))
        return templates.expand_template(match, **options)

    with mock.patch.object(markup, "expand_template", counted):
        for source in sources:
            markup.extract_plain_text(source, names, unknown)
    return sum(within), unknown


def judge_dump(path: Path, cleaners: Mapping[str, str], language: str) -> None:
    articles = list(read_articles(path))
    sources = [_VERBATIM.sub("", page.wikitext) for page, _ in articles]
    names = names_of(language) if language else articles[0][1].names
    numbers = [numbers_of_prose(source, names) for source in sources]
    for cleaner, python in cleaners.items():
        texts = texts_of(cleaner, python, sources, names)
        words, residues = (sum(map(len, parts)) for parts in (map(str.split, texts), map(_RESIDUE.findall, texts)))
        kept = sum((of & collections.Counter(numbers_of(text))).total() for of, text in zip(numbers, texts, strict=True))
        all_numbers = sum(of.total() for of in numbers)
        row = [path.name, names.language, cleaner, f"{words:,}", f"{1e3 * residues / max(words, 1):.3f}", f"{all_numbers:,}"]
        row.append(f"{kept / max(all_numbers, 1):.2%}")
        if cleaner == OURS:
            uses, unknown = count_templates(sources, names)
            row += [f"{uses:,}", f"{1 - unknown.total() / max(uses, 1):.2%}"]
            row += [", ".join(f"{name} {count}" for name, count in unknown.most_common(10))]
        print(f"| {' | '.join(row)} |")


# --- all -------------------------------------------------------------------------------------------------------------------


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python that has both peers")
    parser.add_argument("--without-peers", action="store_true", help="judge relm alone")
    return parser


def choose_cleaners(arguments: argparse.Namespace, folder: str) -> dict[str, str]:
    """Return each program with the Python that runs it; without `--peers` they are installed into a folder."""
    python = arguments.peers
    if not arguments.without_peers and not python:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        done = subprocess.run([python, "-m", "pip", "install", "-q", *PEERS], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the peers cannot be installed: {done.stderr.strip()[-500:]}; --without-peers leaves them out")
    return dict.fromkeys([OURS] if arguments.without_peers else [OURS, *PEERS], python or "")


def main() -> None:
    parser = make_parser("Judge the text that is extracted from wikitext.")
    parser.add_argument("--language", default="", metavar="CODE", help="of the dumps, where their headers state another")
    parser.add_argument("--differences", type=int, default=0, metavar="N", help="also print N cases of prose that differ")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cleaners = choose_cleaners(arguments, folder)
        for path in (path for path in arguments.files if path.suffix == ".txt"):
            judge_cases(path, cleaners, arguments.differences)
        if dumps := [path for path in arguments.files if path.suffix != ".txt"]:
            print(
                "| dump | language | program | words | residues in 1,000 | numbers | kept | templates | known | others |\n"
                + 10 * "|---"
                + "|"
            )
        for path in dumps:
            judge_dump(path, cleaners, arguments.language)


if __name__ == "__main__":
    main()
