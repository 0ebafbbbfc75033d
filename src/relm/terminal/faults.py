"""Find the sentence of an error: a recipe's fault, or a job's last words, without the text that Snakemake adds."""

import re
from collections.abc import Sequence
from pathlib import Path

from relm.limits import free_disk

LEAST_FREE = 1 << 20
"""A disk with fewer free bytes counts as full."""
_NOTED: list[str] = []
# Lines that Snakemake and Python put around a message.
_FRAME = re.compile(
    r"""\s*(Traceback\b|File[ ]"[^"]*",[ ]line[ ]|Wildcards:|\w+=|$)
    |\s*[\w.]*(Error|Exception)(:|[ ]in[ ].*:)\s*$""",
    re.VERBOSE,
)
_CLASS = re.compile(r"^([\w.]*(Error|Exception): *)+")
# Snakemake's messages on --config, which swallows all words up to the next option.
_SWALLOWED = re.compile(r"Config entr(?:y must start with a valid identifier|ies have .* \(Unparsable value: (.*)\))")
_LAST_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\S+ ", re.MULTILINE)
"""The time at the start of a step's last line in its log."""


def note_fault(sentence: str) -> None:
    """Remember the sentence of an error, which Snakemake will print inside a longer text."""
    _NOTED.append(sentence)


def find_sentence(text: str) -> str:
    """Return the sentence in Snakemake's text of an error: one that was noted, or the text without tracebacks.

    >>> find_sentence("WorkflowError in rule a in file /x/Snakefile, line 3:\\nno such dataset")
    'no such dataset'
    """
    for noted in reversed(_NOTED):
        if noted in text:
            return noted
    if found := _SWALLOWED.search(text):
        value = f"expected KEY=VALUE, found {found[1]}" if found[1] else "a key is a word"
        return f"--config: {value}. If that is a target, put it first: snakemake TARGET -n --config set=run.threads=1"
    lines = [line.strip() for line in text.splitlines() if not _FRAME.match(line)]
    return _CLASS.sub("", "\n".join(lines)) or text.strip()


def explain_slurm_fault(message: str, logs: Sequence[str]) -> str | None:
    """Return the Slurm executor's reason for a failed job, without the submitted command; None if it gives none.

    >>> explain_slurm_fault("SLURM sbatch failed. The error message was 'sbatch: error: no partition'.\\n sbatch call:", [])
    'Slurm refused the job: sbatch: error: no partition; correct the request in the profile or on the command line'
    >>> explain_slurm_fault("SLURM-job '7' failed, SLURM status is: 'OUT_OF_MEMORY'. For", ["step.log", "7.log"])
    "Slurm's job 7 ended as OUT_OF_MEMORY before the step said why; Slurm's log of it is 7.log"
    """
    if found := re.search(r"sbatch failed\. The error message was '(.*?)'\.?\s+sbatch call", message, re.DOTALL):
        words = "; ".join(line.strip() for line in found[1].splitlines() if line.strip())
        return f"Slurm refused the job: {words}; correct the request in the profile or on the command line"
    if found := re.search(r"SLURM-job '(\d+)' failed, SLURM status is: '(\w+)", message):
        where = f"; Slurm's log of it is {logs[-1]}" if logs else ""
        return f"Slurm's job {found[1]} ended as {found[2]} before the step said why{where}"
    return None


def explain_silence(log: Path | None) -> str:
    """Return a likely reason for a job that ended without a last line in its log."""
    if log is not None and free_disk(log.parent) < LEAST_FREE:
        return f"the disk of {log.parent} is full, so the step could not write its error; make room and run it again"
    return "it ended without a message; was it killed, for example because memory ran out?"


def read_last_words(log: Path) -> str:
    """Return the last sentence in a step's log, without the time, or the line of an unexpected error; else an empty string."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if starts := list(_LAST_LINE.finditer(text)):
        return text[starts[-1].end() :].strip()
    _, traceback, after = text.rpartition("Traceback (most recent call last)")
    errors = [line for line in after.splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return f"an unexpected error, {errors[-1]}; its traceback is in {log}" if traceback and errors else ""
