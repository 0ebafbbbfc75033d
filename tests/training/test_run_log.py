import json
from pathlib import Path

from relm.training.run_log import RunLog


def test_lines_are_readable_as_soon_as_they_are_written(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "phase" / "train.jsonl", 0)
    log.write({"step": 1, "loss": 5.5})
    assert json.loads((tmp_path / "phase" / "train.jsonl").read_text()) == {"step": 1, "loss": 5.5}
    log.close()


def test_opening_takes_away_what_lies_beyond_the_step_and_what_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\nnoise\n{"step": 3}\n{"step": 2')
    log = RunLog(path, 2)
    log.write({"step": 3, "again": True})
    log.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "again": true}\n'


def test_a_whole_log_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"step": 1}\n')
    before = path.stat().st_ino
    RunLog(path, 1).close()
    assert path.stat().st_ino == before
