"""The terminal of Snakemake: one line a job, the outcome or an error's sentence last and once."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from relm.progress import ProgressBar, print_into_log, progress_file
from relm.recipes.project import Project
from relm.reporting.headline import describe_outcome
from relm.terminal.dry_run import PlannedJob, format_plan
from relm.terminal.faults import find_sentence, note_fault, read_last_words
from relm.terminal.job_lines import JobLine
from relm.terminal.screen import Screen
from small_project import Commands

TIME = "2026-11-23T18:30:53+00:00 "


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def render(written: str) -> list[str]:
    """Return the lines that a terminal shows after what was written to it."""
    lines, row = [""], 0
    for part in re.split(r"(\x1b\[\d*[FJ]|\r?\n)", written):
        if part.endswith("F"):
            row -= int(part[2:-1])
        elif part == "\x1b[J":
            lines[row:] = [""]
        elif part in ("\n", "\r\n"):
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] += part
    return lines


def test_lines_that_change_are_below_those_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    screen = Screen(stream)
    screen.write("first", ["a  1 %", "b" * 50])
    screen.write("", ["a  2 %"])
    screen.write("second", ["a  3 %"])
    assert render(stream.getvalue()) == ["first", "second", "a  3 %", ""]
    screen.write("third")
    assert render(stream.getvalue()) == ["first", "second", "third", ""]
    assert "b" * 29 + "\n" in stream.getvalue(), "it is not wrapped"


def test_a_file_has_only_lines_that_stay() -> None:
    stream = io.StringIO()
    Screen(stream).write("first", ["a  1 %"])
    assert stream.getvalue() == "first\n"


def test_a_running_job_shows_its_share_rate_and_remaining_time(tmp_path: Path) -> None:
    log = tmp_path / "main.log"
    line = JobLine("[6/11]", "pretrain main", log)
    assert re.fullmatch(r"\[6/11\] pretrain main  0:0\d", line.describe_progress())
    report = {"share": 0.378, "text": "loss 3.91  13,884 tokens/s", "seconds_left": 201}
    progress_file(log).write_text(json.dumps(report))
    assert line.describe_progress() == "[6/11] pretrain main  38 %  loss 3.91  13,884 tokens/s  3:21 left"
    line.forget_progress()
    log.write_text(f"warned of something\n{TIME}pretrain: trained phase main: 20 steps\n")
    assert line.describe_end().endswith("  trained phase main: 20 steps")
    assert len(line.describe_end(width=40)) == 40


def test_a_bar_reports_into_the_file_of_the_job(tmp_path: Path) -> None:
    """Run in a separate process: what it prints goes into the log from then on."""
    log = tmp_path / "logs" / "a.log"
    child = os.fork()
    if child == 0:
        print_into_log(log)
        bar = ProgressBar(total=10, unit=" texts", disable=None)
        bar.update(4)
        bar.set_postfix_str("loss 3.91")
        print("printed", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(progress_file(log).read_text()) | {"seconds_left": 0} == {
        "share": 0.4,
        "text": "loss 3.91",
        "seconds_left": 0,
    }
    assert log.read_text() == "printed\n"


def test_the_sentence_of_an_error_is_without_frames() -> None:
    framed = (
        'InputFunctionException in rule verify in file "/x/report.smk", line 5:\nError:\n  WorkflowError:\n'
        "    recipes/a.yaml: 1 error\n      model.layrs: unknown key\nWildcards:\n    recipe=a\nTraceback:\n"
        '  File "/x/runs.py", line 7, in judged'
    )
    assert find_sentence(framed) == "recipes/a.yaml: 1 error\nmodel.layrs: unknown key"
    note_fault("recipes/a.yaml: 1 error\n      model.layrs: unknown key")
    assert find_sentence(framed) == "recipes/a.yaml: 1 error\n      model.layrs: unknown key"


def test_the_last_words_of_a_step_are_its_sentence_or_its_unexpected_error(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert read_last_words(log) == ""
    log.write_text(f"{TIME}evaluate: an earlier line\nnoise\n{TIME}relm evaluate: two\n  lines\n")
    assert read_last_words(log) == "relm evaluate: two\n  lines"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: "x"\n')
    assert read_last_words(log) == f'an unexpected error, KeyError: "x"; its traceback is in {log}'


def test_many_jobs_of_one_step_take_one_row_of_a_dry_run() -> None:
    jobs = [PlannedJob(f"extract {number:02}.bz2", "Missing output files: a") for number in range(50)]
    jobs.append(PlannedJob("publish", "Input files updated by another job: b"))
    assert format_plan(jobs).splitlines() == [
        "51 jobs would run:",
        "  extract: 50 jobs, from 00.bz2 to 49.bz2  not made yet",
        "  publish                                  its input is made again",
    ]


def test_the_outcome_has_the_verdict_the_figure_and_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    (folder / "eval").mkdir(parents=True)
    assert describe_outcome(folder) == ""
    (folder / "verify.json").write_text(json.dumps({"verdict": "no published figure", "sentence": "None.", "rows": []}))
    figures = {"nats_per_token": 3.7455, "bigram_nats_per_token": 4.1769}
    (folder / "eval" / "held_out.json").write_text(json.dumps({"task": "held_out", "figures": figures}))
    page = folder / "report.html"
    reached = "on held-out documents: 3.7455 nats per token, against 4.1769 for bigram counts"
    assert describe_outcome(folder) == f"{folder}: {reached}; open {page}"
    numbers = {"ours": 3.0, "published": 3.0, "tolerance": 0.1}
    row = {"metric": "held_out.nats_per_token", "place": "table 1", **numbers, "verdict": "consistent", "sentence": "Equal."}
    verdict = {"verdict": "consistent", "sentence": "Of 2 published figures: 2 consistent.", "rows": [row, row]}
    (folder / "verify.json").write_text(json.dumps(verdict))
    assert describe_outcome(folder).startswith(f"{folder}: verdict consistent: Of 2 published figures: 2 consistent; {reached}")


def test_a_file_has_a_line_at_each_begin_and_end_and_the_error_last_and_once(project: Commands) -> None:
    dump = project.folder / "mirror" / "sample.xml"
    extract = str(Project(project.folder).plan("tiny").document_files[0])
    dump.write_bytes(dump.read_bytes().replace(b"padding", b"Padding", 1))
    done = project.snakemake(extract)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "[1/2] download sample.xml: started"
    assert re.fullmatch(r"\[1/2\] download sample\.xml  failed after \d:\d\d; its log is work/logs/download/.*\.log", lines[1])
    assert lines[2].startswith("download sample.xml: ")
    assert done.stdout.count("To provide it by hand") == lines[-1].count("To provide it by hand") == 1
    assert not re.search(r"Traceback|RuleException|WorkflowError|message: None|\r|\x1b", done.stdout)
    assert not list(project.folder.rglob("*.progress"))
    (log,) = (project.folder / ".snakemake" / "log").glob("*.log")
    assert "rule download_data:" in log.read_text(), "the log file keeps everything"
    assert "python -m relm download" in log.read_text()


def test_ctrl_c_says_what_was_saved_and_ends_with_130(finished_copy: Commands) -> None:
    """Once and a second time, on a terminal."""
    recipe = finished_copy.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 100000"))
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        finished_copy.command("results/tiny"),
        cwd=finished_copy.folder,
        env={**finished_copy.environment, "TERM": "xterm", "COLUMNS": "200"},
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
    )
    os.close(end)
    shown, asked = "", 0
    while chunk := _read(terminal):
        shown += chunk
        if (re.search(r"pretrain main  \d+ %", shown) and not asked) or ("stopping; the running steps" in shown and asked == 1):
            process.send_signal(signal.SIGINT)
            asked += 1
    assert process.wait(timeout=60) == 130, shown
    last = [line for line in render(shown) if line][-1]
    assert re.search(
        r"pretrain main: stopped by Ctrl-C after step [\d,]+ of 100,000, saved in .*; the same command resumes", last
    )
    assert "Traceback" not in shown
    assert list(finished_copy.folder.glob("work/runs/tiny/*/main/checkpoints/step-*"))


@pytest.mark.parametrize(
    ("number", "sender"),
    [
        pytest.param(signal.SIGINT, "Ctrl-C", id="INT"),
        pytest.param(signal.SIGTERM, "SIGTERM", marks=pytest.mark.full, id="TERM"),
    ],
)
def test_a_step_that_is_stopped_while_it_imports_its_libraries_was_not_killed_for_lack_of_memory(
    finished_copy: Commands, number: signal.Signals, sender: str
) -> None:
    recipe = finished_copy.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 100000"))
    process = finished_copy.start("results/tiny")
    main = psutil.Process(process.pid)
    while not any("relm pretrain" in " ".join(command_of(child)) for child in main.children(recursive=True)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    process.wait(timeout=60)
    shown = (finished_copy.folder / "snakemake.out").read_text()
    assert f"pretrain main: stopped by {sender} before it had anything new to save; the same command continues" in shown
    assert "memory" not in shown


def command_of(process: psutil.Process) -> list[str]:
    """Return the words of a process's own command; none of a shell, or of one that has ended."""
    try:
        words: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return words if words and "python" in words[0] else []


def _read(terminal: int, seconds: float = 120) -> str:
    """Return what comes next from a terminal; an empty string at its end."""
    ready, _, _ = select.select([terminal], [], [], seconds)
    try:
        return os.read(terminal, 65536).decode() if ready else ""
    except OSError:
        return ""


def test_the_bare_command_lists_recipes_and_starts_nothing(project: Commands) -> None:
    start = time.time()
    done = project.snakemake()
    assert done.returncode == 0, done.stdout
    assert "tiny" in done.stdout
    assert "As small as can be" in done.stdout
    assert not [path for path in project.folder.glob("work/*") if path.name != "logs"], start


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-25T10:00:00+00:00 extract: 12 documents from a.xml\n", False),
        ("2026-11-25T10:00:00+00:00 relm extract: a.xml: no such file\n", True),
        ("Traceback (most recent call last):\n  File ...\nKeyError: 'x'\n", True),
        ("", False),
    ],
)
def test_a_job_of_a_failed_group_counts_as_failed_only_if_its_step_reports_an_error(
    tmp_path: Path, text: str, expected: bool
) -> None:
    log = tmp_path / "step.log"
    log.write_text(text)
    assert JobLine("[1/1]", "extract a.xml", log).has_error() == expected
    assert not JobLine("[1/1]", "extract b.xml", tmp_path / "absent.log").has_error()
