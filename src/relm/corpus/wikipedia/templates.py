"""Expand templates and parser functions inside sentences: "a distance of  from the coast" lacks one.

`templates.json` says how each is built from its arguments: a pattern for each name, for all wikis (`any`) and for the wikis of
one language, whose meaning of a name goes first. A pattern is text with these parts:

    {1} {text}   an argument, by position or name; {text,1}: the first of them that exists
    {*, }        all arguments without a name, with ", " between them; {-1}: the last of them
    ‹ ({2})›     a part that is left out unless it has an argument
    @convert     a function of `template_functions.py`; the text after a space is its option
    ~            at the beginning: puts a space between a digit and the text, as in 7{{frac|1|2}}

An empty pattern is a template that shows nothing within a sentence, such as a note. An unknown template shows nothing either,
but is counted within a sentence. Most templates are boxes and notices, and vanish without a trace.
"""  # plain: the parts of a pattern are a table

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from relm.corpus.wikipedia.template_functions import FUNCTIONS, TABLE, Arguments, Formats, format_number, list_arguments

# A longer template is a box, whatever its name; the bound keeps the work per level of nesting small.
LONGEST = 4000
LONGEST_NAME = 60
MOST_TOKENS = 100  # in an #expr; this also bounds nested brackets
AROUND = 60  # characters on each side of a template that decide whether it is within a sentence

# A template's text is not markup of the template around it: each of these characters becomes two until all are expanded.
STAND_IN = "\x04"
NOTHING = f"{STAND_IN}n"
"""Shows nothing, and keeps the text after it from beginning a line."""
_STAND_INS = {"|": f"{STAND_IN}b", "=": f"{STAND_IN}e", "{": f"{STAND_IN}o", "}": f"{STAND_IN}c", "": NOTHING}
_REVEALED = {pair: character for character, pair in _STAND_INS.items()}
_MARKUP = re.compile(r"[|={}]")

_NAMED = re.compile(r"\s*([\w -]{1,30})=(.*)", re.DOTALL)
_CALL = re.compile(r"\s*(#?\w+)\s*:(.*)", re.DOTALL)
_LETTER = re.compile(r"[^\W\d_]")
_OTHER_MARKUP = re.compile(r"\{\{[^{}]*\}\}|<[^<>]*>")


class Templates(NamedTuple):
    """The templates of the wikis in one language."""

    patterns: Mapping[str, str]
    """Name in lower case -> pattern."""
    families: tuple[tuple[re.Pattern[str], str], ...]
    """Patterns of templates whose whole name matches an expression."""
    formats: Formats


@functools.cache
def templates_of(language: str) -> Templates:
    """Return the templates of the wikis in a language."""
    own = TABLE["languages"].get(TABLE["same"].get(language, language), {})
    both = (TABLE["languages"]["any"], own)
    group, decimal, fewest = own.get("number", ("", ".", 1))
    date, month = own.get("dates", ("", ""))
    return Templates(
        {name: pattern for part in both for pattern, names in part.get("templates", {}).items() for name in names},
        tuple((re.compile(name), pattern) for part in both[::-1] for name, pattern in part.get("families", {}).items()),
        Formats(language, group, decimal, fewest, tuple(own.get("months", ())), date, month),
    )


def expand_template(match: re.Match[str], templates: Templates, unknown: MutableMapping[str, int]) -> str:
    """Return what a template shows, given a match whose first group is the text between its braces.

    ``unknown`` counts unknown templates within sentences by name.
    """
    body = match[1] or ""
    if not body or len(body) > LONGEST:
        return ""
    first, *rest = body.split("|")
    if ":" in first and (call := _CALL.fullmatch(first)) and (parser_function := _PARSER_FUNCTIONS.get(call[1].lower())):
        return _hide_markup(parser_function([call[2].strip(), *(each.strip() for each in rest)], templates.formats))
    name, pattern = _find_pattern(first[: 2 * LONGEST_NAME], templates.formats.language)
    if pattern is None and is_within_sentence(match):
        name = name.partition(":")[0][:LONGEST_NAME]
        unknown[name] = unknown.get(name, 0) + 1
    if not pattern:
        return ""
    spaced = pattern[0] == "~" and len(pattern) > 1
    text = _fill(pattern[spaced:], _read_arguments(name, rest), templates)
    if spaced and match.string[match.start() - 1 : match.start()].isdigit():
        text = f" {text}"
    return _hide_markup(text)


def _hide_markup(text: str) -> str:
    return _MARKUP.sub(lambda found: _STAND_INS[found[0]], text)


def reveal_markup(text: str) -> str:
    """Return a text with the characters that were hidden while templates were expanded."""
    return re.sub(f"{STAND_IN}.", lambda found: _REVEALED.get(found[0], found[0][1]), text) if STAND_IN in text else text


@functools.lru_cache(maxsize=10_000)
def _find_pattern(first: str, language: str) -> tuple[str, str | None]:
    """Return a template's name in lower case and its pattern; None: unknown."""
    name = " ".join(first.replace("_", " ").split()).lower().removeprefix("template:")
    templates = templates_of(language)
    pattern = templates.patterns.get(name)
    if pattern is None and len(name) <= LONGEST_NAME:
        pattern = next((pattern for expression, pattern in templates.families if expression.fullmatch(name)), None)
    return name, pattern


def is_within_sentence(match: re.Match[str]) -> bool:
    """Return whether a template's line has words before and after it, and is not a row of a table or box."""
    text = match.string
    before = text[max(match.start() - AROUND, 0) : match.start()].rpartition("\n")[2]
    before, after = (
        _OTHER_MARKUP.sub("", each) for each in (before, text[match.end() : match.end() + AROUND].partition("\n")[0])
    )
    before = before.strip()
    if before.startswith(("|", "!", "{")):
        return False
    if not _LETTER.search(before):
        return not before and after[:1] == " " and after[1:2].islower()
    return bool(_LETTER.search(after)) or before[-1] not in ".!?:" or after[:1] in tuple(".,;)")


def _read_arguments(name: str, parts: Sequence[str]) -> Arguments:
    """Return a template's arguments by name or position, without empty ones; 0 is the template's name."""
    arguments, position = {"0": name}, 0
    for part in parts:
        if "=" in part and (named := _NAMED.fullmatch(part)):
            key, value = named[1].strip().lower(), named[2].strip()
        else:
            position += 1
            key, value = str(position), part.strip()
        if value:
            arguments[key] = value
        else:
            arguments.pop(key, None)
    return arguments


# --- patterns --------------------------------------------------------------------------------------------------------------

_PART = re.compile(r"\{([^{}]+)\}|[‹›]|(?:\{(?![^{}]+\})|[^{‹›])+")


Parts = list[Any]  # each is literal text, a tuple of an argument's names, or Parts that may be left out


@functools.cache
def _parse(pattern: str) -> Parts:
    levels: list[Parts] = [[]]
    for part in _PART.finditer(pattern):
        if part[0] == "‹":
            levels.append([])
        elif part[0] == "›":
            inner = levels.pop()
            levels[-1].append(inner)
        elif part[1]:
            levels[-1].append((part[1],) if part[1][0] == "*" else tuple(part[1].split(",")))
        else:
            levels[-1].append(part[0])
    return levels[0]


def _fill(pattern: str, arguments: Arguments, templates: Templates) -> str:
    """Return the text of a pattern."""
    if pattern[0] == "@":
        name, _, option = pattern[1:].partition(" ")
        return FUNCTIONS[name](arguments, templates.formats, option)
    parts = _parse(pattern)
    text, is_there = _fill_parts(parts, arguments)
    # Signs around a missing argument go with it; a word, as in {{circa}} 1900, stays.
    return text if is_there or _LETTER.search(text) or not any(isinstance(part, tuple) for part in parts) else ""


def _fill_parts(parts: Parts, arguments: Arguments) -> tuple[str, bool]:
    """Return the text of parts, and whether they have an argument."""
    texts, is_there = [], False
    for part in parts:
        if isinstance(part, tuple):
            text = _get(arguments, part)
            is_there = is_there or bool(text)
        elif isinstance(part, list):
            text, inner = _fill_parts(part, arguments)
            text, is_there = text if inner else "", is_there or inner
        else:
            text = part
        texts.append(text)
    return "".join(texts), is_there


def _get(arguments: Arguments, names: Sequence[str]) -> str:
    if names[0][0] == "*":
        return names[0][1:].join(list_arguments(arguments))
    if names[0] == "-1":
        return next(reversed(list_arguments(arguments)), "")
    return next((arguments[name] for name in names if name in arguments), "")


# --- parser functions ------------------------------------------------------------------------------------------------------


def _formatnum(arguments: Sequence[str], formats: Formats) -> str:
    """{{formatnum:12345}}: 12,345; {{formatnum:12,345|R}}: 12345."""
    if arguments[1:2] in (["R"], ["NOSEP"]):
        plain = arguments[0].replace(formats.group, "") if formats.group else arguments[0]
        return plain.replace(formats.decimal, ".") if arguments[1] == "R" else arguments[0].replace(".", formats.decimal)
    return format_number(arguments[0], formats)


def _choose(arguments: Sequence[str], place: int) -> str:
    return arguments[place] if place < len(arguments) else ""


def _switch(arguments: Sequence[str], formats: Formats) -> str:
    """{{#switch:b|a=1|b|c=2|3}}: 2, and 3 for d."""
    is_chosen = False
    for argument in arguments[1:]:
        key, sign, value = argument.partition("=")
        is_chosen = is_chosen or key.strip() == arguments[0] or key.strip() == "#default"
        if is_chosen and sign:
            return value.strip()
    return "" if len(arguments) < 2 or "=" in arguments[-1] else arguments[-1]


_TOKEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+|[a-z]+|<=|>=|<>|!=|[-+*/^()=<>])\s*")
_OPERATORS: Mapping[str, tuple[int, Callable[[float, float], float]]] = {
    "^": (7, math.pow), "*": (6, operator.mul), "/": (6, operator.truediv), "div": (6, operator.truediv),
    "mod": (6, lambda a, b: math.fmod(int(a), int(b))), "+": (5, operator.add), "-": (5, operator.sub),
    "round": (4, lambda a, b: math.copysign(math.floor(abs(a) * math.pow(10, int(b)) + 0.5) / math.pow(10, int(b)), a)),
    "=": (3, operator.eq), "<": (3, operator.lt), ">": (3, operator.gt), "<=": (3, operator.le), ">=": (3, operator.ge),
    "<>": (3, operator.ne), "!=": (3, operator.ne),
    "and": (2, lambda a, b: bool(a and b)), "or": (1, lambda a, b: bool(a or b)),
}  # fmt: skip


def _compute(text: str) -> float | None:
    """Return the value of an #expr; None: it has more than numbers and operators, or is too long."""
    tokens = [""] if _TOKEN.sub("", text.lower()) else _TOKEN.findall(text.lower())
    try:
        value = float(_take_value(tokens, 0)) if len(tokens) <= MOST_TOKENS else math.nan
    except (ArithmeticError, LookupError, ValueError):
        return None
    return None if tokens or not math.isfinite(value) else value


def _take_value(tokens: list[str], least: int) -> float:
    """Take a value, and operators that bind closer than `least`, from the beginning of tokens."""
    first = tokens.pop(0)
    if first == "(":
        value = _take_value(tokens, 0)
        if tokens.pop(0) != ")":
            raise ValueError
    elif first == "not":
        value = not _take_value(tokens, 8)
    elif first == "-" and least:  # a sign at the beginning may follow the missing text of a template
        value = -_take_value(tokens, 8)
    else:
        value = float(first)
    while tokens and _OPERATORS.get(tokens[0], (0, None))[0] > least:
        strength, apply = _OPERATORS[tokens.pop(0)]
        value = apply(value, _take_value(tokens, strength))
    return value


def _expr(arguments: Sequence[str], formats: Formats) -> str:
    """{{#expr: 7 / 2 round 1}}: 3.5; nothing if it has more than numbers."""
    value = _compute(arguments[0])
    return "" if value is None else f"{value + 0:.14g}".replace("e", "E")


def _ifexpr(arguments: Sequence[str], formats: Formats) -> str:
    """{{#ifexpr: 1 > 0 | yes | no}}: yes."""
    value = _compute(arguments[0])
    return "" if value is None else _choose(arguments, 1 if value else 2)


def _plural(arguments: Sequence[str], formats: Formats) -> str:
    """{{plural:1|page|pages}}: page."""
    is_one = arguments[0] in ("1", "0") if formats.language == "fr" else arguments[0] == "1"
    forms = [each for each in arguments[1:] if not re.match(r"\d+=", each)]
    return (forms[0] if is_one else forms[-1]) if forms else ""


_PARSER_FUNCTIONS: Mapping[str, Callable[[Sequence[str], Formats], str]] = {
    **dict.fromkeys(
        ("formatnum", "zahlenformat", "formatnombre", "formatonúmero", "formatonumero", "formatteernum", "formatnr",
         "форматировать_число", "格式化数字", "数整形"), _formatnum,
    ),
    "lc": lambda arguments, _: arguments[0].lower(),
    "uc": lambda arguments, _: arguments[0].upper(),
    "lcfirst": lambda arguments, _: arguments[0][:1].lower() + arguments[0][1:],
    "ucfirst": lambda arguments, _: arguments[0][:1].upper() + arguments[0][1:],
    "plural": _plural,
    "#if": lambda arguments, _: _choose(arguments, 1 if arguments[0] else 2),
    "#ifeq": lambda arguments, _: _choose(arguments, 2 if arguments[0] == _choose(arguments, 1) else 3),
    "#switch": _switch,
    "#expr": _expr,
    "#ifexpr": _ifexpr,
}  # fmt: skip
