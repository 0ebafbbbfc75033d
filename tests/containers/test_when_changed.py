"""The heavy tests run when something that images are made of changed since they were last green, and say so when not."""

import subprocess
import sys
from pathlib import Path

import pytest
from when_changed import WATCHED, main


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one watched file, and an empty cache."""
    monkeypatch.setenv("RELM_ENVS", str(tmp_path / "cache"))
    (tmp_path / "tree" / "containers").mkdir(parents=True)
    (tmp_path / "tree" / "containers" / "lock.yaml").write_text("{}")
    subprocess.run(["git", "init", "-q", tmp_path / "tree"], check=True)
    return tmp_path / "tree"


def runs(tree: Path, status: int = 0, *options: str) -> bool:
    """Run the command if something changed, check that its status is passed on, and return True if it was run."""
    code = f"open('ran', 'w'); raise SystemExit({status})"
    assert main([*options, "--", sys.executable, "-c", code], tree) in (0, status)
    ran = (tree / "ran").exists()
    (tree / "ran").unlink(missing_ok=True)
    return ran


def test_what_was_green_is_not_run_again_until_something_changes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs(tree)
    assert not runs(tree)
    assert "are as they were when these tests were last green here" in capsys.readouterr().out
    assert runs(tree, 0, "--always")
    (tree / "containers" / "lock.yaml").write_text("images: {}")
    assert runs(tree)
    (tree / "containers" / "new").write_text("")  # what git does not know yet counts as well
    assert runs(tree)
    (tree / "elsewhere").write_text("")
    assert not runs(tree)


def test_what_failed_is_run_again(tree: Path) -> None:
    assert runs(tree, 3)
    assert runs(tree)
    assert not runs(tree)


def test_everything_that_is_watched_exists(checkout: Path) -> None:
    assert [name for name in WATCHED if not (checkout / name).exists()] == []
