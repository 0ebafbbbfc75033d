"""Facts from the text of a program: pure functions on HLO, before and after the compiler."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from relm.training.machine.compile_record import Allocation, Program, ProgramFindings, Refusal

# A collective may be one operation or a start and a done; the start's result includes its operands.
_OPERATION = re.compile(
    r"= (?P<shapes>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all|collective-broadcast)"
    r"(?P<start>-start)?\((?P<operands>[^)]*)\)"
)
_ARRAY = re.compile(r"\b(pred|token|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_FLOAT64 = re.compile(r"\bf64\[(\d+(?:,\d+)*)\]")
_HOST = re.compile(r" (?:infeed|outfeed|send|recv)(?:-start)?\(|is_host_transfer=true|custom_call_target=\"[^\"]*[Hh]ost")
_DYNAMIC = re.compile(r"\[[^\]]*<=\d| (?:set-dimension-size|get-dimension-size|dynamic-reshape)\(|PadToStatic|SliceToDynamic")
SUMS = ("all-reduce", "reduce-scatter")
# The most lines that a finding shows, and the most characters of a line.
SHOWN, WIDTH = 3, 160
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "B": 1}
_ALLOCATION = re.compile(r"Size: ([\d.]+)([KMGB])\n\s*(?:Operator: op_name=\"([^\"]*)\"\n\s*)?Shape: ([a-z0-9]+\[[\d,]*\])")


def collectives(text: str) -> Counter[tuple[str, int]]:
    """Return the count of arrays that devices exchange in an optimised program, by kind of operation and elements.

    >>> collectives("  %a = (f32[2,3]{1,0}, f32[]) all-reduce(%b, %c), channel_id=1")
    Counter({('all-reduce', 6): 1, ('all-reduce', 1): 1})
    """
    found: Counter[tuple[str, int]] = Counter()
    for operation in filter(None, map(_OPERATION.search, text.splitlines())):
        arrays = _ARRAY.findall(operation["shapes"])
        if operation["start"] and operation["kind"] != "all-reduce":
            arrays = arrays[len(arrays) // 2 :]
        found.update((operation["kind"], _elements(sizes)) for _, sizes in arrays)
    return found


def collective_operations(text: str) -> dict[str, int]:
    """Return the count of operations of each kind; one may carry many arrays."""
    return dict(sorted(Counter(found["kind"] for found in map(_OPERATION.search, text.splitlines()) if found).items()))


def find_beyond_gradients(carried: Iterable[tuple[str, int]], program: Program) -> dict[str, int]:
    """Return the elements of the largest array that cannot be the sum of a gradient, by kind of operation."""
    others = sorted((kind, size) for kind, size in carried if kind not in SUMS or size not in program.parameters)
    return dict(others)


def findings(source: str, optimised: str) -> ProgramFindings:
    """Return the lines that a program should not have, from the text before and after the compiler.

    Only the text before has float64: TPUs lack it, and the compiler replaces it by pairs.
    """
    both = f"{source}\n{optimised}"
    wide = (line for line in source.splitlines() if any(_elements(sizes) > 1 for sizes in _FLOAT64.findall(_body(line))))
    hosts = (line for line in both.splitlines() if _HOST.search(line))
    dynamic = (line for line in both.splitlines() if _DYNAMIC.search(_body(line)))
    return ProgramFindings(float64=_shown(wide), host_transfers=_shown(hosts), dynamic_shapes=_shown(dynamic))


def parse_refusal(message: str) -> Refusal:
    """Parse the compiler's whole message on a program that does not fit, which begins with RESOURCE_EXHAUSTED."""
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
    """Return a line without its metadata, empty for a header: headers repeat the shapes of all arguments."""
    return "" if line.startswith(("HloModule", "ENTRY", "%")) else line.partition(", metadata=")[0].partition("sharding=")[0]


def _shown(lines: Iterable[str]) -> tuple[str, ...]:
    def first() -> Iterator[str]:
        for number, line in enumerate(lines):
            if number == SHOWN:
                return
            yield line.strip()[:WIDTH]

    return tuple(first())
