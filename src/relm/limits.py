"""The disk, memory and cores of this machine, checked before long work so that it fails at once.

Memory and cores respect the container's control groups, version 2 or 1, including their ancestors.
"""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from relm.errors import RelmError
from relm.formatting import format_bytes

OVERRIDE = "RELM_IGNORE_LIMITS"
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
V1_UNLIMITED = 1 << 60  # version 1 writes "no limit" as the largest multiple of the page size


def require_disk(folder: Path, needed: int, what: str) -> None:
    """Raise RelmError if `needed` bytes do not fit on the disk of `folder`, which need not exist; `what` names the work."""
    if fault := find_disk_fault(folder, needed, what):
        raise RelmError(fault)


def find_disk_fault(folder: Path, needed: int, what: str) -> str | None:
    """Return the message of `require_disk`; None if there is room."""
    free = free_disk(folder)
    if needed <= free or limits_ignored():
        return None
    return (
        f"{what}: needs {format_bytes(needed)} on the disk of {folder}, which has {format_bytes(free)} free; "
        f"make room, set RELM_WORK to another disk, or set {OVERRIDE}=1 to try anyway"
    )


def find_folder_fault(folder: Path, setting: str) -> str | None:
    """Return why no file can be written below a folder, which need not exist; None if it can.

    `setting` is the key or variable that names the folder, for the message.
    """
    if fault := find_path_fault(folder):
        return f"{setting}: {fault}"
    existing = nearest_existing(folder)
    if os.path.lexists(folder) and not os.path.exists(folder):
        return f"{setting}: {folder} is a link to {os.readlink(folder)}, which does not exist; correct or delete it"
    if not existing.is_dir():
        found = "it" if existing == folder.absolute() else str(existing)
        return f"{setting}: {folder} cannot be a folder, because {found} is a file; choose another path"
    if os.access(existing, os.W_OK | os.X_OK):
        return None
    read_only = os.statvfs(existing).f_flag & os.ST_RDONLY
    reason = "is on a disk that is mounted read-only" if read_only else "belongs to another user and is not writable"
    return f"{setting}: nothing can be written to {folder}: {existing} {reason}; make it writable, or choose another folder"


def find_path_fault(folder: Path) -> str | None:
    """Return why Snakemake cannot use a work folder's path: a ~, or what it takes for wildcards; None if it can."""
    if str(folder).startswith("~"):
        return f"{str(folder)!r} begins with ~, which only a shell expands, and only without quotes; write the full path"
    if strange := sorted(set("{}\n").intersection(str(folder))):
        return f"{str(folder)!r} has {strange[0]!r}, which Snakemake does not accept in a path; choose another folder"
    return None


def require_memory(needed: int, what: str, remedy: str = "close other programs or give the container more") -> None:
    """Raise RelmError if `needed` exceeds the bytes of `available_memory`; `what` names the work, `remedy` says what to do."""
    available = available_memory()
    if needed > available and not limits_ignored():
        raise RelmError(
            f"{what}: needs {format_bytes(needed)} of memory, {format_bytes(available)} is available; "
            f"{remedy}, or set {OVERRIDE}=1 to try anyway"
        )


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or the first of its parents that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if os.path.exists(each))


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist."""
    return shutil.disk_usage(nearest_existing(folder)).free


def usable_cores() -> int:
    """Return the number of cores that this process may use: those it is bound to, within the container's CPU quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores(CGROUPS, MEMBERSHIP)
    return bound if quota is None else max(1, min(bound, int(quota)))


def available_memory() -> int:
    """Return the bytes left before the machine swaps or the container is killed, whichever is less."""
    host = int(psutil.virtual_memory().available)
    container = cgroup_memory(CGROUPS, MEMBERSHIP)
    return host if container is None else min(host, container)


def total_memory() -> int:
    """Return the bytes of main memory, or the strictest limit of this process's control groups if that is lower."""
    return min([int(psutil.virtual_memory().total), *(limit for _, limit, _ in _memory_limits(CGROUPS, MEMBERSHIP))])


def peak_resident_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cgroup_memory(mount: Path, membership: Path) -> int | None:
    """Return the bytes left under the strictest memory limit of this process's control groups; None without a limit.

    Page cache that the kernel frees under pressure (`inactive_file`) counts as left.

    Args:
        mount: where control groups are mounted, `/sys/fs/cgroup`.
        membership: the kernel's list of this process's groups, `/proc/self/cgroup`.
    """
    left = []
    for group, limit, (usage_name, cache_name) in _memory_limits(mount, membership):
        usage = _number(group / usage_name)
        if usage is not None:
            left.append(max(0, limit - usage + _statistic(group / "memory.stat", cache_name)))
    return min(left, default=None)


def cgroup_cores(mount: Path, membership: Path) -> float | None:
    """Return the strictest CPU quota of this process's control groups in cores, or None; arguments as in `cgroup_memory`."""
    quotas = []
    for group in _groups(mount, membership, "cpu"):
        quota, period = [*_words(group / "cpu.max"), "", ""][:2]
        if not quota:
            quota, period = ([*_words(group / f"cpu.cfs_{name}_us"), ""][0] for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def limits_ignored() -> bool:
    """Return True if RELM_IGNORE_LIMITS is 1, which overrides all limits."""
    return os.environ.get(OVERRIDE) == "1"


def _memory_limits(mount: Path, membership: Path) -> Iterator[tuple[Path, int, tuple[str, str]]]:
    """Yield each group with a limit, the limit in bytes, and the names of its usage and its page cache."""
    for group in _groups(mount, membership, "memory"):
        for limit_name, *others in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(group / limit_name)
            if limit is not None and limit < V1_UNLIMITED:
                yield group, limit, (others[0], others[1])


def _groups(mount: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and their ancestors: version 2, and one controller of version 1."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # In a container the mount's root is often this process's group, while the list still names the path on the host:
        # absent folders are skipped, and the root is always read.
        path = Path(inside.lstrip("/"))
        for root in (mount / controller, mount / controllers) if controllers else (mount, mount / "unified"):
            yield from dict.fromkeys(root / ancestor for ancestor in (path, *path.parents))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _statistic(path: Path, name: str) -> int:
    words = _words(path)
    return int(words[words.index(name) + 1]) if name in words else 0
