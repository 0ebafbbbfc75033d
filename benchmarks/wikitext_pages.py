"""Compare extracted text with articles as Parsoid renders them: `python benchmarks/wikitext_pages.py PAGE.html ...`.

Parsoid notes in its HTML the wikitext of each template, so the wikitext of the paragraphs is written from the HTML. What a
browser shows of them is the judge. Printed are the words and numbers of paragraphs that are kept, lost and added, for relm,
mwparserfromhell and WikiExtractor 3.1.0. Ignored are references, notes such as "citation needed", and the unit that {{convert}}
adds.
"""

import collections
import json
import re
import tempfile
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

from wikitext import choose_cleaners, fold, make_parser, numbers_of, texts_of

from relm.corpus.wikipedia.names import names_of

VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))
MARKUP = {
    "b": ("'''", "'''"),
    "i": ("''", "''"),
    "p": ("\n\n", "\n\n"),
    **{tag: (f"<{tag}>", f"</{tag}>") for tag in ("sub", "sup")},
}


class Paragraphs(HTMLParser):
    """Collects the wikitext and the visible text of an article's paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.wikitext, self.visible = list[str](), list[str]()
        # Open elements: the tag, what ends it in wikitext, whether text in it is written, is seen, is what a template shows.
        self.open: list[tuple[str, str, bool, bool, bool]] = []
        self.template = ""  # "about" of the last one: elements after it with the same belong to what it shows
        self.converted = 0  # where the text of a {{convert}} begins that has not ended

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        of = {key: value or "" for key, value in attributes}
        kind, about = of.get("typeof", ""), of.get("about", "")
        _, _, written, seen, belongs = self.open[-1] if self.open else ("", "", False, False, False)
        if tag == "p" and not {"table", "figure", "figure-inline"}.intersection(each[0] for each in self.open):
            written = seen = True
        if "mw:Transclusion" in kind and written:
            parts = [write_part(part) for part in json.loads(of["data-mw"])["parts"]]
            self.wikitext += parts
            self.end_convert()
            self.template = about
            self.converted = len(self.visible) * parts[0].lower().startswith(("{{convert|", "{{cvt|"))
        belongs = belongs or about == self.template != ""
        classes = {*of.get("class", "").split(), of.get("id", "")}
        hidden = classes & {"noprint", "reference", "coordinates"} or "display:none" in of.get("style", "").replace(" ", "")
        seen = seen and not hidden and "mw:Extension" not in kind and tag != "style"
        written = written and not belongs and "mw:Extension" not in kind and tag != "style"
        begin, end = MARKUP.get(tag, ("", ""))
        if tag == "a":
            address = of.get("href", "")
            is_link = "mw:WikiLink" in of.get("rel", "")
            begin, end = (f"[[:{address.removeprefix('./')}|", "]]") if is_link else (f"[{address} ", "]")
        self.wikitext.append(begin * written)
        self.visible.append(" " * (tag in ("p", "br")))
        if tag not in VOID:
            self.open.append((tag, end, written, bool(seen), belongs))

    def handle_endtag(self, tag: str) -> None:
        while any(tag == each[0] for each in self.open):
            found, end, written, *_ = self.open.pop()
            self.wikitext.append(end * written)
            if found == tag:
                break

    def handle_data(self, data: str) -> None:
        if self.open:
            _, _, written, seen, belongs = self.open[-1]
            if not belongs:
                self.end_convert()
            self.wikitext.append(data * written)
            self.visible.append(data * seen)

    def end_convert(self) -> None:
        """Remove the unit that a {{convert}} added, which stands in parentheses."""
        if self.converted:
            self.visible[self.converted :] = [re.split(r"\s\(", "".join(self.visible[self.converted :]))[0]]
        self.converted = 0


def write_part(part: Any) -> str:
    """Return the wikitext of a part of a transclusion, which is text or a template."""
    if isinstance(part, str):
        return part
    template = part["template"]
    arguments = [value["wt"] if key.isdigit() else f"{key}={value['wt']}" for key, value in template["params"].items()]
    return "{{" + "|".join([template["target"]["wt"], *arguments]) + "}}"


def compare(seen: list[str], made: list[str]) -> str:
    """Return the share of words that are kept, and how many are lost and added."""
    kept = (collections.Counter(seen) & collections.Counter(made)).total()
    return f"{kept / max(len(seen), 1):.2%} | {len(seen) - kept:,} | {len(made) - kept:,}"


def main() -> None:
    arguments = make_parser("Compare extracted text with rendered articles.").parse_args()
    print("| article | program | words kept | lost | added | numbers kept | lost | added |\n" + "|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        cleaners = choose_cleaners(arguments, folder)
        for path in arguments.files:
            page = Paragraphs()
            page.feed(path.read_text(encoding="utf-8"))
            seen = "".join(page.visible)
            for cleaner, python in cleaners.items():
                (made,) = texts_of(cleaner, python, ["".join(page.wikitext)], names_of("en"))
                counts = compare(fold(seen).split(), fold(made).split()), compare(numbers_of(seen), numbers_of(made))
                print(f"| {path.stem} | {cleaner} | {' | '.join(counts)} |")


if __name__ == "__main__":
    main()
