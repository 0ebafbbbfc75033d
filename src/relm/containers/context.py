"""What an image is built from: wheels that the lock files hash, the locks, relm itself, and the Dockerfile, in one folder.

    python -m relm.containers.context ROLE FOLDER

lays it out for a build by hand. Wheels are fetched by pip from wherever pip is configured to look, and kept beside the cached
environments, one folder per content of the locks.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from relm.containers.lock import ROLES, Role, bases_of, image_of
from relm.errors import RelmError
from relm.reporting import surroundings

TORCH = {"cpu": "torch-cpu.txt", "cuda": "torch-cuda.txt", "tpu": "torch-tpu.txt", "ipu": "torch-cpu.txt"}
PACKAGES = "cpu.txt"
# What a package that comes as source is built with, and relm itself: installed before all others.
BUILD_TOOL = "setuptools"
# What of the checkout is relm.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src/relm")


@dataclass(frozen=True)
class Context:
    """A folder that `docker build` or `podman build` takes."""

    folder: Path
    arguments: dict[str, str]
    """Build arguments: the commit, the hash of the locks, and the bases."""


def cache_folder() -> Path:
    """Where environments, wheels and the like are kept for all checkouts."""
    return Path(os.environ.get("RELM_ENVS") or Path.home() / ".cache" / "relm" / "environments")


def locks_of(role: Role, checkout: Path = Path()) -> list[Path]:
    """The lock files whose packages an image has, torch's first."""
    return [checkout / "envs" / name for name in (TORCH[role], PACKAGES)]


def lock_hash(locks: list[Path]) -> str:
    """The sha256 over names and content of lock files."""
    digest = hashlib.sha256()
    for lock in locks:
        digest.update(lock.name.encode() + b"\0" + lock.read_bytes())
    return digest.hexdigest()


def wheels_of(lock: Path) -> Path:
    """A folder with all that a lock file names, fetched once for all checkouts; an interrupted fetch is begun again.

    Raises:
        RelmError: pip could not get a file, or got one with another hash.
    """
    folder = cache_folder() / f"wheels-{lock.stem}-{lock_hash([lock])[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # two builds that start at once fetch once
        if (folder / "complete").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--requirement", str(lock), "--dest", str(folder)),
        ]
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if ended.returncode:
            said = [line for line in ended.stdout.splitlines() if not line.startswith("WARNING")]
            raise RelmError(f"{lock}: pip could not fetch what it names:\n" + "\n".join(said[-12:]))
        (folder / "complete").write_text("")
    return folder


def lay_out(role: Role, folder: Path, checkout: Path = Path(), given_bases: dict[str, str] | None = None) -> Context:
    """Make the build context of a role.

    Args:
        folder: made; must not exist yet.
        given_bases: build argument -> image, instead of the lock's bases, whatever these are verified to be.

    Raises:
        RelmError: a base's digest is not verified and none is given in its stead, or wheels cannot be fetched.
    """
    bases = given_bases or {name: base.pinned for name, base in bases_of(role, checkout).items()}
    folder.mkdir(parents=True)
    (folder / "locks").mkdir()
    torch, packages = locks_of(role, checkout)
    shutil.copyfile(checkout / "containers" / role / "Dockerfile", folder / "Dockerfile")
    # The address of an index is pip's affair out here; inside there is none.
    (folder / "locks" / "torch.txt").write_text(without_options(torch.read_text()))
    (folder / "locks" / "packages.txt").write_text(without_options(packages.read_text()))
    (folder / "locks" / "build.txt").write_text(entry_of(packages, BUILD_TOOL))
    for name, lock in (("torch", torch), ("packages", packages)):
        shutil.copytree(
            wheels_of(lock), folder / "wheels" / name, copy_function=_link, ignore=shutil.ignore_patterns("complete")
        )
    for source in SOURCES:
        _copy(checkout / source, folder / "relm" / source)
    code = surroundings.code()
    commit = f"{code['commit']}{'+changes' if code['changed'] else ''}" if code["commit"] else "unknown"
    return Context(folder, {"COMMIT": commit, "LOCK": lock_hash([torch, packages]), **bases})


def without_options(lock: str) -> str:
    """A lock file's packages and hashes without lines that are options of pip's, such as an index."""
    return "".join(line for line in lock.splitlines(keepends=True) if not line.startswith("--"))


def entry_of(lock: Path, package: str) -> str:
    """One package's lines of a lock file.

    Raises:
        RelmError: it is not there.
    """
    found = re.search(rf"^{re.escape(package)}==(?:.*\\\n)*.*\n", lock.read_text(), re.MULTILINE)
    if found is None:
        raise RelmError(f"{lock}: has no {package}, which builds what comes as source")
    return found[0]


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


def _copy(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copyfile(source, destination)


def main() -> int:
    """Lay out one context and print the command that builds it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    try:
        made = lay_out(given.role, given.folder)
        image = image_of(given.role)
    except RelmError as error:
        print(f"relm.containers.context: {error}", file=sys.stderr)
        return error.exit_code
    words = " ".join(f"--build-arg {name}={value}" for name, value in made.arguments.items())
    print(f"docker build {words} --tag {image.image}:{image.tag} {made.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
