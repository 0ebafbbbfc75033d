"""Tiny runs, see `tiny_runs`, and the examples that they read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_runs import TinyRun, pregenerate_examples, write_examples


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with manifest, shard and tokenizer."""
    return write_examples(tmp_path_factory.mktemp("data") / "examples", seed=0)


@pytest.fixture(scope="session")
def other_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with other documents."""
    return write_examples(tmp_path_factory.mktemp("data") / "other", seed=1)


@pytest.fixture(scope="session")
def examples_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Objective -> a folder with manifest, shard and tokenizer, made once."""
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
    """The finished run that interrupted ones are compared with."""
    run = TinyRun(tmp_path_factory.mktemp("uninterrupted"), examples)
    run.train()
    return run
