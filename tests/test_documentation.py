"""The documentation's statements about the code agree with the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from small_project import CHECKOUT

PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")])


def test_generated_parts_are_current(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def read_anchors(page: Path) -> set[str]:
    """Return the addresses that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for file, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text()):
        if not file.startswith("http"):
            target = page.parent / file if file else page
            assert target.exists(), file
            assert not anchor or anchor in read_anchors(target), f"{file}#{anchor}"


def test_every_path_that_a_page_names_is_there(checkout: Path) -> None:
    for page in checkout.glob("**/*.md"):
        if any(part.startswith(".") or part in {"work", "results"} for part in page.relative_to(checkout).parts):
            continue
        for name in re.findall(
            r"`((?:src|tests|docs|benchmarks|envs|recipes|profiles|containers)/[\w./-]+\.\w+)`", page.read_text()
        ):
            assert (checkout / name).exists() or "NAME" in name, f"{page}: {name}"
