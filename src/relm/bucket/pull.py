"""A run's files out of a store, each compared with its hash while it is written, so that the same commands go on elsewhere."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from relm.artifact import atomic_file, sha256_of
from relm.bucket.index import Entry, Index, Place
from relm.bucket.run_files import last_of_all, own_folders
from relm.bucket.store import Store
from relm.errors import RelmError
from relm.limits import require_disk, size_in_words
from relm.plan import Plan, Project
from relm.reporting.publish import publish
from relm.training.interruption import run_lock
from relm.training.kill_points import kill_point

# 1 January 2020, of all files alike: none is newer than what was made of it, and none newer than what is made of it here.
PULLED = 1577836800


@dataclass
class Puller:
    """Pulls one run."""

    store: Store
    plan: Plan
    index: Index
    here: dict[str, Path] = field(default_factory=dict)
    """sha256 -> a file that was found to have it."""

    def pull(self) -> str:
        """Bring all files of the index here; what is there already is not fetched.

        Raises:
            RelmError: an object is damaged, the disk is full, a trainer is at work here, or the run is further here.
        """
        targets = self._targets()
        in_work = {name: path for name, path in targets.items() if not name.startswith("results/")}
        self._require_not_further()
        with self._locks():
            lacking = [entry for entry in self._ordered(in_work) if not self._is_there(entry, in_work[entry.name])]
            require_disk(self.plan.work, sum(entry.size for entry in lacking), f"pull {self.index.name}")
            with _bar(sum(entry.size for entry in lacking)) as bar:
                for entry in lacking:
                    self._bring(entry, in_work[entry.name], bar)
                self._publish({name: path for name, path in targets.items() if name not in in_work}, bar)
        size = size_in_words(sum(entry.size for entry in lacking))
        return f"{self.index.name}: {len(self.index.files):,} files, {len(lacking):,} of them fetched ({size})"

    def _targets(self) -> dict[str, Path]:
        """Name -> where it belongs here.

        Raises:
            RelmError: a name belongs nowhere.
        """
        own = {folder.as_posix() for folder in own_folders(self.plan)}
        results = [folder.as_posix() for folder in (self.plan.results, self.plan.reference_results)]
        targets = {}
        for entry in self.index.files:
            first, _, rest = entry.name.partition("/")
            if first == "work":
                targets[entry.name] = self.plan.work / rest
            elif any(entry.name.startswith(f"{folder}/") for folder in (*results, *own)):
                targets[entry.name] = Path(entry.name)
            else:
                raise RelmError(
                    f"{self.store.url}: the index of {self.index.name} names {entry.name!r}, which is in none of its folders "
                    f"(work, {', '.join([*results, *sorted(own)])}); nothing was pulled: this is not what `relm push` wrote"
                )
        return targets

    def _ordered(self, targets: Mapping[str, Path]) -> list[Entry]:
        entries = {entry.name: entry for entry in self.index.files}
        return [entries[name] for name in last_of_all(targets)]

    def _require_not_further(self) -> None:
        """Refuse to put an older state over a newer one."""
        folder = self.plan.work / "runs" / self.index.name / self.index.fingerprint
        names = [
            entry.name.removeprefix(f"work/runs/{self.index.name}/{self.index.fingerprint}/") for entry in self.index.files
        ]
        there = self._newest_checkpoint(names)
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
        """Number of the phase and step; (-1, 0) for none."""
        found = [(-1, 0)]
        for name in names:
            phase, *inside = name.split("/")
            if phase in self.plan.phases and inside[:1] == ["checkpoints"] and inside[-1:] == ["state.json"]:
                found.append((self.plan.phases.index(phase), int(inside[1].removeprefix("step-"))))
        return max(found)

    @contextlib.contextmanager
    def _locks(self) -> Iterator[None]:
        """Hold the run's folders, so that nobody trains in them."""
        folder = self.plan.work / "runs" / self.index.name / self.index.fingerprint
        with contextlib.ExitStack() as stack:
            for phase in self.plan.phases:
                if (folder / phase).is_dir():
                    stack.enter_context(run_lock(folder / phase / "lock"))
            yield

    def _is_there(self, entry: Entry, path: Path) -> bool:
        if not path.is_file() or path.stat().st_size != entry.size or sha256_of(path) != entry.sha256:
            return False
        os.utime(path, (PULLED, PULLED))
        self.here.setdefault(entry.sha256, path)
        return True

    def _bring(self, entry: Entry, path: Path, bar: "tqdm[Any]") -> None:
        if entry.sha256 in self.here:
            with atomic_file(path) as file, open(self.here[entry.sha256], "rb") as source:
                shutil.copyfileobj(source, file)
            bar.update(entry.size)
        else:
            self._fetch(entry, path, bar)
        os.utime(path, (PULLED, PULLED))
        self.here.setdefault(entry.sha256, path)

    def _fetch(self, entry: Entry, path: Path, bar: "tqdm[Any]") -> None:
        digest, size = hashlib.sha256(), 0
        with atomic_file(path) as file:
            for piece in self.store.pieces(entry.sha256):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
                bar.update(len(piece))
                kill_point("pull-piece")
            if (digest.hexdigest(), size) != (entry.sha256, entry.size):
                raise RelmError(
                    f"{self.store.url}/objects/{entry.sha256}: damaged: it has {size:,} bytes of sha256 {digest.hexdigest()}, "
                    f"expected {entry.size:,}; {path} was not written. Delete that object, and push again from where the run is"
                )
        kill_point("pull-file")

    def _publish(self, targets: Mapping[str, Path], bar: "tqdm[Any]") -> None:
        """Make published folders, complete or not at all, of what was brought: linked with it as `relm publish` links."""
        staged = self.plan.work / "pulled"
        entries = {entry.name: entry for entry in self.index.files}
        for folder in (self.plan.reference_results, self.plan.results):
            inside = {name: path for name, path in targets.items() if folder in path.parents}
            if not inside:
                continue
            if not all(self._is_there(entries[name], path) for name, path in inside.items()):
                for name in inside:
                    if entries[name].sha256 not in self.here:
                        self._bring(entries[name], staged / entries[name].sha256, bar)
                sources = {
                    path.relative_to(folder).as_posix(): self.here[entries[name].sha256] for name, path in inside.items()
                }
                publish(sources, folder)
            for path in [*folder.rglob("*"), folder]:
                os.utime(path, (PULLED, PULLED))
        shutil.rmtree(staged, ignore_errors=True)


def _bar(total: int) -> "tqdm[Any]":
    return tqdm(total=total, desc="pull", unit="B", unit_scale=True, disable=None, delay=1)


def pull(url: str, project: Project, name: str | None) -> str:
    """Pull one run of a store, or all whose recipes are here.

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
        place = chosen(plan, [place for place in places if place.name == wanted], url)
        lines.append(Puller(store, plan, store.index(place)).pull())
        _require_same_meaning(Project().plan(wanted), place)
    return "\n".join(lines)


def _is_here(project: Project, name: str) -> bool:
    try:
        project.recipe_path(name)
    except RelmError:
        return False
    return True


def chosen(plan: Plan, places: Sequence[Place], url: str) -> Place:
    """The newest index of a run that means what its recipe means here.

    Where that depends on a folder of one's own that is not here yet, the newest there is.

    Raises:
        RelmError: there is none.
    """
    if not places:
        raise RelmError(f"{url}: has no run {plan.name}; `relm push {url} {plan.name}` where it ran puts it there")
    try:
        fingerprint = plan.fingerprint
    except RelmError:
        if not own_folders(plan):
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


def _require_same_meaning(plan: Plan, place: Place) -> None:
    if plan.fingerprint != place.fingerprint:
        raise RelmError(
            f"{plan.name}: was pulled, but its fingerprint is {place.fingerprint} and the recipe here has {plan.fingerprint}: "
            "data, model or training differ; check out the commit that pushed it"
        )
