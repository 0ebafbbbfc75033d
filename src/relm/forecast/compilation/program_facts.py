"""What stands in the text of a program: pure functions on HLO, before and after the compiler."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from relm.forecast.compilation.compile_record import Allocation, Collective, Program, ProgramFindings, Refusal

# A collective may be one operation or a start and a done; what comes out of the start holds what went in as well.
_OPERATION = re.compile(
    r"= (?P<shapes>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all|collective-broadcast)"
    r"(?P<start>-start)?\((?P<operands>[^)]*)\)"
)
_ARRAY = re.compile(r"\b(pred|token|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_FLOAT64 = re.compile(r"\bf64\[(\d+(?:,\d+)*)\]")
_HOST = re.compile(r" (?:infeed|outfeed|send|recv)(?:-start)?\(|is_host_transfer=true|custom_call_target=\"[^\"]*[Hh]ost")
_DYNAMIC = re.compile(r"\[[^\]]*<=\d| (?:set-dimension-size|get-dimension-size|dynamic-reshape)\(|PadToStatic|SliceToDynamic")
SUMS = ("all-reduce", "reduce-scatter")
# Lines of a kind that a finding shows, and their characters.
SHOWN, WIDTH = 3, 160
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "B": 1}
_ALLOCATION = re.compile(r"Size: ([\d.]+)([KMGB])\n\s*(?:Operator: op_name=\"([^\"]*)\"\n\s*)?Shape: ([a-z0-9]+\[[\d,]*\])")


def collectives(text: str) -> list[Collective]:
    """All that is sent between devices, in the text of an optimised program, arrays of one size counted together.

    >>> collectives("  %a = (f32[2,3]{1,0}, f32[]) all-reduce(%b, %c), channel_id=1")[0].elements
    6
    """
    found: Counter[tuple[str, str, int]] = Counter()
    for line in text.splitlines():
        if (operation := _OPERATION.search(line)) is None:
            continue
        arrays = _ARRAY.findall(operation["shapes"])
        if operation["start"] and operation["kind"] != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]
        for kind, sizes in arrays:
            found[operation["kind"], kind, _elements(sizes)] += 1
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -item[0][2], item[0][1]))
    return [Collective(kind=kind, type=of, elements=size, count=count) for (kind, of, size), count in ordered]


def collective_operations(text: str) -> dict[str, int]:
    """How many operations of each kind there are; one may carry many arrays."""
    return dict(sorted(Counter(found["kind"] for found in map(_OPERATION.search, text.splitlines()) if found).items()))


def carried_beyond_gradients(carried: Iterable[Collective], program: Program) -> list[Collective]:
    """What collectives carry that is no sum of a parameter's size, the largest first."""
    others = [each for each in carried if each.kind not in SUMS or each.elements not in program.parameters]
    return sorted(others, key=lambda each: -each.elements)


def findings(source: str, optimised: str) -> ProgramFindings:
    """What should not be in a program, looked for before the compiler and after it.

    Args:
        source: before, where float64 still is what was asked for: a TPU has none, and the compiler makes it of pairs.
        optimised: after; empty where there is none.
    """
    both = f"{source}\n{optimised}"
    wide = (line for line in source.splitlines() if any(_elements(sizes) > 1 for sizes in _FLOAT64.findall(_body(line))))
    hosts = (line for line in both.splitlines() if _HOST.search(line))
    dynamic = (line for line in both.splitlines() if _DYNAMIC.search(_body(line)))
    return ProgramFindings(float64=_shown(wide), host_transfers=_shown(hosts), dynamic_shapes=_shown(dynamic))


def refusal_of(message: str) -> Refusal:
    """The compiler's words on a program that does not fit, taken apart.

    Args:
        message: which begins with RESOURCE_EXHAUSTED.
    """
    used = re.search(r"Used ([\d.]+[KMGT]) of ([\d.]+[KMGT]) hbm", message)
    largest = [
        Allocation(bytes=round(float(number) * _UNITS[unit]), shape=shape, operation=name)
        for number, unit, name, shape in _ALLOCATION.findall(message)
    ]
    first = message.strip().partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ")
    return Refusal(used=used[1] if used else "", capacity=used[2] if used else "", words=first, largest=tuple(largest[:5]))


def _elements(sizes: str) -> int:
    return math.prod(int(size) for size in sizes.split(",") if size)


def _body(line: str) -> str:
    """A line without what only describes it; a header repeats the shapes of all arguments."""
    return "" if line.startswith(("HloModule", "ENTRY", "%")) else line.partition(", metadata=")[0].partition("sharding=")[0]


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    def first() -> Iterator[str]:
        for number, line in enumerate(lines):
            if number == SHOWN:
                return
            yield line.strip()[:WIDTH]

    return tuple(first())
