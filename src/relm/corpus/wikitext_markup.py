"""Convert wikitext, the markup of Wikipedia, to plain text: one paragraph, heading or list item a line.

Kept is the text of the article: prose, link labels, list items, headings of sections that have content, formulas as their TeX.
Dropped are most templates, tables, images with their captions, references, galleries, code blocks, categories, and sections
that only point elsewhere. The names of all these in the wiki's language are in `wiki_names.py`.

Everything is done by regular expressions that read each character a bounded number of times, also where brackets are
unbalanced: nesting is resolved from the inside, in at most `DEEPEST` passes. The output is never longer than the input.
The markup is described at https://www.mediawiki.org/wiki/Help:Formatting and https://www.mediawiki.org/wiki/Markup_spec.
"""

import html
import re
from collections.abc import Callable, Collection
from html.entities import html5

from relm.corpus.wiki_names import WikiNames, names_of
from relm.corpus.wikitext_quotes import remove_quotes
from relm.corpus.wikitext_templates import render_template, shown_in

DEEPEST = 12

# --- elements whose content is not wikitext --------------------------------------------------------------------------------

_VERBATIM = ("nowiki", "math", "chem", "ce")
_GONE = (
    "ref|references|gallery|timeline|imagemap|hiero|score|graph|mapframe|maplink|templatedata|templatestyles|inputbox|"
    "indicator|categorytree|includeonly|pre|source|syntaxhighlight"
)
_ELEMENT = re.compile(rf"<!--|<({'|'.join(_VERBATIM)}|{_GONE})(?=[\s/>])[^<>]*>", re.IGNORECASE)
_KEPT = re.compile("\x02([0-9]+)\x03")


def _remove_elements(text: str, kept: list[str]) -> str:
    """Remove comments and elements; a verbatim one leaves a mark, and its content is appended to ``kept``."""
    pieces: list[str] = []
    position = 0
    unclosed: set[str] = set()
    for opening in _ELEMENT.finditer(text):
        name = (opening[1] or "!").lower()
        if opening.start() < position or name in unclosed:
            continue
        end = inner = opening.end()
        if not opening[0].endswith("/>"):
            inner, end = _find_closing(text, name, opening.end())
            if inner < 0:
                # Searched to the end once; another opening tag of this name would search in vain again.
                unclosed.add(name)
                continue
        start = opening.start()
        pieces.append(text[position:start])
        if name in _VERBATIM and inner > opening.end():
            pieces.append(f"\x02{len(kept)}\x03")
            kept.append(text[opening.end() : inner])
        elif name == "!" and text[start - 1 : start] == "\n" and text[end : end + 1] == "\n":
            end += 1  # a line that held only a comment does not end a paragraph
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _find_closing(text: str, name: str, position: int) -> tuple[int, int]:
    """Return start and end of an element's closing tag, (-1, -1) if there is none; an unclosed comment lasts to the end."""
    if name == "!":
        start = text.find("-->", position)
        return (start, start + 3) if start >= 0 else (len(text), len(text))
    closing = _CLOSING[name].search(text, position)
    return closing.span() if closing else (-1, -1)


_CLOSING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in (*_VERBATIM, *_GONE.split("|"))}

# --- nested markup, from the inside ----------------------------------------------------------------------------------------

_LINK_START = re.compile(r"\[\[(?=\[?(?!\[))")  # of [[[ the first two, of more the two before the last
# An innermost pair: anything between the braces but such braces again. The unrolled loops never try a character twice.
_TEMPLATE = re.compile(
    r"\{\{(?:"
    r"(?<!\{\{\{)\{(?!\{)[^{}]*\}\}\}"  # a template's parameter, which an article should not have
    r"|(?!\{)([^{}]*(?:(?:\{(?!\{)|\}(?!\}))[^{}]*)*)\}\})"
)
_TABLE = re.compile(r"\{\|[^{|]*(?:(?:\{(?!\|)|\|(?!\}))[^{|]*)*\|\}")
_HTML_TABLE = re.compile(r"<table\b[^<]*(?:<(?!/?table\b)[^<]*)*</table\s*>", re.IGNORECASE)

_LANGUAGE = re.compile(r"(?!mw$|wp$)[a-z]{2,3}(?:-[a-z]+)*|simple|nds-nl|be-x-old|tokipona")
_PICTURE = re.compile(r"\.(?:jpe?g|png|gif|svg|tiff?|og[gv]|webm|midi?|djvu|pdf|bmp)\s*", re.IGNORECASE)


def _replace_nested(pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str], text: str) -> str:
    for _ in range(DEEPEST):
        text, found = pattern.subn(replacement, text)
        if not found:
            break
    return text


# Prefixes of links to Wikipedia's sister projects, https://meta.wikimedia.org/wiki/Interwiki_map.
_PROJECTS = frozenset({
    "w", "wikt", "wiktionary", "b", "wikibooks", "c", "commons", "d", "wikidata", "m", "meta", "mw", "n", "wikinews", "q",
    "wikiquote", "s", "wikisource", "species", "wikispecies", "v", "wikiversity", "voy", "wikivoyage",
})  # fmt: skip


def _replace_links(text: str, hidden: Collection[str]) -> str:
    """Replace each [[link]] by the text that it shows, those inside another first."""
    for _ in range(DEEPEST):
        outside, *pieces = _LINK_START.split(text) if "[[[" in text else text.split("[[")
        shown = [outside]
        show = shown.append
        found = False
        for piece in pieces:
            body, closing, rest = piece.partition("]]")
            if not closing:
                show("[[")
                show(piece)
                continue
            found = True
            target, bar, label = body.partition("|")
            if ":" in target or (bar and not label):
                show(_choose_link_text(target, bar, label, hidden))
            else:
                show(label or target)
            show(rest)
        if not found:
            break
        text = "".join(shown)
    return text


def _choose_link_text(target: str, bar: str, label: str, hidden: Collection[str]) -> str:
    """Return the text that a link shows: its label, its target, or nothing for images, categories and interlanguage links."""
    prefix, colon, rest = target.partition(":")
    namespace = prefix.strip()
    if colon and namespace and namespace.lower() not in _PROJECTS:
        is_picture = _PICTURE.search(rest, max(len(rest) - 6, 0))
        if namespace.lower() in hidden or _LANGUAGE.fullmatch(namespace) or is_picture:
            return ""
    if not bar:
        return _remove_prefixes(target, hidden)
    # [[Mercury (planet)|]] is short for [[Mercury (planet)|Mercury]]
    return label or (rest if colon else target).partition(" (")[0]


def _remove_prefixes(target: str, hidden: Collection[str]) -> str:
    """Return a link's target without what leads to another wiki, or by a colon in front to a category: [[:wikt:fr:mot]]."""
    for _ in range(DEEPEST):
        prefix, colon, rest = target.partition(":")
        namespace = prefix.strip()
        leads = not namespace or namespace.lower() in _PROJECTS or namespace.lower() in hidden or _LANGUAGE.fullmatch(namespace)
        if not (colon and leads and rest.strip()):
            break
        target = rest
    return target


# --- text in several scripts -----------------------------------------------------------------------------------------------

# An innermost -{...}-; after the minus of "-{{template}}" there is none.
_VARIANTS = re.compile(r"-\{(?!\{)([^{}-]*(?:(?:-(?!\{(?!\{))|\}(?!-)|(?<!-)\{|\{(?=\{)|(?<=-\{)\{)[^{}-]*)*)\}-")
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


# --- markup within a line --------------------------------------------------------------------------------------------------

_EXTERNAL_LINK = re.compile(r"\[((?:https?:|ftps?:|news:|irc:|mailto:|gopher:|//)[^\[\]\n]*)\]", re.IGNORECASE)
_POEM = re.compile(r"<poem\b[^<>]*>([^<]*(?:<(?!/?poem\b)[^<]*)*)</poem\s*>", re.IGNORECASE)
_SUPERSCRIPT = re.compile(r"<sup>\s*([+−–-]?\d{1,6}|n)\s*</sup>", re.IGNORECASE)
_SUPERSCRIPT_SIGNS = str.maketrans("0123456789+−–-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻ⁿ")
_BREAKING_TAG = re.compile(
    r"</?(?:br|p|div|center|blockquote|li|ul|ol|dl|dd|dt|hr|tr|table|caption|h[1-6])\b[^<>]*>", re.IGNORECASE
)
_TAG = re.compile(
    r"</?(?:a|abbr|b|bdi|bdo|big|cite|code|del|dfn|em|font|i|ins|kbd|mark|nobr|noinclude|nowiki|onlyinclude|q|ref|references|rb|rp|rt|"
    r"ruby|s|samp|section|small|span|strike|strong|sub|sup|td|th|tbody|thead|time|tt|u|var|wbr|math|gallery|poem|pre|source|includeonly)"
    r"(?=[\s/>])[^<>]*>",
    re.IGNORECASE,
)
_MAGIC_WORD = re.compile(r"__[A-Z]{3,20}__")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")


def _remove_inline_markup(text: str) -> str:
    text = _EXTERNAL_LINK.sub(lambda match: " ".join(match[1].split(maxsplit=1)[1:]), text)
    if "<" in text:
        text = _SUPERSCRIPT.sub(lambda match: match[1].translate(_SUPERSCRIPT_SIGNS), text)
        text = _BREAKING_TAG.sub("\n\n", text)
        text = _TAG.sub("", text)
    return _MAGIC_WORD.sub("", text) if "__" in text else text


# --- lines -----------------------------------------------------------------------------------------------------------------


def _parse_heading(line: str) -> tuple[int, str] | None:
    """Return level and title of ``== Title ==``, None for other lines."""
    line = line.rstrip()
    if len(line) < 3 or line[-1] != "=":
        return None
    level = min(len(line) - len(line.lstrip("=")), len(line) - len(line.rstrip("=")), 6)
    title = line[level:-level].strip()
    return (level, title) if title else None


class _Outline:
    """Collects paragraphs; headings wait until their section turns out to have content."""

    def __init__(self, dropped: Collection[str]) -> None:
        self.dropped = dropped
        self.lines: list[str] = []
        self.waiting: list[tuple[int, str]] = []
        self.dropping = 0

    def heading(self, level: int, title: str) -> None:
        if self.dropping and level > self.dropping:
            return
        while self.waiting and self.waiting[-1][0] >= level:
            self.waiting.pop()
        self.dropping = level if title.rstrip(":").lower() in self.dropped else 0
        if not self.dropping:
            self.waiting.append((level, title))

    def text(self, line: str) -> None:
        if self.dropping or not line:
            return
        if self.waiting:
            self.lines.extend([title for _, title in self.waiting])
            self.waiting.clear()
        self.lines.append(line)


_WORD = re.compile(r"[^\W_]")


def _is_text(line: str) -> bool:
    """Return whether a line has text; rulers and indented drawings and tables in typewriter style have none."""
    if line[:1] == " " and ("   " in line.strip() or "|" in line or "___" in line or "---" in line):
        return False
    return bool(_WORD.search(line))


def _is_row(line: str) -> bool:
    """Return whether a line belongs to a table or template that was never closed."""
    return line.startswith(("|", "{|", "{{")) or (line[0] == "!" and "|" in line)


def _collect_paragraphs(text: str, dropped: Collection[str]) -> list[str]:
    """Return one paragraph, heading or list item an element; the lines of a paragraph are concatenated."""
    outline = _Outline(dropped)
    paragraph: list[str] = []
    for line in text.split("\n"):
        first = line[:1]
        if first and first not in " \t*#:;|={-!":
            paragraph.append(line)
            continue
        if paragraph:
            outline.text(" ".join(paragraph))
            paragraph.clear()
        if not first:
            continue
        if first == "=" and (heading := _parse_heading(line)):
            outline.heading(*heading)
        elif not outline.dropping and not _is_row(line) and _is_text(line):
            outline.text(line.lstrip("*#:; \t"))
    outline.text(" ".join(paragraph))
    return outline.lines


# --- remaining characters --------------------------------------------------------------------------------------------------

# A pattern that begins with a literal is searched for several times as fast as one that begins with a choice or looks back.
_EMPTY_PARENTHESES = re.compile(r"\((?<![^ \n]\()[ ,;:/|–—-]*\)")
_OPENED = re.compile(r"\((?:[ ]+|[,;:][ ])[ ,;:]*")
_BEFORE_PUNCTUATION = re.compile(r" (?=[,.](?:[ \n]|\Z))(?<=[^ \n] )")
_BEFORE_COMMA = re.compile(r" ,(?=[ \n]|\Z)(?<=[^ \n] ,)")
_BEFORE_POINT = re.compile(r" \.(?=[ \n]|\Z)(?<=[^ \n] \.)")


def _decode(text: str) -> str:
    """Replace character references by characters, once: &amp;lt; is how an author shows &lt;."""
    return _ENTITY.sub(_decode_character, text)


def _decode_character(match: re.Match[str]) -> str:
    reference = match[0]
    # html.unescape alone would find &not in &notes;
    return html.unescape(reference) if reference[1] == "#" else html5.get(reference[1:], reference)


def _tidy(text: str) -> str:
    """Leave one space between words, none where an omitted template stood in parentheses, and no empty line."""
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


def extract_plain_text(wikitext: str, names: WikiNames | None = None) -> str:
    """Return the readable text of an article: lines separated by one newline, none empty, no newline at the end.

    Args:
        wikitext: an article's source, XML entities already decoded.
        names: the names that decide what is text in this wiki; None: those of the English Wikipedia.
    """
    names = names or names_of("en")
    kept: list[str] = []
    text = wikitext.replace("\x02", "").replace("\x03", "")
    text = _POEM.sub(lambda match: match[1].replace("\n", "<br>\n"), text)
    text = _remove_elements(text, kept)
    text = remove_quotes(text)  # before the text between them may vanish
    if (codes := names.variants) and "-{" in text:
        text = _replace_nested(_VARIANTS, lambda match: _choose_variant(match[1], codes), text)
    text = _replace_links(text, names.hidden)
    known = shown_in(names.language)
    text = _replace_nested(_TEMPLATE, lambda match: render_template(match[1] or "", known), text)
    text = _replace_nested(_TABLE, "\n\n", text)
    text = _replace_nested(_HTML_TABLE, "\n\n", text)
    text = _remove_inline_markup(text)
    if names.switches and "__" in text:
        text = names.switches.sub("", text)
    text = "\n".join(_collect_paragraphs(text, names.sections))
    for residue in ("[[", "]]", "{{", "}}"):
        text = text.replace(residue, "")
    text = _tidy(_decode(text))
    return _KEPT.sub(lambda match: " ".join(_decode(kept[int(match[1])]).split()), text).strip()
