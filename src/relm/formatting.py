"""Format durations, sizes and tables as text, and escape characters that would forge such text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 2**30
"""The bytes of a GiB, the unit of memory."""


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> format_duration(0.4), format_duration(12), format_duration(185), format_duration(7440), format_duration(273_600)
    ('0.4 s', '12 s', '3 min 5 s', '2 h 4 min', '3 d 4 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, smaller, smaller_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // smaller} {smaller_name}"
    return f"{whole} s"


def format_step_time(seconds: float) -> str:
    """Return the duration of one training step with three digits.

    >>> format_step_time(0.71892), format_step_time(0.00012), format_step_time(75)
    ('0.719 s', '0.12 ms', '75 s')
    """
    return f"{seconds * 1000:.3g} ms" if seconds < 0.01 else f"{seconds:.3g} s"


def format_hours(hours: float) -> str:
    """Return hours in the form of a bill.

    >>> format_hours(1064.5), format_hours(0.001)
    ('1,064.50', '< 0.01')
    """
    return f"{hours:,.2f}" if hours >= 0.01 else "< 0.01"


def format_price(dollars: float) -> str:
    """Return an amount of US dollars.

    >>> format_price(1064.5), format_price(0.001)
    ('$1,064.50', '< $0.01')
    """
    return f"${dollars:,.2f}" if dollars >= 0.005 else "< $0.01"


def format_bytes(size: int) -> str:
    """Return a size in powers of ten, with three digits.

    >>> format_bytes(912), format_bytes(1234), format_bytes(100_000_000), format_bytes(10**18)
    ('912 B', '1.23 kB', '100 MB', '1,000,000 TB')
    """
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 999.5 else f"{amount:.3g} {unit}"


def format_row(name: str, text: str) -> str:
    """Return a row of a table of two columns; the name may be empty."""
    return f"  {name:<12} {text}"


def format_table(rows: Sequence[Sequence[str]], sides: str, indent: str = "") -> list[str]:
    """Return the lines of a table; `sides` has < or > for each column, to align it left or right.

    >>> format_table([["run", "hours"], ["quickstart", "0.1"]], "<>")
    ['run         hours', 'quickstart    0.1']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def format_count(count: int) -> str:
    """Return a large count with three digits.

    >>> format_count(912), format_count(168_192), format_count(124_439_808), format_count(9_830_400_000)
    ('912', '168 k', '124 M', '9.83 B')
    """
    amount, unit = float(count), ""
    for larger in (" k", " M", " B", " T"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{count:,}" if not unit else f"{amount:.3g}{unit}"


# Line breaks, commands to a terminal, and marks that reverse the direction of text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def find_control_character(value: Any) -> str | None:
    """Return the first control character in a text or nested texts, such as U+000A; None without one.

    >>> find_control_character("plain"), find_control_character(["two\\nlines"]), find_control_character({"k": "\\x1b[2J"})
    (None, 'U+000A', 'U+001B')
    """
    if isinstance(value, str):
        found = _CONTROLS.search(value)
        return f"U+{ord(found[0]):04X}" if found else None
    parts = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next(filter(None, map(find_control_character, parts)), None)


def escape_controls(text: str, keeps: str = "") -> str:
    """Return a text with control characters as escapes, so that a terminal does not obey them.

    >>> escape_controls("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0] if found[0] in keeps else found[0].encode("unicode_escape").decode(), text)


_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")


def escape_for_terminal(text: str) -> str:
    """Return a message of several lines with control characters as escapes, except tabs and colours."""
    parts = _COLOUR.split(text)
    return "".join(part if number % 2 else escape_controls(part, keeps="\n\t") for number, part in enumerate(parts))
