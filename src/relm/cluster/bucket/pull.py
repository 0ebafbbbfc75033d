"""Pull a run's files from a store, each compared with its hash while it is written, so that the run can resume here."""

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relm.cluster.bucket.index import Entry, Index, IndexName
from relm.cluster.bucket.placing import ConfinedPath, HashedFile, hash_file, read_pieces, require_no_link, set_time, write
from relm.cluster.bucket.run_files import find_own_paths, find_paths, list_own_folders, sort_states_last
from relm.cluster.bucket.store import Store
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.limits import require_disk
from relm.progress import ProgressBar
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.reporting.publish import publish
from relm.training.interruption import run_lock
from relm.training.kill_points import kill_point

# 1 January 2020, the same for all files: no input is newer than its output, neither of the pulled files nor of later ones.
PULLED = 1577836800
_STATE = re.compile("([^/]+)/checkpoints/step-([0-9]{8})/state[.]json")


@dataclass
class Puller:
    """Pulls one run."""

    store: Store
    plan: Plan
    index: Index
    here: dict[str, ConfinedPath] = field(default_factory=dict)
    """sha256 -> a local file with that content."""

    def pull(self) -> str:
        """Fetch all files of the index that are not here already.

        Raises:
            RelmError: push never writes such a name, a link leads elsewhere, an object is damaged, the disk is full, a
                trainer is at work here, or the run is further here.
        """
        entries = {entry.name: entry for entry in self.index.files}
        own = {name: ConfinedPath(Path(), path.parts) for name, path in find_own_paths(self.plan, entries).items()}
        if outside := sorted(name for name in set(entries) - set(own) if not name.startswith(("work/", "results/"))):
            raise self._strange(outside[0], "nothing")
        if _has_its_folders(self.plan):
            self._targets(set(entries) - set(own), "nothing")
        fetched = self._bring_own({name: entries[name] for name in own}, own)
        # What its own folders hold is part of the plan's keys: with all of them here, it is asked anew.
        anew = dataclasses.replace(self.plan)
        self.plan = anew.find_run(self.index.fingerprint) or anew
        _require_same_meaning(self.plan, self.index.fingerprint)
        fetched += self._bring_rest(entries, self._targets(set(entries) - set(own), "no more than folders of your own"))
        size = format_bytes(sum(entry.size for entry in fetched))
        return f"{self.index.name}: {len(self.index.files):,} files, {len(fetched):,} of them fetched ({size})"

    def _targets(self, names: Collection[str], pulled: str) -> dict[str, ConfinedPath]:
        """Return name -> path here."""
        paths = find_paths(self.plan, names)
        if strange := sorted(set(names) - set(paths)):
            raise self._strange(strange[0], pulled)
        targets = {name: self._place(path) for name, path in paths.items()}
        for place in targets.values():
            require_no_link(place)
        return targets

    def _strange(self, name: str, pulled: str) -> RelmError:
        return RelmError(
            f"{self.store.url}: the index of {self.index.name} names {name!r}, which is no file of this run; {pulled} was "
            "pulled: this is not what `relm push` wrote. Pull with the version of relm that pushed it, or push it again"
        )

    def _place(self, path: Path) -> ConfinedPath:
        if path.is_relative_to(self.plan.work):
            return ConfinedPath(self.plan.work, path.relative_to(self.plan.work).parts)
        return ConfinedPath(Path(path.parts[0]), path.parts[1:])

    def _bring_own(self, entries: Mapping[str, Entry], places: Mapping[str, ConfinedPath]) -> list[Entry]:
        """Fetch the files that the user's own folders lack; a file that is there is never overwritten."""
        found = {name: hash_file(places[name]) for name in entries}
        for name, file in found.items():
            if file is not None and file != HashedFile(entries[name].size, entries[name].sha256):
                raise RelmError(
                    f"{name}: has other content here than in {self.store.url}, and a file of your own is not written over; "
                    "move it away to have the store's"
                )
        lacking = [entries[name] for name, file in found.items() if file is None]
        require_disk(Path(), sum(entry.size for entry in lacking), f"pull {self.index.name}")
        with _bar(sum(entry.size for entry in lacking)) as bar:
            for entry in lacking:
                self._bring(entry, places[entry.name], bar)
        return lacking

    def _bring_rest(self, entries: Mapping[str, Entry], targets: Mapping[str, ConfinedPath]) -> list[Entry]:
        """Fetch the files of the work folder, then the published folders; return the entries that the former lacked."""
        in_work = {name: place for name, place in targets.items() if name.startswith("work/")}
        published = {name: place for name, place in targets.items() if name not in in_work}
        self._require_not_further()
        with self._locks():
            lacking = [entries[name] for name in sort_states_last(in_work) if not self._is_there(entries[name], in_work[name])]
            known = {entries[name].sha256 for name in in_work}
            staged = {entries[name].sha256: entries[name].size for name in published if entries[name].sha256 not in known}
            needed = sum(entry.size for entry in lacking) + sum(staged.values())
            require_disk(self.plan.work, needed, f"pull {self.index.name}")
            with _bar(sum(entry.size for entry in lacking)) as bar:
                for entry in lacking:
                    self._bring(entry, in_work[entry.name], bar)
                self._publish(entries, published, bar)
        return lacking

    def _require_not_further(self) -> None:
        """Raise RelmError rather than replace a newer state by an older one."""
        folder = self.plan.run_folder
        inside = f"work/runs/{self.index.name}/{self.index.fingerprint}/"
        there = self._newest_checkpoint([entry.name.removeprefix(inside) for entry in self.index.files])
        here = self._newest_checkpoint(
            [path.relative_to(folder).as_posix() for path in folder.glob("*/checkpoints/*/state.json")]
        )
        if here > there:
            phase, step = self.plan.phases[here[0]], here[1]
            raise RelmError(
                f"{folder}: the run is further here (step {step:,} of phase {phase}) than in {self.store.url}; push it, or "
                "move that folder away to take the store's"
            )

    def _newest_checkpoint(self, names: Sequence[str]) -> tuple[int, int]:
        """Return index of the phase and step of the newest checkpoint; (-1, 0) for none."""
        states = [_STATE.fullmatch(name) for name in names]
        found = [
            (self.plan.phases.index(state[1]), int(state[2])) for state in states if state and state[1] in self.plan.phases
        ]
        return max([(-1, 0), *found])

    @contextlib.contextmanager
    def _locks(self) -> Iterator[None]:
        """Hold the locks of the run's folders, so that no trainer starts in them."""
        with contextlib.ExitStack() as stack:
            for phase in self.plan.phases:
                lock = self.plan.run_folder / phase / "lock"
                if lock.parent.is_dir():
                    require_no_link(self._place(lock))
                    stack.enter_context(run_lock(lock))
            yield

    def _is_there(self, entry: Entry, place: ConfinedPath) -> bool:
        if hash_file(place) != (entry.size, entry.sha256):
            return False
        set_time(place, PULLED)
        self.here.setdefault(entry.sha256, place)
        return True

    def _bring(self, entry: Entry, place: ConfinedPath, bar: "ProgressBar") -> None:
        copied = self.here.get(entry.sha256)
        pieces = self.store.pieces(entry.sha256) if copied is None else read_pieces(copied)
        source = f"{self.store.url}/objects/{entry.sha256}" if copied is None else str(copied.path)
        write(place, _check_pieces(entry, source, place.path, pieces, bar), PULLED)
        if copied is None:
            kill_point("pull-file")
        self.here.setdefault(entry.sha256, place)

    def _publish(self, entries: Mapping[str, Entry], targets: Mapping[str, ConfinedPath], bar: "ProgressBar") -> None:
        """Make published folders, complete or not at all, copied from the fetched files as `relm publish` copies them."""
        staged = self.plan.work / "pulled"
        for folder in (self.plan.reference_results, self.plan.results):
            inside = {name: place for name, place in targets.items() if folder in place.path.parents}
            if not inside:
                continue
            if not all(self._is_there(entries[name], place) for name, place in inside.items()):
                for name in inside:
                    if entries[name].sha256 not in self.here:
                        self._bring(entries[name], self._place(staged / entries[name].sha256), bar)
                sources = {
                    place.path.relative_to(folder).as_posix(): self.here[entries[name].sha256].path
                    for name, place in inside.items()
                }
                for name in (f".{folder.name}.partial", f".{folder.name}.before"):
                    require_no_link(self._place(folder.with_name(name)))
                publish(sources, folder)
            for path in [*folder.rglob("*"), folder]:
                os.utime(path, (PULLED, PULLED), follow_symlinks=False)
        shutil.rmtree(staged, ignore_errors=True)


def _check_pieces(entry: Entry, source: str, target: Path, pieces: Iterator[bytes], bar: "ProgressBar") -> Iterator[bytes]:
    """Yield the pieces of an object, and no byte more than its entry says."""
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        size += len(piece)
        if size > entry.size:
            raise _damaged_object(source, target, f"it has more than {entry.size:,} bytes")
        yield piece
        digest.update(piece)
        bar.update(len(piece))
        kill_point("pull-piece")
    if (digest.hexdigest(), size) != (entry.sha256, entry.size):
        found = f"it has {size:,} bytes of sha256 {digest.hexdigest()}, expected {entry.size:,}"
        raise _damaged_object(source, target, found)


def _damaged_object(source: str, target: Path, found: str) -> RelmError:
    return RelmError(
        f"{source}: damaged: {found}; {target} was not written. Delete that object, and push again from where the run is"
    )


def _has_its_folders(plan: Plan) -> bool:
    """Return whether the plan's keys can be computed: those of the user's own folders need their content."""
    try:
        _ = plan.fingerprint
    except RelmError:
        return False
    return True


def _bar(total: int) -> "ProgressBar":
    return ProgressBar(total=total, desc="pull", unit="B", unit_scale=True, disable=None, delay=1)


def pull(url: str, project: Project, name: str | None) -> str:
    """Pull one run of a store with all its seeds there, or all whose recipes are here.

    Returns:
        A line for each run.

    Raises:
        RelmError: the store has no such run.
    """
    store = Store(url)
    places = store.indexes()
    names = [name] if name else [found for found in dict.fromkeys(place.name for place in places) if _is_here(project, found)]
    if not names:
        there = ", ".join(dict.fromkeys(place.name for place in places)) or "none"
        raise RelmError(f"{url}: has no run of a recipe that is here; runs there: {there}. `relm push {url}` makes one")
    lines = []
    for wanted in names:
        plan = project.plan(wanted)
        named = [place for place in places if place.name == plan.run_name]
        first = choose_index(plan, named, url)
        lines.append(Puller(store, plan, store.index(first)).pull())
        for run in dataclasses.replace(plan).runs:  # with folders of its own, whose content may have just come
            if run.fingerprint != first.fingerprint and any(place.fingerprint == run.fingerprint for place in named):
                lines.append(Puller(store, run, store.index(choose_index(run, named, url))).pull())
    return "\n".join(lines)


def _is_here(project: Project, name: str) -> bool:
    try:
        project.recipe_path(name)
    except RelmError:
        return False
    return True


def choose_index(plan: Plan, places: Sequence[IndexName], url: str) -> IndexName:
    """Return the newest index of a run that means what its recipe means here.

    If that depends on one of the user's own folders that is not here yet, return the newest index.
    """
    if not places:
        raise RelmError(f"{url}: has no run {plan.name}; `relm push {url} {plan.name}` where it ran puts it there")
    try:
        fingerprint = plan.fingerprint
    except RelmError:
        if not list_own_folders(plan):
            raise
        return places[-1]
    found = [place for place in places if place.fingerprint == fingerprint]
    if not found:
        others = ", ".join(dict.fromkeys(place.fingerprint for place in places))
        raise RelmError(
            f"{url}: has run {plan.name} with fingerprint {others}, but the recipe here has {fingerprint}: data, model or "
            "training differ; check out the commit that pushed it"
        )
    return found[-1]


def _require_same_meaning(plan: Plan, fingerprint: str) -> None:
    if plan.fingerprint != fingerprint:
        raise RelmError(
            f"{plan.name}: the fingerprint of what was pushed is {fingerprint}, and the recipe here has {plan.fingerprint}: "
            "data, model or training differ; check out the commit that pushed it. At most folders of your own were pulled"
        )
