"""Checkpoints and logs of a run that is resumed: a damaged one is skipped with a warning, and training goes on before it."""

from contextlib import closing
from pathlib import Path

import pytest
import torch

from relm.errors import RelmError
from relm.training.checkpoints import IDENTITY, load_checkpoint, save_checkpoint
from relm.training.run_log import RunLog
from relm.training.starting import read_kept_optimizer

SURFACE = "checkpoints"
IDENTITIES = dict.fromkeys(IDENTITY, "a")
CONTENTS = {
    "{}": "{}",
    "[]": "[]",
    "null": "null",
    "1": "1",
    "text": '"x"',
    "empty": "",
    "nested lists": "[" * 100_000,
    "beyond floats": '{"step": 1e999}',
}
LINES = {
    "{}": "{}",
    "[]": "[]",
    "text": '"x"',
    "nested lists": "[" * 100_000,
    "step is text": '{"step": "x"}',
    "half": '{"step',
}
REFUSED = [*CONTENTS]  # where a phase keeps the optimizer of the one before
SURVIVED = [*CONTENTS, *LINES]  # where a run is resumed


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Two checkpoints, after steps 10 and 20."""
    for step in (10, 20):
        state = {"step": step, **IDENTITIES, "loss": 2.0, "seconds": 1.0, "made_on": {"device": "cpu"}}
        save_checkpoint(tmp_path / "checkpoints", state, {"a": torch.ones(2)}, {"b": torch.ones(2)}, keep=2)
    return tmp_path / "checkpoints"


def require_skipped(checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = load_checkpoint(checkpoints, IDENTITIES)
    assert found is not None
    assert found.step == 10
    assert "step-00000020/state.json" in caplog.text
    with pytest.raises(RelmError, match=r"step-00000020/state\.json: damaged; `snakemake --force"):
        read_kept_optimizer(checkpoints / "step-00000020", "a")


def test_the_newest_checkpoint_is_loaded(checkpoints: Path) -> None:
    found = load_checkpoint(checkpoints, IDENTITIES)
    assert found is not None
    assert found.step == 20
    assert list(read_kept_optimizer(found.folder, "a")) == ["b"]


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_damaged_state_is_skipped(content: str, checkpoints: Path, caplog: pytest.LogCaptureFixture) -> None:
    (checkpoints / "step-00000020" / "state.json").write_text(content)
    require_skipped(checkpoints, caplog)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_broken_line_at_the_end_of_a_log_is_removed(line: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    with closing(RunLog(path, 5)):
        assert path.read_text() == '{"step": 1}\n'
