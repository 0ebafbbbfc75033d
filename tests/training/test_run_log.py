import errno
import json
import os
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.training.run_log import RunLog


def test_lines_are_readable_as_soon_as_they_are_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "phase" / "train.jsonl", 0)
    log.write({"step": 1, "loss": 5.5})
    assert json.loads((tmp_path / "phase" / "train.jsonl").read_text()) == {"step": 1, "loss": 5.5}
    log.close()


def test_opening_removes_later_and_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\nnoise\n{"step": 3}\n{"step": 2')
    log = RunLog(path, 2)
    log.write({"step": 3, "again": True})
    log.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "again": true}\n'


def test_a_whole_log_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"step": 1}\n')
    os.utime(path, ns=(1, 1))
    before = path.stat()
    RunLog(path, 1).close()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4])
def test_opening_keeps_exactly_the_steps_up_to_the_given_one(tmp_path: Path, step: int) -> None:
    lines = ['{"step": 1, "text": "a\\nb"}\n', '{"step": 3}\n', '{"step": 4}\n']
    path = tmp_path / "train.jsonl"
    path.write_text("".join(lines))
    RunLog(path, step).close()
    assert path.read_text() == "".join(line for line in lines if json.loads(line)["step"] <= step)


def test_kept_lines_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relm.training import run_log

    path, read = tmp_path / "train.jsonl", []
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1, 1001)))
    is_of = run_log._is_of
    monkeypatch.setattr(run_log, "_is_of", lambda line, step: read.append(line) or is_of(line, step))
    RunLog(path, 998).close()
    assert len(read) == 3
    assert path.read_text().endswith('{"step": 998}\n')


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").symlink_to("/dev/full")
    log = RunLog(tmp_path / "train.jsonl", 0)
    with pytest.raises(
        RelmError, match=rf"train.jsonl: cannot be written: {os.strerror(errno.ENOSPC)}. Checkpoints are intact"
    ):
        log.write({"step": 1})
    log.close()
