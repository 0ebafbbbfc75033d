"""The few templates of Wikipedia whose arguments are part of the sentence around them.

Almost all templates are boxes, citations and notices, and go without a trace. These would leave a hole: "a distance of  from
the coast", "the French word  for". What each shows is a short function of its positional arguments; the rest of its meaning
(links, conversions, colours) is dropped.

Each wiki has templates of its own: the same name may mean something else, as {{val}} does in Latvian. Outside the English
Wikipedia only names count that other wikis took over with their meaning, and those of the wiki itself.
"""

import functools
import re
from collections.abc import Callable, Mapping

# A template longer than this is a box, whatever its name; the bound keeps the work per level of nesting small.
LONGEST = 4000

Shown = Callable[[list[str]], str]


def _argument(index: int) -> Shown:
    return lambda arguments: arguments[index] if index < len(arguments) else ""


def _last(arguments: list[str]) -> str:
    return arguments[-1] if arguments else ""


def _constant(text: str) -> Shown:
    return lambda _: text


def _before(prefix: str) -> Shown:
    return lambda arguments: prefix + arguments[0] if arguments else ""


def _concatenate(arguments: list[str]) -> str:
    return "".join(arguments)


def _fraction(arguments: list[str]) -> str:
    """{{frac|1|2}}: 1/2; {{frac|3|1|2}}: 3 1/2; {{frac|2}}: 1/2."""
    if len(arguments) > 2:
        return f"{arguments[0]} {arguments[1]}/{arguments[2]}"
    return "/".join(arguments if len(arguments) != 1 else ["1", *arguments])


_SIGNS = {"-": "–", "–": "–", "x": " × ", "+/-": " ± "}
_RANGES = {**_SIGNS, "to": " to ", "and": " and ", "or": " or ", "by": " by "}
_RANGES_IN_ANY_LANGUAGE = {**_SIGNS, "to": "–", "and": "–", "or": "–", "by": " × "}
_UNITS = {"C": "°C", "F": "°F", "km2": "km²", "m2": "m²", "m3": "m³", "sqmi": "sq mi", "sqft": "sq ft", "cuft": "cu ft"}


def _quantity(arguments: list[str], ranges: Mapping[str, str] = _RANGES) -> str:
    """{{convert|5|km|mi}}: 5 km; {{convert|5|to|9|C}}: 5 to 9 °C. The converted value is left out."""
    if len(arguments) > 3 and arguments[1] in ranges:
        value, unit = arguments[0] + ranges[arguments[1]] + arguments[2], arguments[3]
    elif len(arguments) > 1:
        value, unit = arguments[:2]
    else:
        return _concatenate(arguments)
    return f"{value} {_UNITS.get(unit, unit)}"


def _ship(arguments: list[str]) -> str:
    return " ".join(arguments[:2])


_FIRST = (
    "abbr", "angbr", "angle bracket", "ar", "arabdin", "big", "block indent", "blockquote", "bold", "cquote", "em", "flag",
    "flagcountry", "flagu", "hayeren", "hebrew", "ipa", "italic", "italics", "keypress", "linktext", "longitem", "math", "mvar",
    "nastaliq", "nihongo", "nihongo2", "nihongo3", "nobold", "nobr", "nobreak", "noitalic", "nowrap", "nq", "nts",
    "oldstyledate", "pie", "poemquote", "polytonic", "quotation", "quote", "resize", "rtl-lang", "sc", "script", "serif",
    "small", "smaller", "smallcaps", "strong", "sub", "sup", "tooltip", "translit", "unicode", "val", "vanchor", "var",
    "visible anchor",
)  # fmt: skip

SHOWN: dict[str, Shown] = {
    **dict.fromkeys(_FIRST, _argument(0)),
    **dict.fromkeys(("lang", "wikt-lang", "script/lang"), _argument(1)),
    **dict.fromkeys(("transl", "transliteration"), _last),
    **dict.fromkeys(("convert", "cvt"), _quantity),
    **dict.fromkeys(("chem", "gaps", "ce", "chem2"), _concatenate),
    **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
    **dict.fromkeys(("c.", "circa", "ca."), lambda arguments: " ".join(["c.", *arguments])),
    **dict.fromkeys(("ndash", "–", "spaced ndash", "snd", "spnd", "spndash"), _constant(" – ")),
    **dict.fromkeys(("mdash", "—", "mdashb", "spaced mdash"), _constant(" — ")),
    **dict.fromkeys(("·", "•", "dot", "bull"), _constant(" · ")),
    **dict.fromkeys(("nbsp", "spaces", "space"), _constant(" ")),
    **{name: _before(f"{name.upper()} ") for name in ("uss", "hms", "hmcs", "hmas", "sms", "rms", "ss", "mv")},
    "as of": _before("as of "),
    "'s": _constant("'s"),
    "okina": _constant("ʻ"),
    "pipe": _constant("|"),
    "ship": _ship,
}

# Names that mean something else, or nothing, on other wikis, and templates that add English words.
_ENGLISH_ALONE = frozenset({
    "'s", "ar", "arabdin", "as of", "bull", "c.", "ca.", "circa", "dot", "em", "flag", "flagcountry", "flagu", "hayeren",
    "keypress", "longitem", "mv", "nastaliq", "nq", "nts", "oldstyledate", "pie", "pipe", "resize", "sc", "script", "serif",
    "ship", "sms", "space", "spaces", "ss", "val", "vanchor", "var",
})  # fmt: skip

_IN_ANY_LANGUAGE: dict[str, Shown] = {
    **{name: shown for name, shown in SHOWN.items() if name not in _ENGLISH_ALONE},
    **dict.fromkeys(("convert", "cvt"), functools.partial(_quantity, ranges=_RANGES_IN_ANY_LANGUAGE)),
}
_OWN: Mapping[str, Mapping[str, Shown]] = {
    "en": SHOWN,
    "fr": {"unité": lambda arguments: " ".join(arguments[:2])},
    "it": {"citazione necessaria": _argument(0)},
    "lv": {"val": _argument(1)},
    "simple": SHOWN,
}


@functools.cache
def shown_in(language: str) -> Mapping[str, Shown]:
    """Return lower-case name -> what it shows, of the templates in a wiki of this language whose arguments are text."""
    return {**_IN_ANY_LANGUAGE, **_OWN.get(language, {})}


_NAMED = re.compile(r"\s*([\w -]{1,30})=(.*)", re.DOTALL)


def _list_positional(arguments: list[str]) -> list[str]:
    """Return the arguments without a name; ``2=text`` counts as one."""
    found = []
    for argument in arguments:
        named = _NAMED.fullmatch(argument)
        if not named:
            found.append(argument.strip())
        elif named[1].strip().isdigit():
            found.append(named[2].strip())
    return found


def render_template(body: str, known: Mapping[str, Shown] = SHOWN) -> str:
    """Return the text that a template with this body, the text between its braces, adds to the sentence: mostly none.

    Args:
        body: the text between the braces.
        known: the templates that show something, as `shown_in` returns them.

    >>> render_template("convert|5|km|mi|abbr=on"), render_template("lang|fr|bonjour"), render_template("cite book|title=X")
    ('5 km', 'bonjour', '')
    """
    if len(body) > LONGEST:
        return ""
    name, *arguments = body.split("|")
    name = name.strip().lower().replace("_", " ")
    shown = known.get(name)
    if shown is None and name.startswith("lang-"):
        shown = _argument(0)
    return shown(_list_positional(arguments)) if shown else ""
