"""Fixtures of tiny runs, see `tiny_runs`, and of the examples that they read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_runs import TinyRun, pregenerate_examples, write_examples


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with manifest, shard and tokenizer."""
    return write_examples(tmp_path_factory.mktemp("data") / "examples", seed=0)


@pytest.fixture(scope="session")
def examples_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function: objective -> a folder with manifest, shard and tokenizer, built once."""
    folder = tmp_path_factory.mktemp("pregenerated")

    def made(objective: str) -> Path:
        examples = folder / objective
        return examples if examples.exists() else pregenerate_examples(examples, objective)

    return made


@pytest.fixture
def tiny_run(tmp_path: Path, examples: Path) -> TinyRun:
    return TinyRun(tmp_path / "run", examples)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> TinyRun:
    """The finished run with which interrupted ones are compared."""
    run = TinyRun(tmp_path_factory.mktemp("uninterrupted"), examples)
    run.train()
    return run
