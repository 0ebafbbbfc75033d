"""Files that fine-tuning writes for one seed and reads again for the next: a changed one is rejected, or made again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from question_files import SAMPLE
from relm.cli import main
from tiny_encoders import TINY, write_model

SURFACE = "fine-tuning files"
LENGTHS = ["--sequence-length", "48", "--doc-stride", "16", "--max-query-length", "12"]
WORDS = [*LENGTHS, "--batch-size", "4", "--epochs", "1", "--seeds", "2", "--threads", "1"]


def change_digit(path: Path) -> None:
    text = path.read_text()
    at = next(place for place, letter in enumerate(text) if letter.isdigit() and text[place - 1] in " .")
    path.write_text(f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}")


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def take_other_seeds(path: Path) -> None:
    shutil.copy(path.parent.parent / "seed-1" / path.name, path)


def raise_figure(path: Path) -> None:
    found = json.loads(path.read_text())
    found["figures"]["exact_match"] = 0.9
    path.write_text(json.dumps(found))


def write_without_hash(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text())["figures"]))


FIGURES, ANSWERS = "seed-0/figures.json", "seed-0/predictions.json"
EXAMPLES = ("examples/train.arrow", "examples/train.arrow.json", "examples/manifest.json")
DAMAGES = (change_digit, flip_bit, cut, empty, Path.unlink)
REFUSED = [
    *((FIGURES, damage) for damage in (raise_figure, write_without_hash, *DAMAGES[:-1])),
    *((ANSWERS, damage) for damage in (take_other_seeds, *DAMAGES[1:])),
]
# Made again.
SURVIVED = [
    (FIGURES, Path.unlink),
    *((EXAMPLES[0], damage) for damage in DAMAGES[1:]),
    *((name, damage) for name in EXAMPLES[1:] for damage in DAMAGES),
]


def identify(value: object) -> str | None:
    return value.__name__ if callable(value) else None


def squad(model: Path, folder: Path) -> int:
    files = ["--train", str(SAMPLE), "--dev", str(SAMPLE), "--output", str(folder / "squad11.json")]
    return main(["squad", "--model", str(model), *files, *WORDS])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT."""
    return write_model(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an evaluation of two seeds that has ended."""
    folder = tmp_path_factory.mktemp("finished")
    assert squad(model, folder) == 0
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of it without the figures of all seeds."""
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "squad11.json").unlink()
    return folder


def damaged(copied: Path, name: str, damage: Callable[[Path], None]) -> Path:
    (runs,) = (copied / "squad11").glob("*/")
    damage(runs / name)
    return runs / name


@pytest.mark.parametrize(("name", "damage"), REFUSED, ids=identify)
def test_a_changed_file_of_a_seed_is_refused(
    name: str, damage: Callable[[Path], None], copied: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = damaged(copied, name, damage)
    assert squad(model, copied) == 1
    error = capsys.readouterr().err
    assert path.name in error
    assert "delete" in error
    assert not (copied / "squad11.json").exists()


@pytest.mark.parametrize(("name", "damage"), SURVIVED, ids=identify)
def test_a_file_that_can_be_made_again_is(
    name: str, damage: Callable[[Path], None], copied: Path, finished: Path, model: Path
) -> None:
    path = damaged(copied, name, damage)
    assert squad(model, copied) == 0
    assert (copied / "squad11.json").read_bytes() == (finished / "squad11.json").read_bytes()
    assert path.read_bytes() == (finished / path.relative_to(copied)).read_bytes()
