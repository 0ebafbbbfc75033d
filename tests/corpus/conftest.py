"""Fixtures of the downloads' tests: a local server, and an environment without the user's own settings."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_server import LocalServer, running_server

from relm.corpus.download import transfer


@pytest.fixture
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove proxies, mirrors, tokens, indexes and configuration files; repeat a failed attempt at once."""
    for variable in list(os.environ):
        if variable.lower().endswith("_proxy") or variable.lower().startswith(("relm_", "hf_", "pip_", "npm_config")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(transfer, "FIRST_PAUSE", 0.01)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "downloads" / "data" / "set" / "thing.bin"
