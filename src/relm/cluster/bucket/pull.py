"""Pull a run's files from a store, comparing each with its hash, so that the run can resume here."""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from relm.artifact import atomic_file, sha256_of
from relm.cluster.bucket.run_files import find_paths
from relm.cluster.bucket.store import Entry, Index, Store
from relm.cluster.takeover import hold_phase_locks
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.limits import require_disk
from relm.progress import ProgressBar
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.training.kill_points import kill_point

# 1 January 2020 for all files: no input is newer than its output, whether pulled or made later.
PULLED = 1577836800
_STATE = re.compile("(?:work/runs/.+/[0-9a-f]{12}/)?([^/]+)/checkpoints/step-([0-9]{8})/state[.]json")


def pull(url: str, project: Project, name: str | None) -> str:
    """Pull one run with all its seeds, or all runs whose recipes are here; return a line for each run."""
    store = Store(url)
    newest = {(index.name, index.fingerprint): index for index in store.indexes()}
    there = list(dict.fromkeys(run for run, _ in newest))
    names = [name] if name else [run for run in there if _has_recipe(project, run)]
    if not names:
        raise RelmError(
            f"{url}: has no run of a recipe here; runs there: {', '.join(there) or 'none'}. Push one with `relm push {url}`"
        )
    lines = []
    for plan in map(project.plan, names):
        others = [fingerprint for run, fingerprint in newest if run == plan.run_name]
        if not others:
            raise RelmError(f"{url}: has no run {plan.name}; push it from where it ran: `relm push {url} {plan.name}`")
        if plan.fingerprint not in others:
            raise RelmError(
                f"{url}: {plan.name} has fingerprint {', '.join(others)} there, but {plan.fingerprint} here: "
                "data, model or training differ; check out the commit that pushed it"
            )
        found = [(run, newest[run.run_name, run.fingerprint]) for run in plan.runs if run.fingerprint in others]
        lines += [Puller(store, run, store.index(index)).pull() for run, index in found]
    return "\n".join(lines)


def _has_recipe(project: Project, name: str) -> bool:
    with contextlib.suppress(RelmError):
        project.recipe_path(name)
        return True
    return False


@dataclass
class Puller:
    """Pulls one run."""

    store: Store
    plan: Plan
    index: Index

    def pull(self) -> str:
        """Fetch the files of the index that are not here; return the outcome as a line."""
        targets = self._find_targets()
        self._require_not_further()
        # A checkpoint is complete once it has `state.json`, so fetch that last.
        ordered = sorted(targets, key=lambda path: (path.name == "state.json", path))
        with hold_phase_locks(self.plan):
            lacking = {path: targets[path] for path in ordered if not self._is_there(path, targets[path])}
            size = sum(entry.size for entry in lacking.values())
            require_disk(self.plan.work, size, f"pull {self.index.name}")
            with ProgressBar(total=size, desc="pull", unit="B", unit_scale=True, disable=None, delay=1) as bar:
                for path, entry in lacking.items():
                    self._fetch(path, entry, bar)
        return f"{self.index.name}: {len(targets):,} files, {len(lacking):,} of them fetched ({format_bytes(size)})"

    def _find_targets(self) -> dict[Path, Entry]:
        """Return local path -> entry of all files; raise RelmError for foreign names and links."""
        # An earlier version also pushed the published folder, which Snakemake makes again from the run's files.
        files = [entry for entry in self.index.files if not entry.path.startswith("results/")]
        entries = {entry.path: entry for entry in files}
        paths = find_paths(self.plan, entries)
        parents = {parent for path in paths.values() for parent in path.parents}
        wrong = [entry.path for entry in files if entry.path not in paths or paths[entry.path] in parents]
        if wrong or len(entries) < len(files):
            named = f"{wrong[0]!r:.200}, which is not a file of this run" if wrong else "a file twice"
            raise RelmError(
                f"{self.store.url}: the index of {self.index.name} names {named}, so `relm push` did not write it; nothing was "
                "pulled. Pull with the version of relm that pushed it, or push it again"
            )
        locks = [self.plan.run_folder / phase / "lock" for phase in self.plan.phases]
        for path in (*paths.values(), *locks):
            self._require_no_link(path)
        return {path: entries[name] for name, path in paths.items()}

    def _require_no_link(self, path: Path) -> None:
        """Raise RelmError if a part of a path below the work folder is a link."""
        for part in (path, *path.parents):
            if part == self.plan.work:
                return
            if part.is_symlink():
                raise RelmError(
                    f"{part}: pull does not write through a link; replace it by its target and run the same command again "
                    "(only the work folder itself may be a link)"
                )

    def _require_not_further(self) -> None:
        """Raise RelmError if the run here is further than in the store."""
        folder, (here, there) = self.plan.run_folder, self.find_newest_steps()
        if here > there:
            raise RelmError(
                f"{folder}: this run (step {here[1]:,} of phase {self.plan.phases[here[0]]}) is further than the one in "
                f"{self.store.url}; push it, or move the folder away to pull"
            )

    def find_newest_steps(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (phase index, step) of the newest checkpoint here, and of the newest in the store's index."""
        folder = self.plan.run_folder
        here = self._find_newest(path.relative_to(folder).as_posix() for path in folder.glob("*/checkpoints/*/state.json"))
        return here, self._find_newest(entry.path for entry in self.index.files)

    def _find_newest(self, names: Iterable[str]) -> tuple[int, int]:
        """Return (phase index, step) of the newest checkpoint; (-1, 0) without any."""
        states = [found for name in names if (found := _STATE.fullmatch(name)) and found[1] in self.plan.phases]
        return max(((self.plan.phases.index(state[1]), int(state[2])) for state in states), default=(-1, 0))

    def _is_there(self, path: Path, entry: Entry) -> bool:
        if not path.is_file() or path.stat().st_size != entry.size or sha256_of(path) != entry.sha256:
            return False
        os.utime(path, (PULLED, PULLED))
        return True

    def _fetch(self, path: Path, entry: Entry, bar: ProgressBar) -> None:
        """Fetch a file, at most as many bytes as its entry has, and compare its hash."""
        digest, size = hashlib.sha256(), 0
        with atomic_file(path) as file:
            for piece in self.store.pieces(entry.sha256):
                size += len(piece)
                digest.update(piece)
                if size > entry.size:
                    break
                file.write(piece)
                bar.update(len(piece))
                kill_point("pull-piece")
            if (digest.hexdigest(), size) != (entry.sha256, entry.size):
                found = f"{size:,} bytes of sha256 {digest.hexdigest()}" if size <= entry.size else "more"
                raise RelmError(
                    f"{self.store.url}/objects/{entry.sha256}: damaged: has {found}, expected {entry.size:,} bytes; {path} "
                    "was not written. Delete that object, and push again from where the run is"
                )
        os.utime(path, (PULLED, PULLED))
        kill_point("pull-file")
