"""Convert wikitext, the markup of Wikipedia, to plain text: one paragraph, heading or list item a line.

It keeps the text of the article: prose, link labels, list items, headings of sections with content, formulas as TeX, and what
templates within sentences show. It drops other templates, tables, images with their captions, references, galleries, code
blocks, categories, and sections that only point elsewhere. The names of all these in the wiki's language are in `names.py`, the
templates in `templates.py`.

Regular expressions do the work. They read each character a bounded number of times, also with unbalanced brackets: nesting is
resolved from the inside, in at most `DEEPEST` passes.
The markup is described at https://www.mediawiki.org/wiki/Help:Formatting and https://www.mediawiki.org/wiki/Markup_spec.
"""

import functools
import html
import re
from collections.abc import Callable, MutableMapping
from html.entities import html5

from relm.corpus.wikipedia.lines import INDENT, collect_lines
from relm.corpus.wikipedia.links import replace_links
from relm.corpus.wikipedia.names import WikiNames, names_of
from relm.corpus.wikipedia.quotes import remove_quotes
from relm.corpus.wikipedia.spaces import tidy_spaces
from relm.corpus.wikipedia.templates import STAND_IN, expand_template, reveal_markup, templates_of

DEEPEST = 12

# --- elements whose content is not wikitext --------------------------------------------------------------------------------

_VERBATIM = ("nowiki", "math", "chem", "ce")
_GONE = (
    "ref|references|gallery|timeline|imagemap|hiero|score|graph|mapframe|maplink|templatedata|templatestyles|inputbox|"
    "indicator|categorytree|includeonly|pre|source|syntaxhighlight"
)
# The rest of a tag: a value in quotes may contain ">"; where its quotes are not closed, the first ">" ends the tag.
_ATTRIBUTES = r"""(?:(?>(?:[^<>=]|=(?!\s*["'])|=\s*(?:"[^"<]*"|'[^'<]*'))*)>|[^<>]*>)"""
_ELEMENT = re.compile(rf"<!--|<({'|'.join(_VERBATIM)}|{_GONE})(?=[\s/>]){_ATTRIBUTES}", re.IGNORECASE)
_LINE_BEGIN = re.compile(r"(?:^|\n)[ \t]*\Z")
_LINE_END = re.compile(r"[ \t]{0,20}\n")
_EMPTY_LINES = re.compile(r" *\n[ \n]*")
_KEPT = re.compile("\x02([0-9]+)\x03")


def _remove_elements(text: str, kept: list[str]) -> str:
    """Remove comments and elements; a verbatim one leaves a mark, and its content is appended to ``kept``."""
    pieces: list[str] = []
    position = 0
    unclosed: set[str] = set()
    begins_line = False  # whether nothing but comments stands before in the line
    for opening in _ELEMENT.finditer(text):
        name = (opening[1] or "!").lower()
        if opening.start() < position or name in unclosed:
            continue
        end = inner = opening.end()
        if not opening[0].endswith("/>"):
            inner, end = _find_closing(text, name, opening.end())
            if inner < 0:
                # Searched to the end once; another opening tag of this name would search in vain.
                unclosed.add(name)
                continue
        between = text[position : opening.start()]
        pieces.append(between)
        if name in _VERBATIM:  # even <nowiki/> separates characters that are markup together
            pieces.append(f"\x02{len(kept)}\x03")
            kept.append(text[opening.end() : inner])
        tail = between[-20:]
        begins_line = name == "!" and (_LINE_BEGIN.search(tail) is not None if tail.strip() or "\n" in tail else begins_line)
        if begins_line and (line_end := _LINE_END.match(text, end)):
            end = line_end.end()  # a line that held only comments does not end a paragraph
            while len(pieces) > 1 and not pieces[-1].strip(" \t"):
                pieces.pop()
            pieces[-1] = pieces[-1].rstrip(" \t")
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _find_closing(text: str, name: str, position: int) -> tuple[int, int]:
    """Return start and end of an element's closing tag, or (-1, -1); an unclosed comment lasts to the end."""
    if name == "!":
        start = text.find("-->", position)
        return (start, start + 3) if start >= 0 else (len(text), len(text))
    closing = _CLOSING[name].search(text, position)
    return closing.span() if closing else (-1, -1)


_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in (*_VERBATIM, *_GONE.split("|"))}

# --- nested markup, from the inside ----------------------------------------------------------------------------------------

# An innermost pair: anything between the braces except such braces. The unrolled loops never try a character twice.
_TEMPLATE = re.compile(
    r"\{\{(?:"
    r"(?<!\{\{\{)\{(?!\{)[^{}]*\}\}\}"  # a template's parameter, which an article should not have
    r"|(?!\{)([^{}]*(?:(?:\{(?!\{)|\}(?!\}))[^{}]*)*)\}\})"
)
_TABLE = re.compile(r"\{\|[^{|]*(?:(?:\{(?!\|)|\|(?!\}))[^{|]*)*\|\}")
_HTML_TABLE = re.compile(r"<table\b[^<]*(?:<(?!/?table\b)[^<]*)*</table\s*>", re.IGNORECASE)


def _replace_nested(begin: str, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(DEEPEST):
        if begin not in text:  # a character is found much faster than a pattern
            break
        text, found = pattern.subn(replacement, text)
        if not found:
            break
    return text


# --- text in several scripts -----------------------------------------------------------------------------------------------

# An innermost -{...}-; "-{{template}}" has a template after its minus.
_VARIANTS = re.compile(r"-\{(?!\{)([^{}-]*(?:(?:-(?!\{(?!\{))|\}(?!-)|(?<!-)\{|(?<=-)\{(?=\{))[^{}-]*)*)\}-")
_FLAGS = re.compile(r"([A-Za-z+; -]*)\|")  # letters, or codes of languages
_SHOWING_NOTHING = frozenset("HTDN- ;")


def _choose_variant(body: str, codes: re.Pattern[str]) -> str:
    """Return what -{zh-hans:...; zh-hant:...}- shows: the first of the texts, or nothing where a rule is only declared.

    The markup is described at https://www.mediawiki.org/wiki/Writing_systems/Syntax.
    """
    flags = _FLAGS.match(body)
    if flags and flags[1].strip() and _SHOWING_NOTHING.issuperset(flags[1]):
        return ""
    texts = codes.split(body[flags.end() :] if flags else body)
    return texts[1].strip(" \n;") if len(texts) > 1 else texts[0]


# --- terms and their definitions -------------------------------------------------------------------------------------------

# "; term : definition" is two lines; a colon in a link, a tag or an address does not count.
_TERM = re.compile(
    r"\n[*#:]*;[*#:;]*(?:[^\n:\[<hnfim]|\[\[[^\n\]]{0,300}\]\]|\[[^\n\]]{0,300}\]|<[^\n<>]*>|(?:https?|news|ftp|irc|mailto):[^\s:]|[\[<hnfim])*+"
    r"(?=:)",
    re.IGNORECASE,
)

# --- markup within a line --------------------------------------------------------------------------------------------------

# The label ends at the first closing bracket; with another link inside, this is not a link.
_SCHEME = r"(?:(?:https?:|ftps?:|irc:|gopher:)?//|news:|mailto:)"
_EXTERNAL_LINK = re.compile(
    rf"""\[{_SCHEME}(?:\[[0-9a-f:.]{{2,45}}\])?[^\s\[\]<>"{INDENT}]*+((?:[^\[\]\n<]|<(?:[^<>\n]*>)?|\[(?!{_SCHEME}))*+)\]""",
    re.IGNORECASE,
)
_POEM = re.compile(rf"<poem\b{_ATTRIBUTES}([^<]*(?:<(?!/?poem\b)[^<]*)*)</poem\s*>", re.IGNORECASE)
_SUPERSCRIPT = re.compile(r"<sup>\s*([+−–-]?\d{1,6}|n)\s*</sup>", re.IGNORECASE)
_SUPERSCRIPT_SIGNS = str.maketrans("0123456789+−–-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻ⁿ")
_BREAKING_TAG = re.compile(
    r"</?(?:br|p|div|center|blockquote|li|ul|ol|dl|dd|dt|hr|tr|table|caption|h[1-6])(?=[\s/>])" + _ATTRIBUTES,
    re.IGNORECASE,
)
_TAG = re.compile(
    r"</?(?:a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|nobr|noinclude|nowiki|onlyinclude|q|ref|references|rb|rp|rt|rtc|"
    r"ruby|s|samp|section|small|span|strike|strong|sub|sup|td|th|tbody|thead|time|tt|u|var|wbr|math|gallery|poem|pre|source|includeonly)"
    rf"(?=[\s/>]){_ATTRIBUTES}",
    re.IGNORECASE,
)
_MAGIC_WORD = re.compile(r"__[A-Z]{3,20}__")
_ENTITY = re.compile(r"&(?:#[0-9]{1,10}|#[xX][0-9a-fA-F]{1,10}|[a-zA-Z][a-zA-Z0-9]{1,30});")


def _remove_inline_markup(text: str) -> str:
    text = _EXTERNAL_LINK.sub(lambda match: match[1].lstrip(), text)
    if "<" in text:
        text = _SUPERSCRIPT.sub(lambda match: match[1].translate(_SUPERSCRIPT_SIGNS), text)
        text = _BREAKING_TAG.sub("\n\n", text)
        text = _TAG.sub("", text)
    return _MAGIC_WORD.sub("", text) if "_" in text and "__" in text else text


# --- remaining characters --------------------------------------------------------------------------------------------------


def _decode(text: str) -> str:
    """Replace character references by characters, once: &amp;lt; is how an author shows &lt;."""
    return _ENTITY.sub(_decode_character, text)


def _decode_character(match: re.Match[str]) -> str:
    reference = match[0]
    # html.unescape would also find &not in &notes;
    return html.unescape(reference) if reference[1] == "#" else html5.get(reference[1:], reference)


def extract_plain_text(wikitext: str, names: WikiNames | None = None, unknown: MutableMapping[str, int] | None = None) -> str:
    """Return the readable text of an article: lines separated by one newline, none empty, no newline at the end.

    Without ``names`` the wiki is the English Wikipedia. ``unknown`` counts templates within sentences that no table has.
    """
    names = names or names_of("en")
    kept: list[str] = []
    text = wikitext
    for mark in f"\x02\x03{STAND_IN}{INDENT}":
        if mark in text:  # much faster than replacing
            text = text.replace(mark, "")
    text = f"\n{text}"
    text = _POEM.sub(lambda match: match[1].replace("\n", "<br>\n"), text)
    text = _remove_elements(text, kept)
    text = remove_quotes(text)  # before text between them vanishes
    if codes := names.variants:
        text = _replace_nested("{", _VARIANTS, lambda match: _choose_variant(match[1], codes), text)
    text = _TERM.sub("\\g<0>\n", text)
    text = replace_links(text, names.hidden)
    known = templates_of(names.language)
    expand = functools.partial(expand_template, templates=known, unknown={} if unknown is None else unknown)
    text = _replace_nested("{", _TEMPLATE, expand, text)
    text = _replace_nested("{", _TABLE, "\n\n", text)
    text = _replace_nested("<", _HTML_TABLE, "\n\n", text)
    text = _remove_inline_markup(text)
    if names.switches and "_" in text and "__" in text:
        text = names.switches.sub("", text)
    text = collect_lines(text, names.sections)
    for residue in ("[[", "]]", "{{", "}}"):
        if residue[0] in text:  # one character is found much faster than two
            text = text.replace(residue, "")
    text = tidy_spaces(_decode(reveal_markup(text).replace(INDENT, " ")))
    if kept:
        text = _KEPT.sub(lambda match: " ".join(_decode(kept[int(match[1])]).split()), text).strip()
        if not all(map(str.strip, kept)):
            text = _EMPTY_LINES.sub("\n", text)
    return text
