"""The facts of the shipped recipes and the help of the commands change only together with their snapshot."""

import difflib

import pytest

from write_snapshot import DATA, ENVIRONMENT, SNAPSHOTS

SHOWN_LINES = 60


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_nothing_differs_from_the_snapshot(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    recorded, found = (DATA / name).read_text(encoding="utf-8").splitlines(), SNAPSHOTS[name]().splitlines()
    if changes := list(difflib.unified_diff(recorded, found, f"tests/data/{name}", "this checkout", n=1, lineterm="")):
        shown = "\n".join(changes[:SHOWN_LINES])
        pytest.fail(
            f"{shown}\n\nThis checkout differs from tests/data/{name} ({len(changes)} lines of diff, of which at most "
            f"{SHOWN_LINES} are shown). It was expected to be equal. If the change is meant, write the snapshot anew with "
            "`.venv/bin/python tests/write_snapshot.py`.",
            pytrace=False,
        )
