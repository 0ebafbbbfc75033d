"""`relm accept`: a sound device passes, a fault planted into each check is found, and an interruption leaves nothing behind."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from relm.cli import main
from relm.errors import RelmError
from relm.forecast.acceptance import acceptance, worker
from relm.forecast.acceptance.acceptance import LIMITS, accept, conclude, describe_entry
from relm.forecast.acceptance.check_run import CheckResult, CheckRun, hide_names, temporary_folder
from relm.recipes.declaration import EXTENSIONS, load_extensions
from relm.recipes.project import Project
from relm.recipes.section import parse_yaml
from small_project import CHECKOUT
from tiny_runs import FORKS

sys.path.insert(0, str(CHECKOUT / "docs"))
from where_it_ran import Rows

FOLDER = Path(__file__).parent


class ForkedCheckRun(CheckRun):
    """A run whose processes are forked from this one, in which everything is imported."""

    def run_python(self, words: Sequence[str], environment: Mapping[str, str] = {}) -> tuple[int, str]:
        log = self.new_path("stderr.txt")
        process = multiprocessing.get_context("fork").Process(target=_run, args=(list(words), dict(environment), log))
        process.start()
        process.join(200)
        process.kill()
        process.join()
        assert process.exitcode is not None
        return process.exitcode, log.read_text()


def _run(words: list[str], environment: dict[str, str], log: Path) -> None:
    os.environ.update(environment)
    redirect_output(log)
    sys.exit(main(words[2:]) if words[1] == "relm" else worker.main(Path(words[2]), Path(words[3])))


def redirect_output(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def accept_quickstart(device: str, folder: Path, check: str) -> None:
    """Accept a faulty device by one check, or by all."""
    os.chdir(CHECKOUT)
    sys.path.append(str(FOLDER))
    os.environ |= {"RELM_WORK": str(folder / "work"), EXTENSIONS: "faulty_devices", "OMP_NUM_THREADS": "1"}
    load_extensions()
    redirect_output(folder / "printed.txt")
    run_check = CheckRun.run_check

    def run_chosen(self: CheckRun, name: str, *arguments: Any) -> None:
        if check in ("", name):
            run_check(self, name, *arguments)

    acceptance.CheckRun, ForkedCheckRun.run_check = ForkedCheckRun, run_chosen  # type: ignore[misc, method-assign]
    with contextlib.suppress(RelmError):
        accept(Project(), device, ["quickstart"], full=False, output=folder / "accept.json")


def findings_of(device: str, folder: Path, check: str = "") -> list[dict[str, Any]]:
    """Return the results of a faulty device, which is registered in another process."""
    process = FORKS.Process(target=accept_quickstart, args=(device, folder, check))
    process.start()
    process.join(500)
    process.kill()
    return json.loads((folder / "accept.json").read_text())["results"]  # type: ignore[no-any-return]


def test_a_sound_device_passes_every_check(tmp_path: Path) -> None:
    results = findings_of("sound", tmp_path)
    assert [(found["check"], found["outcome"]) for found in results] == [(check, "passed") for check in LIMITS]
    content = json.loads((tmp_path / "accept.json").read_text())
    rows = Rows.model_validate(parse_yaml((tmp_path / "accept.yaml").read_text(), tmp_path)).root
    ((heading, (row,)),) = rows.items()
    assert (heading, row.state, row.where.startswith("A sound device")) == ("CPU", "ran", True)
    assert content["entry"] == (tmp_path / "accept.yaml").read_text()
    text = json.dumps(content)
    assert socket.gethostname() not in text
    assert str(tmp_path) not in text
    assert list((tmp_path / "work" / "accept").iterdir()) == []


@pytest.mark.parametrize(
    ("check", "device", "words"),
    [
        ("losses", "wrong_input", "tolerance 1e-05"),
        ("formats", "constant_input", "tolerance 0.03"),
        ("resume", "counting", "other bytes than the first run: weights, optimizer, log"),
        ("determinism", "random", "other bytes than the first run: weights, optimizer, log"),
        ("evaluation", "wrong_weights", "figures of perplexity differ"),
        ("speed", "without_memory", "reports 0 bytes of memory"),
    ],
)
def test_a_planted_fault_is_found(check: str, device: str, words: str, tmp_path: Path) -> None:
    (found,) = findings_of(device, tmp_path, check)
    assert (found["check"], found["outcome"]) == (check, "failed"), found
    assert words in found["sentence"]


BAD = [
    (["--device", "warp"], 2, "invalid choice: 'warp'"),
    (["--device", "tpu"], 1, "--device tpu: torch_xla is not installed"),
    (["--device", "ipu"], 1, "--device ipu: Graphcore's SDK is not enabled"),
    (["--device", "cuda"], 1, "--device cuda: torch"),
    ([], 1, "no accelerator found; --device cpu tries the checks"),
    (["no_such_recipe", "--device", "cpu"], 1, "no_such_recipe"),
    (["quickstart", "--device", "ipu_simulator"], 1, "quickstart: has no pipeline"),
    (["quickstart@no_such_machine", "--device", "cpu"], 1, "no_such_machine"),
    (["--device", "cpu", "--output", "absent/accept.json"], 1, "cannot write in absent: No such file"),
    (["--device", "cpu", "--output", "folder.json"], 1, "folder.json is a folder"),
    (["--device", "cpu", "--output", "pipe.json"], 1, "is a named pipe"),
    (["--device", "cpu", "--output", "accept.txt"], 1, "expected a name that ends with .json"),
    (["--device", "cpu", "--output", "/proc/accept.json"], 1, "cannot write in /proc"),
]


@pytest.mark.parametrize(("words", "status", "message"), BAD, ids=[" ".join(words) or "nothing" for words, *_ in BAD])
def test_a_request_that_cannot_be_met_is_refused_before_any_check(
    words: list[str], status: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for variable in ("PJRT_DEVICE", "POPLAR_SDK_ENABLED", "RELM_IPU_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    if ("cuda" in words or not words) and os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    (tmp_path / "recipes").symlink_to(CHECKOUT / "recipes")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"^{status}$"):
        sys.exit(main(["accept", *words]))
    printed = capsys.readouterr()
    assert message in printed.err
    assert "accepting" not in printed.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.json", "pipe.json", "recipes"]


def test_a_command_outside_a_checkout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["accept", "--device", "cpu"]) == 1
    assert "no folder recipes/" in capsys.readouterr().err


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_call_leaves_the_old_file_and_no_process(kill: signal.Signals, tmp_path: Path) -> None:
    output, work = tmp_path / "accept.json", tmp_path / "work"
    output.write_text("earlier")
    command = [sys.executable, "-m", "relm", "accept", "quickstart", "--device", "cpu", "--output", str(output)]
    environment = {**os.environ, "RELM_WORK": str(work), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: any(work.glob("accept/*/*-request.json")))
    process.send_signal(kill)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (-kill if kill == signal.SIGKILL else 130), stderr
    assert (kill == signal.SIGKILL) == any((work / "accept").iterdir())
    assert (output.read_text(), output.with_suffix(".yaml").exists()) == ("earlier", False)
    wait_for(lambda: not _processes_in(work))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELM_WORK", str(work))
        with temporary_folder() as folder:
            assert list(folder.parent.iterdir()) == [folder]


def _processes_in(work: Path) -> Iterator[int] | list[int]:
    """Return the processes whose command names the work folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(work).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def result(check: str, outcome: Any, **figures: Any) -> CheckResult:
    return CheckResult(check, "quickstart", outcome, "1,000 tokens/s", 1.0, figures)


def test_a_failure_or_nothing_but_skipped_checks_is_not_accepted() -> None:
    passed, skipped = result("losses", "passed"), result("speed", "skipped")
    assert conclude([passed, skipped], Path("a.json")).startswith("accepted: 1 passed, 0 failed, 1 skipped")
    for results in ([skipped], [passed, result("resume", "failed")], []):
        with pytest.raises(RelmError, match="NOT accepted"):
            conclude(results, Path("a.json"))


def test_a_check_without_time_left_skips_the_other_recipes(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = CheckRun("cpu", tmp_path, full=False)
    run.run_check("losses", 1, ["first", "second"], lambda run, name: (time.sleep(0.6) or name, {}))
    assert [found.outcome for found in run.results] == ["passed", "skipped"]
    assert capsys.readouterr().out.startswith("passed   losses       first: first (1 s)\nskipped  losses")


def test_a_process_that_never_ends_is_killed(tmp_path: Path) -> None:
    run = CheckRun("cpu", tmp_path, full=False)
    run.run_check("losses", 1, ["one"], lambda run, name: run.run_python(["-c", "import time; time.sleep(99)"]))  # type: ignore[arg-type, return-value]
    assert [(found.outcome, found.sentence) for found in run.results] == [
        ("failed", "the process did not end within the time of this check, and was killed")
    ]


def test_names_of_host_and_user_are_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "kapok-7")
    monkeypatch.setenv("LOGNAME", "mirela")
    text = f"mirela on kapok-7: /home/mirela/x, {tmp_path}/accept/12-abc/003-own/train.jsonl"
    assert hide_names({"a": [text]}) == {"a": ["USER on HOST: /home/USER/x, 003-own/train.jsonl"]}


@pytest.mark.parametrize(("device", "heading", "of"), [("ipu_simulator", "IPU", "ipu"), ("cuda", "GPU", "cuda")])
def test_the_entry_fits_the_page(device: str, heading: str, of: str) -> None:
    facts = {"stand_in": device == "ipu_simulator", "made_on": {"name": "N", "torch": "2"}, "commit": None}
    entry = describe_entry(device, facts, [result("losses", "passed"), result("speed", "passed", tokens_per_second=1)])
    content = parse_yaml(entry, Path("entry"))
    content[heading][0] |= {"date": "2026-11-29", "commit": "0123456"}
    row = Rows.model_validate(content).root[heading][0]
    assert (row.device, row.state) == (of, "stand_in" if of == "ipu" else "ran")
    assert "1,000 tokens/s" in (row.note or "")


@pytest.mark.full
def test_the_simulator_of_ipus_passes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relm", "accept", "bert_tiny_ipu", "--device", "ipu_simulator"]
    environment = {**os.environ, "RELM_WORK": str(tmp_path / "work")}
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "a.json")], cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE
    )
    found = json.loads((tmp_path / "a.json").read_text())["results"]
    assert done.returncode == 0, done.stdout
    assert [row["outcome"] for row in found] == ["passed"] * 5 + ["skipped"]
