"""The table of attempts in docs/trust.md counts what the tests of this folder try."""

import importlib
import re
from pathlib import Path
from typing import Any

HEADER = "| surface | tried | rejected | survived | silently wrong | tests |"


def surfaces() -> list[Any]:
    """The modules of this folder that name a surface, in the order of their names."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    return [module for name in names if hasattr(module := importlib.import_module(name), "SURFACE")]


def table() -> list[str]:
    """The rows as they should stand in docs/trust.md."""
    rows, sums = [], [0, 0]
    for module in surfaces():
        refused, survived = len(module.REFUSED), len(module.SURVIVED)
        sums = [sums[0] + refused, sums[1] + survived]
        file = f"`tests/hostile/{Path(module.__file__).name}`"
        rows.append(f"| {module.SURFACE} | {refused + survived} | {refused} | {survived} | 0 | {file} |")
    return [*rows, f"| all | {sum(sums)} | {sums[0]} | {sums[1]} | 0 | |"]


def test_the_table_counts_the_attempts(checkout: Path) -> None:
    text = (checkout / "docs/trust.md").read_text(encoding="utf-8")
    found = re.search(rf"{re.escape(HEADER)}\n[|:-]+\n((?:\|.*\n)+)", text)
    assert found is not None
    assert found[1].splitlines() == table()
