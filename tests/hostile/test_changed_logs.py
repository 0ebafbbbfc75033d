"""Logs that were changed next to their checkpoints: a run does not resume with them unless somebody accepts that."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from relm.errors import RelmError
from relm.recipes.run_folder import CHECKPOINTS, LOG, acceptance_of
from relm.training.checkpoint_state import read_state, write_state
from relm.training.checkpoints import IDENTITY, load_checkpoint, open_list, save_checkpoint
from relm.training.run_log import RunLog

SURFACE = "logs of training"
IDENTITIES = dict.fromkeys(IDENTITY, "a")
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "a figure edited": lambda content: content.replace(b"1", b"3", 1),
    "half a line cut off": lambda content: content[:-20],
    "the last line cut off": lambda content: b"".join(content.splitlines(keepends=True)[:-1]),
    "the first line cut off": lambda content: b"".join(content.splitlines(keepends=True)[1:]),
    "lines swapped": lambda content: b"".join(reversed(content.splitlines(keepends=True))),
    "a line twice": lambda content: content.splitlines(keepends=True)[0] + content,
    "of another run": lambda content: content.replace(b'"loss": 2.0', b'"loss": 2.5').replace(b'"cpu"', b'"tpu"'),
}
REFUSED = [(name, change) for name in (LOG, CHECKPOINTS) for change in (*CHANGES, "deleted")]
SURVIVED = ["later lines", "a line of an earlier step at the end", "half a line at the end"]
ATTEMPTS = pytest.mark.parametrize(("name", "change"), REFUSED, ids=[f"{name}: {change}" for name, change in REFUSED])


@dataclasses.dataclass
class Run:
    """A phase with two checkpoints, whose logs have lines of later steps as well."""

    folder: Path

    def save(self, log: RunLog, checkpoint_list: RunLog, step: int) -> None:
        log.write({"step": step, "loss": 2.0, "seconds": 0.5})
        state = {"step": step, **IDENTITIES, "loss": 2.0, "seconds": 1.0, "made_on": {"device": "cpu"}}
        tensors = {"a": torch.ones(2)}, {"b": torch.ones(2)}
        save_checkpoint(self.folder / "checkpoints", state, *tensors, 3, log=log.facts(), checkpoint_list=checkpoint_list)

    def train(self, *steps: int) -> None:
        """Resume from the newest checkpoint, as the loop does."""
        found = load_checkpoint(self.folder / "checkpoints", IDENTITIES)
        after, logs = (found.step, found.state["logs"]) if found else (0, {})
        with (
            closing(RunLog(self.folder / LOG, after, logs.get(LOG))) as log,
            closing(open_list(self.folder / "checkpoints", after, logs.get(CHECKPOINTS))) as checkpoint_list,
        ):
            for step in steps:
                self.save(log, checkpoint_list, step)

    def steps(self, name: str) -> list[int]:
        return [json.loads(line)["step"] for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path)
    made.train(10, 20)
    return made


def change_log(run: Run, name: str, change: str) -> None:
    path = run.folder / name
    if change == "deleted":
        path.unlink()
        return
    content = path.read_bytes()
    path.write_bytes(CHANGES[change](content))
    assert path.read_bytes() != content


def test_unchanged_logs_are_continued(run: Run) -> None:
    run.train(30)
    assert run.steps(LOG) == run.steps(CHECKPOINTS) == [10, 20, 30]


@ATTEMPTS
def test_a_changed_log_is_refused_by_name(name: str, change: str, run: Run) -> None:
    change_log(run, name, change)
    with pytest.raises(RelmError, match=rf"{name}: .*, but state.json of step 20 attests .* Restore it, or create"):
        run.train(30)


@ATTEMPTS
def test_one_that_somebody_accepts_is_continued_with_a_warning_until_a_checkpoint_attests_it(
    name: str, change: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    change_log(run, name, change)
    acceptance_of(run.folder / name).touch()
    run.train(30)
    assert f"{name}: " in caplog.text
    assert "resuming with the lines that it has" in caplog.text
    assert not acceptance_of(run.folder / name).exists()
    caplog.clear()
    run.train(40)
    assert not caplog.text
    assert run.steps(name)[-2:] == [30, 40]


@pytest.mark.parametrize("added", ['{"step": 27}\n', '{"step": 27}\n{"step": 5}\n', '{"step": 27}\n{"st'], ids=SURVIVED)
@pytest.mark.parametrize("name", [LOG, CHECKPOINTS])
def test_what_follows_the_attested_lines_is_removed(name: str, added: str, run: Run) -> None:
    with open(run.folder / name, "a") as file:
        file.write(added)
    run.train(30)
    assert run.steps(name) == [10, 20, 30]


def test_an_older_checkpoint_attests_the_lines_up_to_its_own_step(run: Run) -> None:
    (run.folder / "checkpoints/step-00000020/model.safetensors").unlink()
    run.train(20)
    assert run.steps(LOG) == run.steps(CHECKPOINTS) == [10, 20]


@pytest.mark.parametrize("name", [LOG, CHECKPOINTS])
def test_a_change_while_training_is_noticed_by_the_next_attempt(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    with closing(RunLog(tmp_path / LOG, 0)) as log, closing(open_list(tmp_path / "checkpoints", 0)) as checkpoint_list:
        run.save(log, checkpoint_list, 10)
        change_log(run, name, "a figure edited")
        run.save(log, checkpoint_list, 20)
    with pytest.raises(RelmError, match=rf"{name}: its first [0-9,]+ bytes have sha256"):
        run.train(30)


def test_a_checkpoint_of_an_earlier_version_attests_no_logs(run: Run) -> None:
    checkpoint = run.folder / "checkpoints/step-00000020"
    state = read_state(checkpoint)
    del state["logs"]
    write_state(checkpoint, state)
    found = load_checkpoint(run.folder / "checkpoints", IDENTITIES)
    assert found is not None
    with closing(RunLog(run.folder / LOG, found.step, found.state.get("logs"))) as log:
        log.write({"step": 30})
    assert run.steps(LOG) == [10, 20, 30]


def test_the_logs_change_no_attested_hash(run: Run, tmp_path: Path) -> None:
    other = Run(tmp_path / "other")
    with closing(RunLog(other.folder / LOG, 0)) as log, closing(open_list(other.folder / "checkpoints", 0)) as checkpoint_list:
        log.write({"step": 1, "seconds": 7.25})
        for step in (10, 20):
            other.save(log, checkpoint_list, step)
    lines = [json.loads((each.folder / CHECKPOINTS).read_text().splitlines()[1]) for each in (run, other)]
    assert lines[0] == lines[1]
    shutil.copy(other.folder / LOG, run.folder / LOG)
    with pytest.raises(RelmError, match=r"train\.jsonl"):
        run.train(30)
