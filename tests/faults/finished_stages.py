"""A finished run whose files are damaged one at a time, and every command that reads the damaged file, in this process."""

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from relm.artifact import SEAL, read_json, seal, sha256_of, sidecar_of, write_json, write_sidecar
from relm.cli import main
from relm.devices.ranks import words_of_step

RUN = Path("work/runs/tiny")
DETECTED, SAME, WRONG = "detected", "same bytes", "silently wrong"
# Files that differ from one undisturbed run to the next: they have times in them, or are caches of hashes with times.
VOLATILE = (
    "*.record.json",
    "*.log",
    "train.jsonl",
    "checkpoints.jsonl",
    "state.json",
    "lock",
    "shards.json",
    "work/checked/*/*",
    ".snakemake_timestamp",
)


class Opened:
    """The files below the current folder that this process opens for reading, without those that it wrote itself."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._written: set[str] = set()
        self._is_on = False
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def trace(self) -> Iterator[set[str]]:
        """Collect the files that are read in this block."""
        self.read, self._written, self._is_on = set(), set(), True
        try:
            yield self.read
        finally:
            self._is_on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_on or event not in ("open", "os.rename") or isinstance(arguments[0], int):
            return
        if event == "os.rename":
            self._written.add(self._name(arguments[1]))
            return
        name, flags = self._name(arguments[0]), arguments[2] or 0
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._written.add(name)
        elif name not in self._written:
            self.read.add(name)

    @staticmethod
    def _name(path: Any) -> str:
        return os.path.relpath(os.fsdecode(path))


OPENED = Opened()


@dataclass(frozen=True)
class Stage:
    """A command that reads files of the run, and the files and folders that are not there yet when it is given."""

    name: str
    argv: Sequence[str]
    makes: Sequence[Path] = ()

    def run(self) -> tuple[int, str]:
        """Run the command as if for the first time; return its exit status and what it printed."""
        for path in self.makes:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            try:
                status = main(self.argv)
            except SystemExit as end:  # the parser's
                status = end.code if isinstance(end.code, int) else 1
        return status, out.getvalue()


def list_stages() -> list[Stage]:
    """Return the steps of the finished run in the current folder, in order, and the commands that check what they made.

    Each seed of a recipe has its own folder.
    """
    recorded = list(read_json(Path("results/tiny/provenance.json"))["steps"])
    recorded += [read_json(path) for path in RUN.glob("*/report/*/report.html.record.json")]
    steps, resumes = [], []
    for record in recorded:
        words = words_of_step(record["argv"])
        makes = [Path(entry["path"]) for entry in record["outputs"]]
        if record["step"] == "pretrain":
            model = makes[0].parent
            steps.append(Stage("pretrain", words, [model.parent]))
            # The model is lost, and is made again from the last checkpoint.
            resumes.append(Stage("resume", words, [model]))
        else:
            steps.append(Stage(record["step"], words, makes))
    return [
        *steps,
        Stage("publish", ["publish", "tiny"], [Path("results/tiny")]),
        Stage("check", ["check", "results/tiny"]),
        *(Stage("check", ["check", str(run)]) for run in sorted(RUN.iterdir())),
        *resumes,
    ]


def read_tree() -> dict[str, bytes]:
    """Return the content of every file in `work` and `results`, by its path."""
    files = (path for folder in ("work", "results") for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files}


def is_volatile(name: str) -> bool:
    """Return whether two undisturbed runs differ in a file."""
    return any(Path(name).match(pattern) for pattern in VOLATILE)


def make_another_run(folder: Path) -> dict[str, bytes]:
    """Run all steps on other words in a copy of the run in the current folder; return its files, which have the same names.

    Recipe, fingerprint and sizes of the texts are the same: no path and few sizes show that they are another run's.
    """
    shutil.copytree(".", folder, symlinks=True, ignore=shutil.ignore_patterns(".snakemake"))
    with contextlib.chdir(folder):
        stages = list_stages()
        for path in (path for stage in stages if stage.name in ("download", "extract") for path in stage.makes):
            _change_words(path)
        for stage in stages:
            if stage.name not in ("download", "extract", "resume"):
                status, output = stage.run()
                assert status == 0, output
        return read_tree()


def _change_words(path: Path) -> None:
    """Change a file of text, its sidecar, and the records that have its sha256, as if a step had made them so."""
    facts = {key: value for key, value in read_json(sidecar_of(path)).items() if key not in ("file", "sha256", "size", SEAL)}
    before = sha256_of(path)
    path.write_bytes(path.read_bytes().replace(b" the ", b" teh "))
    after = write_sidecar(path, **facts)["sha256"]
    for record in Path("work").rglob("*.record.json"):
        write_json(record, seal(json.loads(record.read_text().replace(before, after))))


@dataclass
class Bench:
    """The finished run in the current folder: its files, its commands, and who reads what."""

    stages: list[Stage] = field(default_factory=list_stages)
    files: dict[str, bytes] = field(default_factory=read_tree)

    def __post_init__(self) -> None:
        self._stamps = self._stamp()

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Maps a file to the stages that read it in an undisturbed run, by their places."""
        readers: dict[str, list[int]] = {name: [] for name in self.files}
        for number, stage in enumerate(self.stages):
            with OPENED.trace() as read:
                status, output = stage.run()
            assert status == 0, output
            assert self.differing() == [], stage.name
            self.restore()
            for name in read & readers.keys():
                readers[name].append(number)
        return readers

    def damage(self, name: str, content: bytes) -> str:
        """Damage a file and give every command that reads it, each in an undamaged run; return the worst outcome.

        Raises:
            AssertionError: a command fails without the file's name in its message.
        """
        outcomes = {self._outcome(number, name, content) for number in self.readers[name]}
        return next((each for each in (WRONG, DETECTED) if each in outcomes), SAME)

    def _outcome(self, number: int, name: str, content: bytes) -> str:
        Path(name).write_bytes(content)
        try:
            stage = self.stages[number]
            status, output = stage.run()
            if status == 0 and stage.name == "check":
                return WRONG
            if status == 0 and self.differing(name) == []:
                return SAME
            if status == 0:  # a later step may notice
                status, output = self._go_on(number)
            if status == 0:
                return WRONG
            assert names_file(output, name), f"{stage.name} does not name {name}: {output}"
            return DETECTED
        finally:
            self.restore()

    def _go_on(self, number: int) -> tuple[int, str]:
        """Run the steps after one until one fails; return its status and output."""
        for stage in (stage for stage in self.stages[number + 1 :] if stage.name not in ("check", "resume")):
            status, output = stage.run()
            if status:
                return status, output
        return 0, ""

    def differing(self, damaged: str = "") -> list[str]:
        """Return the files whose content is not that of the undisturbed run; not the damaged one, nor volatile ones."""
        now = self._stamp()
        suspects = {name for name in now.keys() | self._stamps.keys() if now.get(name) != self._stamps.get(name)}
        return sorted(
            name
            for name in suspects
            if name != damaged
            and not is_volatile(name)
            and (name not in now or name not in self.files or Path(name).read_bytes() != self.files[name])
        )

    def restore(self) -> None:
        """Put back what a command or a fault has changed."""
        now = self._stamp()
        for name in now.keys() - self.files.keys():
            Path(name).unlink()
        for name in (name for name in self.files if now.get(name) != self._stamps[name]):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).unlink(missing_ok=True)
            Path(name).write_bytes(self.files[name])
            self._stamps[name] = _stamp_of(name)

    def _stamp(self) -> dict[str, tuple[int, int, int]]:
        files = (path for folder in ("work", "results") for path in Path(folder).rglob("*") if path.is_file())
        return {str(path): _stamp_of(str(path)) for path in files}


def _stamp_of(name: str) -> tuple[int, int, int]:
    status = os.stat(name)
    return status.st_size, status.st_mtime_ns, status.st_ino


def names_file(output: str, name: str) -> bool:
    """Return whether a message names a file; a sidecar or a record by its file, and a part of a checkpoint by its folder."""
    file = Path(name).name
    belongs = file.removesuffix(".record.json").removesuffix(".json")
    return file in output or belongs in output or ("/checkpoints/" in name and Path(name).parent.name in output)


def flip_byte(content: bytes, chance: Random) -> bytes:
    """Return the content with the lowest bit of one byte changed."""
    if not content:
        return content
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def truncate(content: bytes, chance: Random) -> bytes:
    """Return the beginning of the content, at least one byte shorter."""
    return content[: chance.randrange(max(1, len(content)))]


def empty(content: bytes, chance: Random) -> bytes:
    """Return no content."""
    return b""


FLIPS = ("one flipped byte", "another flipped byte", "a third flipped byte")
FAULTS: dict[str, Callable[[bytes, Random], bytes]] = {
    **dict.fromkeys(FLIPS, flip_byte),
    "truncation": truncate,
    "emptiness": empty,
}
ANOTHER = "another run's file"
