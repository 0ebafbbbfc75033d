"""Functions that `templates.json` names, for templates whose text no pattern can build.

A function gets the arguments of a template by name or position, the formats of the wiki's language, and the option after its
name in the pattern. It uses each argument once, so nested templates cannot multiply a text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TABLE: Mapping[str, Any] = json.loads(Path(__file__).with_name("templates.json").read_text(encoding="utf-8"))
_WORDS: Mapping[str, Mapping[str, str]] = TABLE["words"]

LONGEST_NUMBER = 30  # digits; more are not grouped

Arguments = Mapping[str, str]


class Formats(NamedTuple):
    """The formats of numbers and dates in a language."""

    language: str
    group: str
    """The mark between groups of digits; empty: no groups."""
    decimal: str
    fewest: int
    """The fewest digits before the first group."""
    months: tuple[str, ...]
    date: str
    """A date with {d}, {m} and {y}."""
    month: str
    """A date without its day."""


def list_arguments(arguments: Arguments) -> list[str]:
    """Return the arguments without a name, in order; empty ones are left out."""
    return [value for key, value in arguments.items() if key.isdigit() and key != "0"]


def _first_of(arguments: Arguments, *names: str) -> str:
    return next((arguments[name] for name in names if name in arguments), "")


# --- numbers and units -----------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"(?<![\w.,])\d+(?:\.\d+)?(?![\w,])", re.ASCII)
_SIGNS = {"-": "–", "–": "–", "—": "–", "x": " × ", "×": " × ", "xx": " × ", "by": " × ", "+/-": " ± ", "±": " ± ", ",": ", "}
_TO = {"to": " to ", "to(-)": " to ", "and": " and ", "and(-)": " and ", "or": " or ", "by": " by "}
_RANGES: Mapping[str, Mapping[str, str]] = {
    "en": {**_SIGNS, **_TO},
    "": {**_SIGNS, **dict.fromkeys(_TO, "–"), "by": " × ", "à": " à ", "et": " et ", "a": " a ", "y": " y ", "bis": " bis "},
}
_MULTIPLE = re.compile(r"(e3|e6|e9|e12)([a-z/].*)", re.IGNORECASE)
_RAISED = re.compile(r"(?<=[a-zµΩ])\^?(-?[234])(?!\w)")
_RAISED_SIGNS = str.maketrans("-234", "⁻²³⁴")


def _group_digits(number: str, formats: Formats) -> str:
    whole, point, fraction = number.partition(".")
    if formats.group and 3 + formats.fewest <= len(whole) <= LONGEST_NUMBER:
        first = len(whole) % 3
        whole = formats.group.join([whole[:first]] * (first > 0) + [whole[at : at + 3] for at in range(first, len(whole), 3)])
    return whole + point.replace(".", formats.decimal) + fraction


def format_number(text: str, formats: Formats) -> str:
    """Return a text with its plain numbers in the format of the language."""
    return _NUMBER.sub(lambda found: _group_digits(found[0], formats), text)


def _name_unit(unit: str) -> str:
    multiple = _MULTIPLE.fullmatch(unit)
    prefix, unit = (f"{_WORDS['multiples'][multiple[1].lower()]} ", multiple[2]) if multiple else ("", unit)
    return prefix + _RAISED.sub(lambda found: found[1].translate(_RAISED_SIGNS), _WORDS["units"].get(unit.lower(), unit))


def _join_value(text: str, unit: str) -> str:
    return text + unit if unit.startswith("/") else f"{text} {unit}"


def _name_value(value: str, formats: Formats) -> str:
    """Return 5+1/2 as 5 1/2, and 12345 as 12,345."""
    return format_number(re.sub(r"(?<=\d)[+-](?=\d+/)", " ", value.replace("//", "/")), formats)


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text[1:2].isdigit()


def _convert(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{convert|5|km|mi}}: 5 km; {{convert|5|to|9|C}}: 5 to 9 °C; {{convert|5|ft|6|in}}: 5 ft 6 in. No converted value."""
    listed = list_arguments(arguments)
    ranges = _RANGES.get("en" if formats.language == "simple" else formats.language, _RANGES[""])
    if not listed:
        return ""
    between = listed[0].lower() in ("between", "from") and len(listed) > 1
    text, place = f"{listed[0]} " * between + _name_value(listed[between], formats), 1 + between
    while place + 1 < len(listed) and listed[place] in ranges and _is_number(listed[place + 1]):
        text += ranges[listed[place]] + _name_value(listed[place + 1], formats)
        place += 2
    if place < len(listed):
        text = _join_value(text, _name_unit(listed[place]))
    while (
        place + 2 < len(listed) and _WORDS["smaller"].get(listed[place]) == listed[place + 2] and _is_number(listed[place + 1])
    ):
        text += f" {_name_value(listed[place + 1], formats)} {_name_unit(listed[place + 2])}"
        place += 2
    return text


def _unit(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{unité|1234|km|2}}: 1 234 km², {{unité|5|à|10|km}}: 5 à 10 km; a number after a unit is its exponent."""
    texts: list[str] = []
    for text in list_arguments(arguments):
        is_value = not texts or texts[-1] in _RANGES[""]
        if is_value or not text.lstrip("-−").isdigit():
            joined = re.sub(r"(?<=\d) (?=\d{3})", "", text) if is_value else text
            texts.append(format_number(joined, formats) if _is_number(joined) else _name_unit(text))
        else:
            texts[-1] += f"<sup>{text}</sup>"
        if len(texts) == 1 and "e" in arguments and "×" not in texts[0]:
            texts[0] += f" × 10<sup>{arguments['e']}</sup>"
    unit = _first_of(arguments, "u", "ul", "um")
    if option == "joined":  # a prefix and a unit
        texts = [texts[0], "".join(texts[1:])] if len(texts) > 2 else texts
    return " ".join([*texts, *([_name_unit(unit)] if unit else [])])


def _val(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{val|3.5|0.1|e=6|u=kg}}: 3.5 ± 0.1 × 10⁶ kg."""
    text = _first_of(arguments, "p") + format_number(_first_of(arguments, "1"), formats) + _first_of(arguments, "s")
    error, lower = _first_of(arguments, "2"), _first_of(arguments, "3")
    if error and lower:
        text += f" +{error.lstrip('+')} −{lower.lstrip('-−')}"
    elif error:
        text += error if error.startswith("(") else f" ± {format_number(error, formats)}"
    if "e" in arguments:
        text += f" × 10<sup>{arguments['e']}</sup>"
    unit, per = _first_of(arguments, "u", "ul", "end"), _first_of(arguments, "up", "upl")
    text = _join_value(text, _name_unit(unit)) if unit else text
    return f"{text}/{_name_unit(per)}" if per else text


def _fraction(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{frac|1|2}}: 1/2; {{frac|3|1|2}}: 3 1/2; {{frac|2}}: 1/2."""
    listed = list_arguments(arguments)
    if len(listed) > 2:
        return f"{listed[0]} {listed[1]}/{listed[2]}"
    return "/".join(listed if len(listed) != 1 else ["1", *listed])


def _amount(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{US$|5 million}}: US$5 million; {{INRConvert|5|c}}: ₹5 crore. The option is the text around the number, {}."""
    multiple = _WORDS["indian"].get(_first_of(arguments, "2"))
    text = format_number(_first_of(arguments, "1"), formats) + (f" {multiple}" if multiple else "")
    return option.replace("{}", text) if option else text


def _currency(arguments: Arguments, formats: Formats, option: str) -> str:
    code = _first_of(arguments, "2", "type") or "USD"
    return _WORDS["currencies"].get(code.upper(), f"{code} ") + _first_of(arguments, "1", "amount")


def _ordinal(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{XIXe siècle}}: the name itself, with the numeral in capitals."""
    numeral, space, rest = arguments["0"].partition(" ")
    numeral = re.sub(r"^[ivxlcdm]+?(?=(?:es|ers|res|ère|er|re|e)$)", lambda found: found[0].upper(), numeral)
    return f"{numeral}{space}{rest.replace('j.-c.', 'J.-C.')} {_first_of(arguments, '1')}".strip()


def _century(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{s-|XIX|e}}: XIXe siècle; {{s2-|XVI|e|XVII|e}}: XVIe et XVIIe siècles; {{sp|XV|e|au|XVI|e}}: XVe au XVIe siècle."""
    texts: list[str] = []
    is_range = False
    for text in list_arguments(arguments):
        if re.fullmatch("[IVXLCDM]+|[ivxlcdm]+|[0-9]+", text):
            texts.append(text.upper())
        elif texts and re.fullmatch("er|e|re|ère|ème|è|me", text):
            texts[-1] += text
        elif text not in ("s", "lien"):
            texts.append(text)
            is_range = True
    texts = [f"{text}{'er' if text == 'I' else 'e'}" if re.fullmatch("[IVXLCDM]+", text) else text for text in texts]
    text = " ".join(texts) if is_range else " et ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
    several = len(texts) > 1 and not is_range
    return f"{text} {option.replace('siècle', 'siècles').replace('millénaire', 'millénaires') if several else option}".strip()


# --- dates -----------------------------------------------------------------------------------------------------------------


def format_date(parts: Sequence[str], formats: Formats, order: str = "") -> str:
    """Return year, month and day, or day, month and year, as a date in the wiki's order or "dmy"; other texts unchanged."""
    parts = [part for part in parts if part][:3]
    if len(parts) < 2:
        return "".join(parts)
    *day, month, year = parts[::-1] if len(parts[0]) > 2 and parts[0].isdigit() else parts
    names = {name.lower(): name for name in formats.months}
    number = int(month) if month.isascii() and month.isdigit() and len(month) < 3 else 0
    if 0 < number <= len(formats.months):
        month = formats.months[number - 1]
    elif month.lower() in names:
        month = names[month.lower()]
    else:
        return " ".join([*day, month, year]).strip()
    if not day:
        return formats.month.format(m=month, y=year)
    shown = str(int(day[0])) if day[0].isascii() and day[0].isdigit() and len(day[0]) < 3 else day[0]
    shown = "1er" if formats.language == "fr" and shown == "1" else shown
    return ("{d} {m} {y}" if order == "dmy" else formats.date).format(d=shown, m=month, y=year)


def _date_parts(arguments: Arguments) -> list[str]:
    listed = list_arguments(arguments) or [_first_of(arguments, name) for name in ("year", "month", "day")]
    if len(listed) == 1 and re.fullmatch(r"\d+[ /-]\d+[ /-]\d+", listed[0]):
        return re.split("[ /-]", listed[0])
    return listed


def _order(arguments: Arguments) -> str:
    return "dmy" if _first_of(arguments, "df", "format")[:1].lower() in tuple("yd") else ""


def _date(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{birth date|1990|1|2}}: January 2, 1990; {{death date and age|1990|1|2|1950|3|4}}: January 2, 1990 (aged 39)."""
    parts, aged = _date_parts(arguments), " (aged {})"
    if option == "aged" and formats.language == "ja":  # which has the birth first
        parts, aged = [*parts[3:6], *parts[:3]], "（{}歳没）"
    age = _count_years(parts[3:6], parts[:3]) if option == "aged" else ""
    return format_date(parts[:3], formats, _order(arguments)) + (aged.format(age) if age else "")


def _count_years(begin: Sequence[str], end: Sequence[str]) -> str:
    """Return the whole years from one date (year, month, day) to another; nothing if one is incomplete."""
    if len(begin) < 3 or len(end) < 3 or not all(part.isdecimal() and len(part) < 5 for part in (*begin, *end)):
        return ""
    first, last = ([int(part) for part in date] for date in (begin, end))
    return str(last[0] - first[0] - (last[1:] < first[1:]))


def _age(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{age|1990|1|2|2000|1|1}}: 9; with one date the age depends on the day of reading."""
    listed = list_arguments(arguments)
    return _count_years(listed[:3], listed[3:6])


def _as_of(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{As of|2010|5|lc=y}}: as of May 2010."""
    if "alt" in arguments:
        return arguments["alt"]
    word = "Since" if "since" in arguments else "As of"
    order = "" if _first_of(arguments, "df").upper() in ("US", "MDY") else "dmy"
    return f"{word.lower() if 'lc' in arguments else word} {format_date(_date_parts(arguments), formats, order)}"


# --- words -----------------------------------------------------------------------------------------------------------------


def _labelled(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{zh|s=中国|p=Zhōngguó}}: simplified Chinese: 中国; pinyin: Zhōngguó."""
    labels = (
        dict.fromkeys(_WORDS["labels"], "{}")
        if arguments.get("labels") == "no" or formats.language not in ("en", "simple")
        else _WORDS["labels"]
    )
    named = [labels[name].format(text) for name, text in arguments.items() if name in labels]
    return "; ".join([*list_arguments(arguments)[:1], *named])


def _pronunciation(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{IPAc-en|ˈ|æ|l|b}}: /ˈælb/."""
    sounds = [
        each for each in list_arguments(arguments) if each.lower() not in _WORDS["pronunciation"] and not each.endswith(".ogg")
    ]
    text = "".join(sounds).replace("_", " ").replace("'", "ˈ").replace(",", "ˌ")
    return f"/{text}/" if text else ""


def _ipa(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{IPA|/a/}}: /a/; {{IPA|de|a}}: [a]."""
    first, second = _first_of(arguments, "1"), _first_of(arguments, "2")
    return f"[{second}]" if second and re.fullmatch("[a-z]{2,3}(?:-[A-Za-z]+)*", first) else first


def _sic(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{sic}}: [sic]; {{sic|teh}}: teh [sic]; {{sic|hide=y|teh}}: teh."""
    text = "".join(list_arguments(arguments))
    return text if "hide" in arguments else f"{text} [sic]".strip()


def _hard_space(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{esd}} is a space, {{esd|10 km}} a text whose spaces break no line."""
    return _first_of(arguments, "1") or " "


def _music(arguments: Arguments, formats: Formats, option: str) -> str:
    return _WORDS["music"].get(_first_of(arguments, "1"), _first_of(arguments, "1"))


def _coordinates(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{coord|57|18|N|4|27|W|display=inline}}: 57°18′N 4°27′W; {{coord|57.3|-4.5}}: 57.3°N 4.5°W."""
    if "title" in (display := arguments.get("display", "inline")) and "inline" not in display:
        return ""
    text, signs, places = "", "°′″", 0
    numbers = [each for each in list_arguments(arguments) if ":" not in each]
    if len(numbers) > 1 and not {"N", "S"}.intersection(numbers):
        return " ".join(
            f"{each.lstrip('-')}°{'NESW'[side + 2 * each.startswith('-')]}" for side, each in enumerate(numbers[:2])
        )
    for each in numbers[:8]:
        if each in ("N", "S", "E", "W"):
            text, places = f"{text}{each} ", 0
        elif places < 3:
            text, places = text + each + signs[places], places + 1
    return text.strip()


def _coordinate(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{Coordinate|text=DMS|NS=52/30/10.4/N|EW=13/24/15.1/E}}: 52° 30′ 10,4″ N, 13° 24′ 15,1″ O; without text none is shown."""
    texts = []
    for place in (arguments.get("ns", ""), arguments.get("ew", "")):
        *numbers, side = place.replace(".", formats.decimal).split("/")
        texts.append(" ".join([number + sign for number, sign in zip(numbers, "°′″", strict=False)] + [side.replace("E", "O")]))
    return ", ".join(texts) if "text" in arguments and all(texts) else ""


def _height(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{Höhe|115|DE-NHN}}: 115 m ü. NHN."""
    return f"{format_number(_first_of(arguments, '1'), formats)} {_WORDS['heights'].get(_first_of(arguments, '2'), 'm')}"


def _old_style(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{СС|16|июня|1900|3}}: 3 (16) июня 1900; {{СС|2 января|1900|20 декабря}}: 2 января 1900 (20 декабря)."""
    listed = list_arguments(arguments)
    if len(listed) > 3 and listed[0].isdigit():
        new = f"({listed[0]}) {listed[1]}" if len(listed) == 4 else f"({listed[0]} {listed[1]})"
        return " ".join([*listed[3:5], new, listed[2]])
    return f"{' '.join(listed[:2])} ({listed[2]})" if len(listed) > 2 else " ".join(listed)


def _ship(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{HMS|Ajax|22}}: HMS Ajax (22); a format as the last argument leaves the number out."""
    names = list_arguments(arguments)
    names = names if option == "" else [option, *names]
    number = f" ({names[2]})" if len(names) == 3 else ""
    return " ".join(names[:2]) + number


def _century_es(arguments: Arguments, formats: Formats, option: str) -> str:
    """{{siglo|XIX||s}}: siglo XIX; {{siglo|V|a|s}}: siglo V a. C."""
    era = {"a": " a. C.", "d": " d. C."}.get(_first_of(arguments, "2"), "")
    word = {"s": "siglo ", "S": "Siglo "}.get(_first_of(arguments, "3"), "")
    return f"{word}{_first_of(arguments, '1')}{era}"


FUNCTIONS: Mapping[str, Callable[[Arguments, Formats, str], str]] = {
    function.__name__[1:]: function
    for function in (
        _age, _amount, _as_of, _century, _century_es, _convert, _coordinate, _coordinates, _currency, _date,
        _fraction, _hard_space, _height, _ipa, _labelled, _music, _old_style, _ordinal,
        _pronunciation, _ship, _sic, _unit, _val,
    )
}  # fmt: skip
