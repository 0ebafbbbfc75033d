"""The counters of a device that compiles are on the report page, summed over the processes that trained."""

from typing import Any

from finished_runs import FinishedRun
from relm.artifact import write_json
from relm.plan.products import published_files
from relm.reporting.device import summarise_device
from relm.reporting.publish import publish

FIRST = {
    "after_step": 0,
    "steps": 30,
    "compiles": 2,
    "compile_seconds": 4.5,
    "executions": 31,
    "execute_seconds": 1.5,
    "transfers_to_devices": 95,
    "bytes_to_devices": 3_000_000,
    "transfers_from_devices": 12,
    "bytes_from_devices": 500,
}
SECOND = {**FIRST, "after_step": 30, "steps": 20, "compiles": 1, "execute_seconds": 1.0, "bytes_from_devices": 100}


def write_figures(run: FinishedRun, *processes: dict[str, Any]) -> str:
    """Write `device.json` and the report, and return its text without tags."""
    folder = run.plan.run_folder
    write_json(folder / "main" / "device.json", {"phase": "main", "processes": list(processes)})
    return run.read_page()


def test_figures_are_summed_over_processes_and_divided_by_all_steps() -> None:
    summary = summarise_device([FIRST, SECOND])
    assert summary.steps == 50
    assert {name: (in_all, a_step) for name, in_all, a_step in summary.figures} == {
        "Programs compiled": ("3", ""),
        "Compiling": ("9.0 s", ""),
        "Executions": ("62", "1.24"),
        "Executing": ("2.5 s", "50.0 ms"),
        "Transfers to the devices": ("190", "3.80"),
        "Bytes to the devices": ("6 MB", "120 kB"),
        "Transfers from the devices": ("24", "0.48"),
        "Bytes from the devices": ("600 B", "12 B"),
    }
    assert [row[:2] for row in summary.processes] == [["1 to 30", "2"], ["31 to 50", "1"]]


def test_a_process_that_was_stopped_before_its_first_step_divides_by_nothing() -> None:
    summary = summarise_device([{**FIRST, "steps": 0}])
    assert {a_step for _, _, a_step in summary.figures} == {""}
    assert summary.processes[0][0] == "none from 1 on"


def test_the_figures_are_published_with_the_run_and_absent_from_one_on_another_device(run: FinishedRun) -> None:
    assert "On the device" not in run.read_page()
    assert "device.json" not in published_files(run.plan)
    write_figures(run, FIRST)
    publish(published_files(run.plan), run.plan.results)
    assert (run.plan.results / "device.json").read_text() == (run.plan.run_folder / "main" / "device.json").read_text()
    assert '"device.json"' in (run.plan.results / "ro-crate-metadata.json").read_text()


def test_counters_of_a_device_from_outside_are_shown_by_their_keys() -> None:
    summary = summarise_device([{"after_step": 0, "steps": 30, "batches_copied": 4000}, {"after_step": 30, "steps": 0}])
    assert summary.figures == [("Batches copied", "4,000", "")]
    assert summary.processes == [["1 to 30", "4,000"], ["none from 31 on", "0"]]
