"""What the documentation says of the code is what the code says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_generated_parts_are_current(checkout: Path) -> None:
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "CONTRIBUTING.md", "docs/running.md", "docs/recipes.md", "docs/trust.md", "docs/examples.md"),
        *("docs/storage.md", "docs/as_published.md", "docs/evaluation.md", "docs/generate.md"),
        *("docs/devices.md", "docs/tpu.md", "docs/containers.md"),
    ],
)
def test_every_link_inside_the_repository_leads_somewhere(page: str, checkout: Path) -> None:
    path = checkout / page
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    assert [link for link in links if not link.startswith("http") and not (path.parent / link).exists()] == []


def test_every_path_that_a_page_names_is_there(checkout: Path) -> None:
    for page in checkout.glob("**/*.md"):
        if any(part.startswith(".") or part in {"work", "results"} for part in page.relative_to(checkout).parts):
            continue
        for name in re.findall(
            r"`((?:src|tests|docs|benchmarks|envs|recipes|profiles|containers)/[\w./-]+\.\w+)`", page.read_text()
        ):
            assert (checkout / name).exists() or "NAME" in name, f"{page}: {name}"
