"""Make the environment of one device: the locked packages in a cache, and a thin `.venv` in this checkout that uses them.

The cache (``RELM_ENVS``, default ``~/.cache/relm/environments``) holds one virtual environment per hash of the lock files, so
that a fresh clone installs nothing again. ``.venv`` holds only a path file pointing there, the console scripts, relm itself,
installed in place, and what is compiled of it, if there is a C compiler. The reference harness of evaluation (lm_eval) has a
separate environment in the cache, which uses the device's packages by a path file too and holds only those that they lack;
``.venv/harness`` is a link to it. Needs only Python 3.11; run by ``make``.

    python3.11 envs/make_environment.py [--device cpu] [--folder .venv] [--harness]
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# A device has an environment if there is a lock of its torch, torch-DEVICE.txt; all have these packages beside it.
PACKAGES = ("cpu.txt", "loggers.txt", "test.txt")
COMPILED = sorted((CHECKOUT / "src" / "relm" / "corpus").glob("*.c"))
HARNESS_LOCK = CHECKOUT / "envs" / "harness.txt"


def list_devices() -> list[str]:
    """Return the devices with a lock."""
    return sorted(lock.stem.removeprefix("torch-") for lock in (CHECKOUT / "envs").glob("torch-*.txt"))


def find_locks(device: str) -> list[Path]:
    """Return the lock files of a device's environment, torch's first."""
    return [CHECKOUT / "envs" / name for name in (f"torch-{device}.txt", *PACKAGES)]


def lock_hash(locks: list[Path]) -> str:
    """Return twelve hexadecimal digits over the Python version and the content of the lock files, in order."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for lock in locks:
        digest.update(lock.name.encode() + b"\0" + lock.read_bytes())
    return digest.hexdigest()[:12]


def site_packages(environment: Path) -> Path:
    """Return the folder into which packages of a virtual environment are installed."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def pip(environment: Path, *arguments: str) -> None:
    """Run the cached environment's pip, and end this program with a message if it fails."""
    command = [str(environment / "bin" / "python"), "-m", "pip", *arguments]
    if subprocess.run(command).returncode:
        sys.exit(f"make_environment: this command failed, its message is above: {' '.join(command)}")


def install_once(environment: Path, locks: list[Path], install: Callable[[], None]) -> None:
    """Fill a cached environment, once for all checkouts; an interrupted installation starts again."""
    environment.parent.mkdir(parents=True, exist_ok=True)
    with open(environment.parent / f"{environment.name}.lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # two clones that start at once install once
        complete = environment / "complete"
        if complete.exists():
            return
        print(f"make_environment: installing the locked packages into {environment}", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        install()
        complete.write_text("".join(f"{lock.name}\n" for lock in locks))


def install_locked(environment: Path, locks: list[Path]) -> None:
    """Install the locked packages of a device."""
    venv.create(environment, with_pip=True)
    torch, *others = locks
    options = ["--quiet", "--require-hashes", "--disable-pip-version-check"]
    pip(environment, "install", *options, "--no-deps", "--requirement", str(torch))
    for lock in others:
        pip(environment, "install", *options, "--requirement", str(lock))
    pip(environment, "check")


def make_layer(environment: Path, below: Path) -> None:
    """Make a virtual environment without packages that uses those of another one."""
    venv.create(environment, with_pip=False)
    (site_packages(environment) / "relm_environment.pth").write_text(
        f"import site; site.addsitedir({str(site_packages(below))!r})\n"
    )


def harness_name(below: list[Path]) -> str:
    """Return the name of the harness's environment; it changes with the harness's lock and the device's."""
    return f"harness-{lock_hash([*below, HARNESS_LOCK])}"


def install_harness(environment: Path, below: Path) -> None:
    """Install the harness on top of a device's environment, which stays unchanged.

    Its lock is complete, so pip resolves no dependencies; the check finds packages of the device that do not satisfy it.
    Sources are built with the locked setuptools, so nothing without a hash takes part.
    """
    make_layer(environment, below)
    here = ("--python", str(environment / "bin" / "python"))
    options = ("--quiet", "--require-hashes", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    pip(below, *here, "install", *options, "--requirement", str(HARNESS_LOCK))
    pip(below, *here, "check")


def link_harness(cached: Path, here: Path) -> None:
    """Make `.venv/harness` a link to the harness's environment."""
    link, partial = here / "harness", here / ".harness.partial"
    partial.unlink(missing_ok=True)
    partial.symlink_to(cached)
    partial.replace(link)


def link_scripts(cached: Path, here: Path) -> None:
    """Give ``.venv/bin`` the cached console scripts, run by ``.venv``'s own interpreter so that they see relm."""
    for script in sorted((cached / "bin").iterdir()):
        if script.name.startswith(("python", "pip", "activate", "Activate")):
            continue
        target = here / "bin" / script.name
        target.unlink(missing_ok=True)
        content = script.read_bytes()
        old = f"#!{cached}/bin/python".encode()
        if content.startswith(old):
            rest = content.split(b"\n", 1)[1]
            target.write_bytes(f"#!{here}/bin/python\n".encode() + rest)
            target.chmod(0o755)
        else:
            target.symlink_to(script)


def make_checkout_environment(cached: Path, here: Path, stamp: str) -> None:
    """Make ``.venv``: the path file, the scripts, and relm installed in place."""
    print(f"make_environment: making {here} on top of {cached}", flush=True)
    shutil.rmtree(here, ignore_errors=True)
    make_layer(here, cached)
    link_scripts(cached, here)
    pip(
        cached,
        *("--python", str(here / "bin" / "python"), "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--no-index", "--editable", str(CHECKOUT)),
    )
    for source in COMPILED:
        compile_module(source, site_packages(here))
    (here / "made-from").write_text(stamp)


def compile_module(source: Path, folder: Path) -> None:
    """Compile a module of C, without which Python code does the same in more time."""
    target = folder / f"relm_{source.stem}.abi3.so"
    headers = [f"-I{path}" for path in {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}]
    define = f'-DRELM_SOURCE="{hashlib.sha256(source.read_bytes()).hexdigest()}"'
    command = ["cc", "-O2", "-shared", "-fPIC", define, *headers, str(source), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        fault = (done.stderr.strip() or f"cc ended with code {done.returncode}") if done.returncode else ""
    except OSError as error:
        fault = f"cc: {error.strerror}"
    if fault:
        target.unlink(missing_ok=True)
        first = next((line for line in fault.splitlines() if "error" in line), fault)
        print(
            f"make_environment: {source.name} was not compiled ({first}); Python code does the same in more time, and dumps of "
            "Wikipedia are extracted at two thirds of the speed. To compile it, install a C compiler and Python's headers, "
            "and delete .venv and make it again",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or tpu (ipu lives in its own image; default: cpu)")
    parser.add_argument("--folder", default=".venv", help="folder of the thin environment in this checkout (default: .venv)")
    parser.add_argument("--harness", action="store_true", help="make the reference harness's environment too: FOLDER/harness")
    options = parser.parse_args()
    device = options.device
    if sys.version_info[:2] != (3, 11):
        sys.exit(
            f"make_environment: relm needs Python 3.11, this is {sys.version.split()[0]} ({sys.executable}).\n"
            "Install Python 3.11 with venv, or name it: make PYTHON=/path/to/python3.11 ..."
        )
    if device == "ipu":
        sys.exit(
            "make_environment: DEVICE=ipu cannot be installed with pip: poptorch comes only with Graphcore's Poplar SDK\n"
            "(Python 3.8, torch 2.0.1) and lives in its own image. Use DEVICE=cpu to prepare data and to evaluate."
        )
    if device not in (known := list_devices()):
        sys.exit(f"make_environment: DEVICE={device} is unknown; one of {', '.join(known)}, ipu.")
    locks = find_locks(device)
    cache = Path(os.environ.get("RELM_ENVS") or Path.home() / ".cache" / "relm" / "environments")
    cached = cache / f"{device}-{lock_hash(locks)}"
    install_once(cached, locks, lambda: install_locked(cached, locks))
    here = CHECKOUT / options.folder
    sources = b"".join(path.read_bytes() for path in (CHECKOUT / "pyproject.toml", *COMPILED))
    stamp = f"{cached}\n{here}\n{hashlib.sha256(sources).hexdigest()}\n"
    if not (here / "made-from").exists() or (here / "made-from").read_text() != stamp:
        make_checkout_environment(cached, here, stamp)
    if options.harness:
        harness = cache / harness_name(locks)
        install_once(harness, [*locks, HARNESS_LOCK], lambda: install_harness(harness, cached))
        link_harness(harness, here)


if __name__ == "__main__":
    main()
