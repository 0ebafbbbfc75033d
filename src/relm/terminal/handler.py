"""The logger that Snakemake loads in its main process by the name relm: it turns Snakemake's events into lines.

Snakemake delivers the events in one thread; a thread of this module redraws the changing lines.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from relm.cluster.supervision import Interrupts
from relm.progress import JOB_LOGS
from relm.terminal.dry_run import PlannedJob, format_plan
from relm.terminal.faults import explain_silence, explain_slurm_fault, find_sentence
from relm.terminal.job_lines import JobLine, name_job
from relm.terminal.screen import Screen

SECONDS = 0.5
"""Between two redraws of the changing lines."""
STOPPING = "\nrelm: stopping; the running steps save what they have ..."
STILL_STOPPING = "relm: still stopping; a third Ctrl-C kills the steps, and what was saved before stays"
INTERRUPTED_BEFORE = "relm: interrupted; no step was running, and the same command resumes"
NOTHING_TO_DO = "Nothing to be done: everything requested exists and is up to date."
LOST_IN_GROUP = (
    "another job of its group failed, and Snakemake keeps the files of a group only if all its jobs succeed; run it again"
)
# Lines without an event that Snakemake prints before it plans; others, such as those of --unlock or --lint, are answers.
BEFORE_PLANNING = re.compile("Building DAG of jobs|Assuming unrestricted shared filesystem")
# Errors that only say that a job failed.
SUMMARIES = re.compile("Exiting because a job execution failed|WorkflowError:\nAt least one job did not complete", re.MULTILINE)
FAILED_COMMAND = re.compile(r"CalledProcessError|died with <Signals\.|non-zero exit status")


# First words of a step that saved a checkpoint on request, with or without Ctrl-C.
STOPPED = "stopped by "
# For a step that was stopped before it could handle the signal, such as while importing its libraries.
STOPPED_EARLY = STOPPED + "{sender} before it had anything new to save; the same command continues"
STOPPED_BY_SIGNAL = re.compile(rf"^{STOPPED}SIG[A-Z]+")


class _Attended:
    """The workflow, once the Snakefile has read it."""

    workflow: Any = None
    find_seed: Callable[[Mapping[str, str]], int | None] = staticmethod(lambda wildcards: None)
    damaged: Collection[str] = ()


def attend(workflow: Any, find_seed: Callable[[Mapping[str, str]], int | None], damaged: Collection[str]) -> None:
    """Remember the workflow, whose graph has the requested results.

    `find_seed` returns the seed to show in a job's line; `damaged` results get no line of success.
    """
    _Attended.workflow, _Attended.find_seed, _Attended.damaged = workflow, staticmethod(find_seed), damaged


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """The options of this logger on Snakemake's command line."""

    frames: bool = field(default=False, metadata={"help": "Show Snakemake's own output and that of the steps."})


class LogHandler(LogHandlerBase):
    """One line for each job; in a file, one when it begins and one when it ends."""

    writes_to_stream = True
    """So Snakemake adds no handler for the terminal."""
    writes_to_file = False
    has_filter = has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Start with an empty screen; the log file in .snakemake/log always has the commands."""
        given = self.common_settings
        self.shows_commands, given.printshellcmds = given.printshellcmds, True
        self.own: logging.Handler | None = None
        if given.verbose or given.debug_dag or getattr(self.settings, "frames", False):
            self.own = _snakemake_handler(given)
        else:
            os.environ[JOB_LOGS] = "1"
            # If Snakemake's log file is on a full disk, each lost line would print a traceback.
            logging.raiseExceptions = False
        self.is_quiet = bool(given.quiet)
        self.screen = Screen(sys.stdout if given.stdout else sys.stderr)
        self.running: dict[int, JobLine] = {}
        self.planned: list[PlannedJob] = []
        self.sentences: list[str] = []
        """Of errors, in order."""
        self.total, self.started, self.ended, self.recipes = 0, 0, 0, 1
        self.has_begun = self.is_complete = self.is_closed = False
        self.seen_interrupts = 0
        self.group_log: str | None = None
        self.end = threading.Event()
        self.drawing = threading.Thread(target=self._draw_again, daemon=True)

    # --- events --------------------------------------------------------------------------------------------------------------

    def emit(self, record: logging.LogRecord) -> None:
        """Show an event, or pass it to Snakemake's own handler."""
        if self.own is not None:
            self.own.handle(record)
            return
        event = getattr(record, "event", None)
        shown = {
            LogEvent.WORKFLOW_STARTED: self._begin,
            LogEvent.RUN_INFO: self._count_jobs,
            LogEvent.JOB_INFO: self._begin_job,
            LogEvent.SHELLCMD: self._show_command,
            LogEvent.JOB_FINISHED: self._end_job,
            LogEvent.GROUP_ERROR: self._note_group,
            LogEvent.JOB_ERROR: self._fail_job,
            LogEvent.ERROR: self._note_error,
            None: self._show_message,
        }
        if event in shown:
            shown[event](record)

    def _begin(self, record: logging.LogRecord) -> None:
        self.has_begun = True

    def _count_jobs(self, record: logging.LogRecord) -> None:
        """Count the jobs that make something, and their recipes."""
        counts = {rule: count for rule, count in record.stats.items() if rule not in ("total", "all", "list")}  # type: ignore[attr-defined]
        self.total = sum(count for rule, count in counts.items() if not rule.startswith("paper_"))
        self.recipes = max(counts.values(), default=1) if len(counts) == 1 else counts.get("publish", 1)
        if not self.common_settings.dryrun and not self.drawing.is_alive() and not self.is_closed:
            self.drawing.start()

    def _begin_job(self, record: logging.LogRecord) -> None:
        facts = record.__dict__
        if not facts["output"]:
            return
        wildcards = facts["wildcards"]
        name = name_job(facts["rule_name"], wildcards, with_recipe=self.recipes > 1, seed=_Attended.find_seed(wildcards))
        if self.common_settings.dryrun:
            self.planned.append(PlannedJob(name, facts["reason"]))
            return
        self.started += 1
        width = len(str(self.total))
        log = Path(facts["log"][0]) if facts["log"] else None
        line = JobLine(f"[{self.started:>{width}}/{self.total}]", name, log)
        line.forget_progress()
        self.running[facts["jobid"]] = line
        self._write("" if self.screen.is_live else f"{line.number} {line.name}: started")

    def _show_command(self, record: logging.LogRecord) -> None:
        if self.shows_commands and record.shellcmd:  # type: ignore[attr-defined]
            self._write(f"Shell command: {record.shellcmd}")  # type: ignore[attr-defined]

    def _end_job(self, record: logging.LogRecord) -> None:
        line = self.running.pop(record.job_id, None)  # type: ignore[attr-defined]
        if line is not None:
            self.ended += 1
            line.forget_progress()
            self._write(line.describe_end(self.screen.width if self.screen.is_live else None))

    def _note_group(self, record: logging.LogRecord) -> None:
        """Remember the log of a failed group; an event for each of its jobs follows."""
        self.group_log = next(reversed(record.aux_logs), None)  # type: ignore[attr-defined]

    def _fail_job(self, record: logging.LogRecord) -> None:
        line = self.running.pop(record.jobid, None)  # type: ignore[attr-defined]
        if line is None:
            return
        line.forget_progress()
        if getattr(record, "indent", False) and not line.has_error():
            self._lose_job(line)
            return
        words = line.last_words()
        if Interrupts.sender and not words:
            words = STOPPED_EARLY.format(sender=Interrupts.sender)
        is_stopped = Interrupts.count or words.startswith(STOPPED)
        if Interrupts.count:  # this process passed the signal on to the step
            words = STOPPED_BY_SIGNAL.sub(f"{STOPPED}Ctrl-C", words)
        message = str(record.rule_msg or "")  # type: ignore[attr-defined]
        words = words or explain_slurm_fault(message, record.log) or message or explain_silence(line.log)  # type: ignore[attr-defined]
        self.sentences.append(f"{line.name}: {words}")
        self._write(line.describe_stop() if is_stopped else line.describe_failure())

    def _lose_job(self, line: JobLine) -> None:
        """Report a job that did not fail: Snakemake deletes the files of a whole group if one job fails."""
        where = f"; the group's log is {self.group_log}" if self.group_log else ""
        self.sentences.append(f"{line.name}: {LOST_IN_GROUP}{where}")
        self._write(line.describe_stop())

    def _note_error(self, record: logging.LogRecord) -> None:
        text = str(record.msg)
        if not SUMMARIES.search(text) and not FAILED_COMMAND.search(text):
            self.sentences.append(find_sentence(text))

    def _show_message(self, record: logging.LogRecord) -> None:
        """Show a warning, an error, or the answer to a command that plans nothing."""
        text = str(record.msg) if record.msg is not None else ""
        if text.startswith("Nothing to be done"):
            self.is_complete = True
            if not _Attended.damaged:
                self._write(NOTHING_TO_DO)
        elif record.levelno >= logging.ERROR:
            self._note_error(record)
        elif record.levelno >= logging.WARNING or not (self.has_begun or BEFORE_PLANNING.match(text)):
            self._write(text)

    # --- drawing -------------------------------------------------------------------------------------------------------------

    def _write(self, text: str = "") -> None:
        """Write lines that stay, if any, and the running jobs below them; with --quiet, nothing before the end."""
        if self.is_quiet:
            return
        self.screen.write(text, [line.describe_progress() for line in self.running.values()])

    def _draw_again(self) -> None:
        """Redraw the changing lines twice a second, and answer Ctrl-C, until the end."""
        while not self.end.wait(SECONDS):
            self.acquire()
            try:
                self._answer_interrupts()
                if self.screen.is_live and self.running:
                    self._write()
            finally:
                self.release()

    def _answer_interrupts(self) -> None:
        new = range(self.seen_interrupts, Interrupts.count)
        self.seen_interrupts = Interrupts.count
        for number in new:
            if self.running and number < 2:
                self._write([STOPPING, STILL_STOPPING][number])

    def close(self) -> None:
        """Write the outcome, or each error once. Snakemake calls this at its end."""
        if self.is_closed:
            return
        self.is_closed = True
        self.end.set()
        if self.own is None:
            for text in self._list_last_lines():
                self.screen.write(text)
        super().close()

    def _list_last_lines(self) -> list[str]:
        if self.sentences:
            return list(dict.fromkeys(self.sentences))
        if Interrupts.count:
            return [INTERRUPTED_BEFORE]
        if self.common_settings.dryrun and self.planned:
            return [format_plan(self.planned)]
        return [] if self.is_quiet else self._list_outcomes()

    def _list_outcomes(self) -> list[str]:
        """Return a line on each requested result, if all jobs succeeded."""
        from relm.reporting.headline import describe_outcome

        if _Attended.workflow is None or not (self.is_complete or 0 < self.ended == self.total):
            return []
        jobs = [job for job in _Attended.workflow.dag.jobs if job.rule.name == "publish"]
        outcomes = [describe_outcome(Path(job.output[0])) for job in jobs if str(job.output[0]) not in _Attended.damaged]
        return [outcome for outcome in outcomes if outcome]


def _snakemake_handler(settings: Any) -> logging.Handler:
    """Return the handler that Snakemake uses by default."""
    from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter

    shown = DefaultFilter(settings.quiet, settings.debug_dag, settings.verbose, settings.dryrun, settings.printshellcmds)
    stream = sys.stdout if settings.stdout else sys.stderr
    formatter = DefaultFormatter(settings.quiet, settings.show_failed_logs)
    handler: logging.Handler = ColorizingTextHandler(nocolor=settings.nocolor, stream=stream, formatter=formatter, filter=shown)
    return handler
