"""The build context of an image, in one folder: the Dockerfile, the lock files, their hashed wheels, and relm's wheel.

Pip fetches the wheels from its configured index. They are kept next to the cached environments, in one folder for each content
of a lock file.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from relm.containers.lock import Role, find_bases, find_image
from relm.containers.wheel import build_wheel
from relm.errors import RelmError
from relm.recipes.checkout import read_commit
from relm.recipes.devices import DEVICES

PACKAGES = "cpu.txt"
LOGGERS = "loggers.txt"


@dataclass(frozen=True)
class Context:
    """A folder that an engine builds an image from, and the build's arguments."""

    folder: Path
    arguments: dict[str, str]
    """Build arguments without the bases: the role, the commit, the hash of the locks, and whether it has GPUs."""
    bases: dict[str, str]
    """Build argument -> image."""


def cache_folder() -> Path:
    """Return the cache of environments and wheels, which all checkouts share."""
    return Path(os.environ.get("RELM_ENVS") or Path.home() / ".cache" / "relm" / "environments")


def list_locks(role: Role, checkout: Path = Path(), loggers: bool = False) -> list[Path]:
    """Return the lock files of an image's packages: torch's first, that of the loggers last."""
    return [checkout / "envs" / name for name in (DEVICES[role].lock, PACKAGES, *([LOGGERS] if loggers else []))]


def hash_locks(locks: list[Path]) -> str:
    """Return the sha256 over names and content of lock files."""
    digest = hashlib.sha256()
    for lock in locks:
        digest.update(lock.name.encode() + b"\0" + lock.read_bytes())
    return digest.hexdigest()


def read_entries(lock: Path) -> list[tuple[str, str]]:
    """Return a lock file's packages as names and lines with hashes, without pip's options."""
    found = re.findall(r"^[A-Za-z0-9](?:.*\\\n)*.*\n", lock.read_text(), re.MULTILINE)
    return [(entry.partition("==")[0].lower().replace("_", "-"), entry) for entry in found]


def select_requirements(lock: Path, left_out: frozenset[str] = frozenset()) -> str:
    """Return a lock file without some packages."""
    return "".join(entry for name, entry in read_entries(lock) if name not in left_out)


def read_left_out(lock: Path, loggers: bool = False) -> frozenset[str]:
    """Return the packages of a lock file that no step in the image imports.

    `containers/left-out.txt` lists them, and `containers/left-out-NAME.txt` those of torch-NAME.txt. With loggers, the image
    keeps those in `containers/loggers.txt`.
    """
    folder = lock.parents[1] / "containers"
    left_out = _read_names(folder / f"left-out{'' if lock.name == PACKAGES else lock.stem.removeprefix('torch')}.txt")
    return left_out - _read_names(folder / "loggers.txt") if loggers else left_out


def _read_names(path: Path) -> frozenset[str]:
    """Return the names that a file lists, one a line; none without the file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return frozenset(line for line in lines if line and not line.startswith("#"))


def fetch_wheels(lock: Path, wanted: str) -> Path:
    """Return a folder with the wheels of a part of a lock file, fetched once for all checkouts."""
    folder = cache_folder() / f"wheels-{lock.stem}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # of two simultaneous builds, one fetches
        if (folder / "complete").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        options = [line for line in lock.read_text().splitlines() if line.startswith("--")]
        (folder / "wanted.txt").write_text("".join(f"{option}\n" for option in options) + wanted)
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--only-binary", ":all:", "--require-hashes"),
            *("--requirement", str(folder / "wanted.txt"), "--dest", str(folder)),
        ]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            output = [line for line in ended.stdout.splitlines() if not line.startswith("WARNING")]
            raise RelmError(f"{lock}: pip could not fetch its packages:\n" + "\n".join(output[-12:]))
        (folder / "complete").write_text("")
    return folder


def lay_out(
    role: Role,
    folder: Path,
    checkout: Path = Path(),
    given_bases: dict[str, str] | None = None,
    loggers: bool = False,
) -> Context:
    """Prepare the build context of a role.

    Args:
        folder: the context's folder, which must not exist.
        given_bases: build argument -> image, instead of the lock's bases, which then need not be verified.
        loggers: add what `run.loggers` may name.
    """
    bases = given_bases or {name: base.pinned for name, base in find_bases(role, checkout).items()}
    folder.mkdir(parents=True)
    (folder / "locks").mkdir()
    shutil.copyfile(checkout / "containers" / "Dockerfile", folder / "Dockerfile")
    locks = list_locks(role, checkout, loggers)
    for lock in locks:
        name = "torch" if lock is locks[0] else "packages"
        wanted = select_requirements(lock, read_left_out(lock, loggers))
        with open(folder / "locks" / f"{name}.txt", "a") as file:
            file.write(wanted)
        (folder / "wheels" / name).mkdir(parents=True, exist_ok=True)
        for wheel in fetch_wheels(lock, wanted).glob("*.whl"):
            _link(wheel, folder / "wheels" / name / wheel.name)
    build_wheel(checkout, folder / "relm")
    code = read_commit()
    commit = f"{code['commit']}{'+changes' if code['changed'] else ''}" if code["commit"] else "unknown"
    facts = {"ROLE": role, "COMMIT": commit, "LOCK": hash_locks(locks)}
    return Context(folder, facts | ({"GPUS": "all"} if find_image(role, checkout).gpus else {}), bases)


def _link(source: Path, destination: Path) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)
