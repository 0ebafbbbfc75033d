"""The examples of tiny runs, see `tiny_runs`."""

from pathlib import Path

import pytest

from tiny_runs import write_examples


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with manifest, shard and tokenizer."""
    return write_examples(tmp_path_factory.mktemp("data") / "examples", seed=0)
