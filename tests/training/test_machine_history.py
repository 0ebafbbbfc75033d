"""The log and the checkpoints list the machines that trained a phase, each with the step after which it began."""

import json
from pathlib import Path
from typing import Any

from relm.training.attested_hashes import line_facts, state_sha256
from relm.training.machine.history import extend_history
from tiny_runs import TinyRun

BOX = {"run": {"machine": "box", "log_interval": 1}, "pretrain": {"main": {"steps": 12}}}
DESK = {"run": {**BOX["run"], "machine": "desk"}, "pretrain": BOX["pretrain"]}


def stretch(after_step: int, machine: str | None) -> dict[str, Any]:
    return {"after_step": after_step, "machine": machine}


def log_of(run: TinyRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "main" / "train.jsonl").read_text().splitlines()]


def state_of(run: TinyRun, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "main" / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    return found


def test_a_machine_is_added_where_it_begins() -> None:
    first = extend_history(None, "box")
    assert first == [stretch(0, "box")]
    at = {"step": 400, "machines": first}
    assert extend_history(at, "box") == first
    assert extend_history(at, "desk") == [stretch(0, "box"), stretch(400, "desk")]
    assert extend_history({"step": 0, "machines": first}, "desk") == [stretch(0, "desk")]


def test_a_checkpoint_of_an_earlier_version_was_made_by_the_machine_that_resumes() -> None:
    assert extend_history({"step": 400}, "box") == [stretch(0, "box")]


def test_a_run_without_a_machine_has_one_without_a_name() -> None:
    assert extend_history(None, None) == [stretch(0, None)]


def test_a_second_machine_is_in_the_log_from_its_first_line_on(tiny_run: TinyRun, tmp_path: Path) -> None:
    tiny_run.changes = BOX
    assert tiny_run.attempt(kill_at="checkpoint-renamed:2")[0] != 0
    tiny_run.changes = DESK
    assert tiny_run.attempt()[0] == 0
    both = [stretch(0, "box"), stretch(6, "desk")]
    assert {line["step"]: line["machines"] for line in log_of(tiny_run) if "machines" in line} == {1: both[:1], 7: both}
    assert state_of(tiny_run, 12)["machines"] == both


def test_the_machines_change_no_attested_hash() -> None:
    line = {"step": 1, "loss": 2.0}
    assert line_facts([{**line, "machines": [stretch(0, "box")]}]) == line_facts([line])
    assert state_sha256({**line, "machines": [stretch(0, "box")]}) == state_sha256(line)
