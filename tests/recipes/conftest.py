"""Fixtures of recipes' tests."""

import shutil
from pathlib import Path

import pytest

from small_project import CHECKOUT


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of the shipped recipes."""
    shutil.copytree(CHECKOUT / "recipes", tmp_path / "recipes")
    return tmp_path
