"""Push a run's files into a store: send what it lacks, then list everything in an index."""

import datetime
import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

from relm.artifact import sha256_of, stamp_of
from relm.cluster.bucket.run_files import choose_group, is_of_run, list_files, read_recorded_sha256
from relm.cluster.bucket.store import Changed, Entry, Index, Store
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.progress import ProgressBar
from relm.recipes.plan import Plan

logger = logging.getLogger(__name__)


def push(url: str, plans: Iterable[Plan]) -> str:
    """Push runs into a store, and return a line for each run."""
    store = Store(url)
    return "\n".join(push_run(store, plan) for plan in plans)


def push_run(store: Store, plan: Plan, run_folder_alone: bool = False, unlisted: set[str] | None = None) -> str:
    """Send the files of a run that the store lacks, then list all; return the outcome as a line.

    With `run_folder_alone`, send only checkpoints, logs and figures; the data stay as the newest index lists them. Sent objects
    that no index lists, since training deleted their checkpoint meanwhile, are removed; after a fault they stay in `unlisted`.
    """
    named = [plan.dataset, plan.tokenizer_model, plan.init_model, plan.reference_model] if not run_folder_alone else []
    for folder in sorted({str(part.folder) for part in named if part is not None and part.folder is not None}):
        logger.warning("%s reads your folder %s, which is not pushed; copy it to the other machine yourself", plan.name, folder)
    objects, files = store.objects(), list_files(plan)
    if run_folder_alone:
        files = {name: path for name, path in files.items() if is_of_run(plan, name)}
    logs = {name: path for name, path in files.items() if path.suffix == ".jsonl" and plan.run_folder in path.parents}
    entries, sent, gone = {}, [], set()
    unlisted = set() if unlisted is None else unlisted
    size = sum(path.stat().st_size for path in files.values() if path.exists())
    with ProgressBar(total=size, desc="push", unit="B", unit_scale=True, disable=None, delay=1) as bar:
        for name, path in files.items():
            if name in logs:
                continue
            try:
                stamp = stamp_of(path)
                entry = Entry(path=name, sha256=_hash(path, objects, stamp[0]), size=stamp[0])
                if entry.sha256 not in objects:
                    unlisted.add(entry.sha256)
                    store.put(entry.sha256, path, stamp)
                    sent.append(entry.size)
                bar.update(entry.size)
                entries[name] = _require_size(store, entry, objects.setdefault(entry.sha256, entry.size))
            except (FileNotFoundError, Changed):
                gone.add(choose_group(name))
        # Read logs last, so that they have the lines of every checkpoint sent; training truncates later lines when it resumes.
        for name, path in logs.items():
            content = path.read_bytes()
            content = content[: content.rfind(b"\n") + 1]  # only whole lines
            entries[name] = Entry(path=name, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
            if entries[name].sha256 not in objects:
                store.put_bytes(entries[name].sha256, content)
                sent.append(len(content))
    kept = [entry for name, entry in sorted(entries.items()) if choose_group(name) not in gone]
    _add_index(store, plan, kept, run_folder_alone)
    store.remove(f"objects/{sha256}" for sha256 in sorted(unlisted - {entry.sha256 for entry in kept}))
    unlisted.clear()
    left = len(files) - len(kept)
    changed = f"; {left} changed or disappeared meanwhile; the next push sends them" if left else ""
    return f"{plan.run_name}: {len(kept):,} files, {len(sent):,} of them sent ({format_bytes(sum(sent))}){changed}"


def _hash(path: Path, objects: dict[str, int], size: int) -> str:
    """Return the sha256 of a file, without reading it if the store has it."""
    recorded = read_recorded_sha256(path)
    if recorded is not None and objects.get(recorded) == size:
        return recorded
    found = sha256_of(path)
    if recorded is not None and found != recorded and read_recorded_sha256(path) == recorded:
        raise RelmError(
            f"{path}: sha256 is {found}, but its record says {recorded}: damaged since it was made. Delete it and run the step "
            "that makes it again. Nothing was listed in the store"
        )
    return found


def _require_size(store: Store, entry: Entry, found: int) -> Entry:
    if found != entry.size:
        raise RelmError(
            f"{store.url}/objects/{entry.sha256}: has {found:,} bytes, expected the {entry.size:,} of {entry.path}: "
            "changed in the store; delete that object and push again"
        )
    return entry


def _add_index(store: Store, plan: Plan, files: list[Entry], run_folder_alone: bool) -> None:
    """Add an index, unless the newest one of this run is equal."""
    names = [name for name in store.indexes() if (name.name, name.fingerprint) == (plan.run_name, plan.fingerprint)]
    before = store.index(names[-1]) if names else None
    if before is not None and run_folder_alone:
        rest = (entry for entry in before.files if not is_of_run(plan, entry.path))
        files = sorted([*files, *rest], key=lambda entry: entry.path)
    index = Index(name=plan.run_name, fingerprint=plan.fingerprint, files=files)
    if index == before:
        return
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    if names and names[-1].time >= now:  # pull takes the newest
        raise RelmError(f"{store.url}/{names[-1]}: later than this machine's clock; set the clock and push again, or delete it")
    store.write_index(index, now)
