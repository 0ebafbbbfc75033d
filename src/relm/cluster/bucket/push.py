"""Push a run's files into a store: files already there are not sent again, and sent ones count once they are listed."""

import datetime
import hashlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from relm.artifact import sha256_of, stamp_of
from relm.cluster.bucket.index import Entry, Index, next_time
from relm.cluster.bucket.run_files import choose_group, list_files, list_others, list_own_folders, read_recorded_sha256
from relm.cluster.bucket.store import Changed, Store
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.progress import ProgressBar
from relm.recipes.plan import Plan
from relm.reporting.check import is_published, require_whole

logger = logging.getLogger(__name__)


class FileToPush(NamedTuple):
    """One file as it was when its hash was known."""

    path: Path
    entry: Entry
    stamp: list[int]


class Pushed(NamedTuple):
    """The outcome of one push of a run."""

    files: int
    sent: int
    sent_bytes: int
    left: int
    """The files that changed or disappeared meanwhile."""

    def format_summary(self, name: str) -> str:
        """Return the outcome as one line."""
        left = f"; {self.left} changed or disappeared meanwhile, and are left to the next push" if self.left else ""
        return f"{name}: {self.files:,} files, {self.sent:,} of them sent ({format_bytes(self.sent_bytes)}){left}"


@dataclass
class Pusher:
    """Pushes runs into one store, and caches its hashes and the store's objects."""

    store: Store
    objects: dict[str, int] = field(init=False)
    """sha256 -> size of the store's objects."""
    _hashed: dict[tuple[int, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.objects = self.store.objects()

    def push(self, plan: Plan) -> Pushed:
        """Send the files of a run that the store lacks, then list all.

        Raises:
            RelmError: the store cannot be used, a file is not what its sidecar says, or `results/NAME` is damaged.
        """
        if not plan.number and is_published(plan.results):
            require_whole(plan.results)
        names = list_files(plan)
        logs = {name: path for name, path in names.items() if path.suffix == ".jsonl" and _is_in(plan.run_folder, path)}
        files, gone = self._hash_files({name: path for name, path in names.items() if name not in logs})
        entries, sent = self._send(files, gone)
        # Logs are read last: they have a line of every checkpoint before, and training takes lines beyond it away.
        for name, path in logs.items():
            entry, size = self._send_log(name, path)
            entries[name] = entry
            sent.extend([size] if size else [])
        kept = [entry for name, entry in sorted(entries.items()) if choose_group(name) not in gone]
        self._list(Index(plan.run_name, plan.fingerprint, kept))
        return Pushed(len(kept), len(sent), sum(sent), len(names) - len(kept))

    def _hash_files(self, names: Mapping[str, Path]) -> tuple[list[FileToPush], set[str]]:
        """Return all files with their hashes, and the groups that disappeared meanwhile."""
        files, gone = [], set()
        for name, path in names.items():
            try:
                files.append(self._hash(name, path))
            except FileNotFoundError:
                gone.add(choose_group(name))
        return files, gone

    def _hash(self, name: str, path: Path) -> FileToPush:
        stamp = stamp_of(path)
        key = tuple(stamp)
        if key not in self._hashed:
            told = read_recorded_sha256(path)
            is_known = told is not None and self.objects.get(told) == stamp[0]
            self._hashed[key] = told if is_known and told else self._check_hash(path, told)
        return FileToPush(path, Entry(name, self._hashed[key], stamp[0]), stamp)

    def _check_hash(self, path: Path, told: str | None) -> str:
        """Return the sha256 of a file that will be sent."""
        found = sha256_of(path)
        if told is not None and found != told and read_recorded_sha256(path) == told:
            raise RelmError(
                f"{path}: sha256 is {found}, but what lies beside it says {told}: damaged since it was made; delete it "
                "and run the step that makes it again. Nothing was listed in the store"
            )
        return found

    def _send(self, files: Sequence[FileToPush], gone: set[str]) -> tuple[dict[str, Entry], list[int]]:
        """Send files; return name -> entry of those that the store has now, and the sizes sent; add the others to `gone`."""
        entries: dict[str, Entry] = {}
        sent: list[int] = []
        lacking = {file.entry.sha256: file.entry.size for file in files if file.entry.sha256 not in self.objects}
        with _bar("push", sum(lacking.values())) as bar:
            for file in files:
                sha256, size = file.entry.sha256, file.entry.size
                try:
                    if sha256 not in self.objects:
                        self.store.put(sha256, file.path, file.stamp, bar)
                        self.objects[sha256] = size
                        sent.append(size)
                    self._require_whole(file.entry)
                    entries[file.entry.name] = file.entry
                except Changed:
                    gone.add(choose_group(file.entry.name))
        return entries, sent

    def _send_log(self, name: str, path: Path) -> tuple[Entry, int]:
        """Send the whole lines of a log, to which training appends; return its entry and the bytes sent."""
        content = path.read_bytes()
        content = content[: content.rfind(b"\n") + 1]
        entry = Entry(name, hashlib.sha256(content).hexdigest(), len(content))
        if entry.sha256 in self.objects:
            return entry, 0
        self.store.put_bytes(entry.sha256, content)
        self.objects[entry.sha256] = entry.size
        return entry, entry.size

    def _require_whole(self, entry: Entry) -> None:
        found = self.objects[entry.sha256]
        if found != entry.size:
            raise RelmError(
                f"{self.store.url}/objects/{entry.sha256}: has {found:,} bytes, expected the {entry.size:,} of {entry.name}: "
                "it was changed in the store; delete that object and push again"
            )

    def _list(self, index: Index) -> None:
        """Add the index, unless the newest of this run is the same."""
        places = [place for place in self.store.indexes() if (place.name, place.fingerprint) == (index.name, index.fingerprint)]
        if places and list(self.store.index(places[-1]).files) == list(index.files):
            return
        newest = places[-1].time if places else None
        self.store.write_index(index, next_time(newest, datetime.datetime.now(datetime.UTC)))


def _bar(what: str, total: int) -> "ProgressBar":
    return ProgressBar(total=total, desc=what, unit="B", unit_scale=True, disable=None, delay=1)


def _is_in(folder: Path, path: Path) -> bool:
    return folder in path.parents


def push(url: str, plans: Iterable[Plan], watch: float | None) -> str:
    """Push runs into a store.

    Args:
        url: of the store, as fsspec has it.
        watch: push repeatedly, with this many seconds between; None: once.

    Returns:
        A line for each run.

    Raises:
        RelmError: the store cannot be used; while it watches, only the first time: later it warns, and tries again.
    """
    plans, pusher = list(plans), Pusher(Store(url))
    lines = _push_all(pusher, plans)
    while watch is not None:
        print(lines, flush=True)
        time.sleep(watch)
        try:
            pusher.objects = pusher.store.objects()
            lines = _push_all(pusher, plans)
        except RelmError as error:
            lines = f"not pushed this time: {error}"
    return lines


def _push_all(pusher: Pusher, plans: Sequence[Plan]) -> str:
    lines = []
    for plan in plans:
        for folder in _list_folders_outside(plan):
            logger.warning(
                "%s reads the folder %s, which is not pushed: it lies outside the project or holds its code", plan.name, folder
            )
        if others := list_others(plan):
            shown = ", ".join(map(str, others[:3])) + (f" and {len(others) - 3:,} more" if len(others) > 3 else "")
            logger.warning("%s: not pushed, since no step of relm writes files of this name: %s", plan.name, shown)
        lines.append(pusher.push(plan).format_summary(plan.name))
    return "\n".join(lines)


def _list_folders_outside(plan: Plan) -> list[str]:
    """Return the user's own folders that an index cannot hold."""
    named = [plan.dataset, plan.tokenizer_model, plan.init_model, plan.reference_model]
    folders = {str(part.folder) for part in named if part is not None and part.folder is not None}
    return sorted(folders - {str(folder) for folder in list_own_folders(plan)})
