import base64
import contextlib
import json
import logging
import os
import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, get_args

import numpy as np
import psutil
import pytest
from packaging.requirements import Requirement
from small_wandb import small_wandb

from relm.errors import RelmError
from relm.recipes.run import Run
from relm.training.loggers import open_loggers
from relm.training.run_log import RunLog

KEY = "secret-marker-" + 40 * "k"
ENCODED_KEY = base64.b64encode(f"api:{KEY}".encode())  # as it is sent
# Takes steps as the loop does: train.jsonl first. Then it may be killed, or its service.
TRAINER = """
import os, signal, sys, time
from pathlib import Path
import psutil
from relm.errors import RelmError
from relm.training import loggers
from relm.training.run_log import RunLog
folder, names, first, last, ending = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
loggers.CLOSE_SECONDS = float(os.environ.get("CLOSE_SECONDS", "60"))
loggers.STOP_SECONDS = float(os.environ.get("STOP_SECONDS", "5"))
children = lambda: psutil.Process().children(recursive=True)
services = lambda: [child for child in children() if child.name() == "wandb-core"]
def wait_for(there):
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return there()
log = RunLog(folder / "train.jsonl", first)
try:
    with loggers.open_loggers(names, folder, "tiny/main", first, {"seed": 7, "model": {"layers": 2}}) as given:
        for step in range(first + 1, last + 1):
            line = {"step": step, "loss": 1 / step, "learning_rate": step / 7, "note": "no number"}
            log.write(line)
            given(line)
        if ending.startswith("signal service"):
            [service] = wait_for(services)
            service.send_signal(int(ending.split()[-1]))
        if ending.startswith("signal process"):
            wait_for(children)[0].send_signal(int(ending.split()[-1]))
        if ending == "fail":
            1 / 0
        if ending.startswith("signal"):
            time.sleep(0.2)
            line = {"step": last + 1, "loss": 0.0}
            log.write(line)
            given(line)
        if ending == "kill":
            if "wandb" in names:
                wait_for(lambda: [*folder.glob("wandb/*run-*/*.wandb")])
                time.sleep(0.5)
            (folder / "pids").write_text(" ".join(str(child.pid) for child in children()))
            os.kill(os.getpid(), signal.SIGKILL)
except RelmError as error:
    print(error)
    sys.exit(error.exit_code)
assert not children()
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the user's settings, and set a temporary home folder and a proxy that reaches no network."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a phase."""
    path = tmp_path / "run" / "main"
    path.mkdir(parents=True)
    return path


def train(folder: Path, names: str, first: int, last: int, ending: str = "end", **environment: str) -> Any:
    """Take the steps after `first` in a separate process."""
    return subprocess.run(
        [sys.executable, "-c", TRAINER, str(folder), names, str(first), str(last), ending],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )


def take_steps(folder: Path, names: list[str], first: int, last: int) -> None:
    """Take the steps after `first` in this process."""
    log = RunLog(folder / "train.jsonl", first)
    with open_loggers(names, folder, "tiny/main", first, {"seed": 7}) as given:
        for step in range(first + 1, last + 1):
            line = {"step": step, "loss": 1 / step, "learning_rate": step / 7}
            log.write(line)
            given(line)
    log.close()


def figures(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return a series for each figure of `train.jsonl`."""
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return {key: [(line["step"], line[key]) for line in lines] for key in ("loss", "learning_rate")}


def in_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return a series for each figure that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def rounded(series: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    """Return the series rounded to float32, as TensorBoard keeps them."""
    return {key: [(step, float(np.float32(value))) for step, value in points] for key, points in series.items()}


def wandb_records(folder: Path) -> list[Any]:
    """Return all records of the one run in `folder`."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    [path] = (folder / "wandb").glob("*run-*/*.wandb")
    store, records = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        records.append(Record.FromString(data))
    return records


def in_wandb(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return a series for each figure of the one run of Weights & Biases."""
    series: dict[str, list[tuple[int, float]]] = {}
    for record in wandb_records(folder):
        if record.HasField("history"):
            row = {
                item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in record.history.item
            }
            for key in row.keys() - {"_step", "_timestamp", "_runtime"}:
                series.setdefault(key, []).append((row["_step"], row[key]))
    return series


def in_trackio(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return a series for each figure of the one run in trackio's database."""
    series: dict[str, list[tuple[int, float]]] = {}
    with contextlib.closing(sqlite3.connect(folder / "trackio" / "relm.db")) as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert {name for name, _, _ in rows} == {"tiny/main"}
    for _, step, figures in rows:
        for key, value in json.loads(figures).items():
            series.setdefault(key, []).append((step, value))
    return series


def files_with_the_key(folder: Path) -> list[Path]:
    """Return the files below `folder` that contain the key, plain or encoded."""
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(contents) >= 4
    return [path for path, content in contents.items() if KEY.encode() in content or ENCODED_KEY in content]


def wait_until_gone(folder: Path) -> None:
    """Wait until the processes that a killed trainer started have ended, too."""
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert pids
    for _ in range(200):
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"one of the processes {pids} outlives the trainer")


def test_nothing_is_imported_or_written_unless_requested(folder: Path) -> None:
    script = """
import sys
from pathlib import Path
from relm.training.loggers import open_loggers
with open_loggers([], Path(sys.argv[1]), "tiny/main", 0, {}) as write:
    write({"step": 1, "loss": 1.0})
print({"wandb", "trackio", "tensorboard", "sentry_sdk", "torch"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script, str(folder)], text=True, capture_output=True, check=True)
    assert (done.stdout, list(folder.iterdir())) == ("set()\n", [])


def test_tensorboard_shows_a_line_as_soon_as_it_is_written(folder: Path) -> None:
    with open_loggers(["tensorboard"], folder, "tiny/main", 0, {}) as write:
        write({"step": 10, "loss": 2.5, "note": "no number"})
        assert in_tensorboard(folder) == {"loss": [(10, 2.5)]}


def test_after_a_kill_tensorboard_shows_each_step_once_as_train_jsonl_has_it(folder: Path) -> None:
    assert train(folder, "tensorboard", 0, 9, "kill").returncode == -9
    [events] = (folder / "tensorboard").iterdir()
    events.write_bytes(events.read_bytes()[:-5])  # a record that was being written
    time.sleep(1.1)  # event files are read in the order of the seconds in their names
    take_steps(folder, ["tensorboard"], 6, 12)
    assert in_tensorboard(folder) == rounded(figures(folder))
    assert [step for step, _ in in_tensorboard(folder)["loss"]] == list(range(1, 13))


def test_tensorboard_gets_the_lines_from_before_it_was_requested(folder: Path) -> None:
    take_steps(folder, [], 0, 5)
    expected = rounded(figures(folder))["loss"][:3]
    RunLog(folder / "train.jsonl", 3).close()
    with open_loggers(["tensorboard"], folder, "tiny/main", 3, {}) as write:
        write({"step": 4, "loss": 7.0})
    assert in_tensorboard(folder)["loss"] == [*expected, (4, 7.0)]


def test_wandb_writes_an_offline_run_with_the_numbers_of_train_jsonl(folder: Path, tmp_path: Path) -> None:
    take_steps(folder, ["wandb"], 0, 5)
    assert in_wandb(folder) == figures(folder)
    [run] = [record.run for record in wandb_records(folder) if record.HasField("run")]
    assert (run.display_name, run.project) == ("tiny/main", "relm")
    assert {item.key: json.loads(item.value_json) for item in run.config.update if item.key != "_wandb"} == {"seed": 7}
    assert not run.host
    assert (run.host, run.HasField("git")) == ("", False)
    assert list((tmp_path / "home").rglob("*")) == []


def test_after_a_kill_wandb_has_one_run_with_each_step_once(folder: Path) -> None:
    assert train(folder, "wandb", 0, 9, "kill").returncode == -9
    wait_until_gone(folder)
    [before] = (folder / "wandb").glob("offline-run-*")
    take_steps(folder, ["wandb"], 6, 12)
    [after] = (folder / "wandb").glob("offline-run-*")
    assert after.name.split("-")[3] == before.name.split("-")[3]
    assert in_wandb(folder) == figures(folder)
    assert [step for step, _ in in_wandb(folder)["loss"]] == list(range(1, 13))


def test_trackio_writes_the_numbers_of_train_jsonl_to_the_disk_only(folder: Path, tmp_path: Path) -> None:
    """Variables that would send the run to a server, or write it elsewhere, have no effect."""
    elsewhere = {
        "TRACKIO_SERVER_URL": "http://127.0.0.1:9",
        "TRACKIO_SPACE_ID": "me/mine",
        "TRACKIO_DIR": str(tmp_path / "other"),
    }
    done = train(folder, "trackio", 0, 5, **elsewhere)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert in_trackio(folder) == figures(folder)
    assert not (tmp_path / "other").exists()
    assert list((tmp_path / "home").rglob("*")) == []
    assert not any(os.uname().nodename.encode() in path.read_bytes() for path in (folder / "trackio").iterdir())


def test_after_a_kill_trackio_has_one_run_with_each_step_once(folder: Path) -> None:
    assert train(folder, "trackio", 0, 9, "kill").returncode == -9
    wait_until_gone(folder)
    done = train(folder, "trackio", 6, 12)
    assert (done.returncode, done.stderr) == (0, "")
    assert in_trackio(folder) == figures(folder)
    assert [step for step, _ in in_trackio(folder)["loss"]] == list(range(1, 13))


def test_a_trackio_that_cannot_write_is_a_warning(folder: Path) -> None:
    (folder / "trackio").write_text("a file where its folder should be")
    done = train(folder, "trackio", 0, 3)
    assert (done.returncode, len(figures(folder)["loss"])) == (0, 3)
    assert done.stderr.startswith("run.loggers: trackio failed (FileExistsError")


def test_both_print_nothing_and_keep_no_key(folder: Path, tmp_path: Path) -> None:
    done = train(folder, "tensorboard,wandb", 0, 3, WANDB_API_KEY=KEY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert in_wandb(folder) == figures(folder)
    assert in_tensorboard(folder) == rounded(figures(folder))
    assert files_with_the_key(tmp_path) == []


def test_a_server_that_is_ahead_of_the_checkpoint_gets_each_step_once_and_no_file_has_the_key(
    folder: Path, tmp_path: Path
) -> None:
    with small_wandb() as server:
        online = {"WANDB_MODE": "online", "WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}
        assert train(folder, "wandb", 0, 9, **online).returncode == 0
        done = train(folder, "wandb", 6, 12, **online)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert [row["_step"] for row in server.rows] == list(range(1, 13))
        assert {key: [(row["_step"], row[key]) for row in server.rows] for key in ("loss", "learning_rate")} == figures(folder)
        assert server.authorisations == {f"Basic {ENCODED_KEY.decode()}"}
    assert files_with_the_key(tmp_path) == []


@pytest.mark.parametrize(
    ("key", "url", "seconds", "said"),
    [
        (KEY, "http://127.0.0.1:9", "2", "wandb did not end within 2 s and was killed; train.jsonl has every line"),
        ("secret marker", "http://127.0.0.1:9", "60", "wandb failed (AuthenticationError: WANDB_API_KEY invalid"),
    ],
    ids=["no answer", "a wrong key"],
)
def test_a_run_that_cannot_begin_is_a_warning_that_does_not_repeat_the_key(
    key: str, url: str, seconds: str, said: str, folder: Path
) -> None:
    done = train(folder, "wandb", 0, 3, WANDB_MODE="online", WANDB_API_KEY=key, WANDB_BASE_URL=url, CLOSE_SECONDS=seconds)
    assert (done.returncode, said in done.stderr) == (0, True), done.stderr
    assert len((folder / "train.jsonl").read_text().splitlines()) == 3
    assert key not in done.stdout + done.stderr


@pytest.mark.parametrize(("mode", "message"), [("online", "WANDB_API_KEY is not set"), ("on", "is on, expected offline")])
def test_a_missing_key_or_an_unknown_mode_is_an_error_before_the_start(
    mode: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    with pytest.raises(RelmError, match=message), open_loggers(["wandb"], folder, "tiny/main", 0, {}):
        pass
    assert list(folder.iterdir()) == []


def test_wandb_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    take_steps(folder, ["wandb"], 0, 2)
    assert [path.name for path in folder.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        *(("wandb", f"signal {receiver} {number}") for receiver in ("service", "process") for number in (9, 19)),
        *(("trackio", f"signal process {number}") for number in (9, 19)),
    ],
)
def test_a_service_or_process_that_dies_or_hangs_does_not_stop_training(name: str, ending: str, folder: Path) -> None:
    done = train(folder, name, 0, 3, ending, CLOSE_SECONDS="1")
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1), done.stderr
    assert done.stderr.startswith(f"run.loggers: {name} ")


def test_a_pulled_run_id_that_is_a_path_is_refused_and_deletes_nothing(folder: Path) -> None:
    outside = folder.parent / "offline-run-1-other"
    for path in (outside, folder / "wandb" / "offline-run-2-other"):
        path.mkdir(parents=True)
    (folder / "wandb" / "run_id").write_text("/../../*")
    done = train(folder, "wandb", 0, 3)
    assert (done.returncode, "wandb failed (UsageError: Run ID cannot contain" in done.stderr) == (0, True), done.stderr
    assert outside.exists()
    assert (folder / "wandb" / "offline-run-2-other").exists()


def test_a_run_that_fails_waits_briefly_for_wandb(folder: Path) -> None:
    done = train(folder, "wandb", 0, 3, "fail", STOP_SECONDS="0.01")
    assert "wandb did not end within 0.01 s" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_an_absent_package_is_named_with_what_installs_it(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RelmError, match=rf"run.loggers: {name} is not installed here; install relm's extra `loggers`"):
        take_steps(folder, [name], 0, 1)
    assert figures(folder)["loss"] == []
    monkeypatch.setenv("RELM_IMAGE_ROLE", "tpu")
    with pytest.raises(
        RelmError, match=rf"{name} is not installed here; build the image with them: make images ROLES=tpu LOGGERS"
    ):
        take_steps(folder, [name], 0, 1)


def test_the_extra_names_the_loggers_that_a_recipe_can_request_as_they_are_locked(checkout: Path) -> None:
    extra = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["optional-dependencies"]["loggers"]
    assert [line for line in (checkout / "envs/loggers.in").read_text().splitlines() if line[0] not in "#-"] == extra
    (requestable,) = get_args(Run.model_fields["loggers"].annotation)
    assert {Requirement(line).name for line in extra} == set(get_args(requestable))


def test_a_tensorboard_that_fails_is_dropped_with_one_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tensorboard").write_text("a file where its folder should be")
    with caplog.at_level(logging.WARNING):
        take_steps(folder, ["tensorboard"], 0, 3)
    assert len(figures(folder)["loss"]) == 3
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("run.loggers: tensorboard failed (FileExistsError: ")
    assert message.endswith("; training continues without it")


def test_a_full_disk_ends_tensorboard_and_not_the_run(folder: Path) -> None:
    script = """
import resource, signal, sys
from pathlib import Path
from relm.training.loggers import open_loggers
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open_loggers(["tensorboard"], Path(sys.argv[1]), "tiny/main", 0, {}) as write:
    write({"step": 1, "loss": 1.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    for step in range(2, 50):
        write({"step": step, "loss": 1.0})
print("done")
"""
    done = subprocess.run([sys.executable, "-c", script, str(folder)], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("run.loggers: tensorboard failed (OSError: [Errno 27] File too large") == 1
