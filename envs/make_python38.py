"""Make the cached environment of `make test-py38`, Python 3.8 with torch 2.0.1, and print the path of its interpreter.

PopTorch is made for these versions, and Graphcore's image has them. The locked packages, 4.5 GB, are in the same cache as those
of the other environments (`RELM_ENVS`), one environment for each content of the lock.

    python3.11 envs/make_python38.py
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from make_environment import CHECKOUT, install_once, pip

LOCK = CHECKOUT / "envs" / "python38.txt"


def find_python() -> str:
    """Return a Python 3.8 that starts: RELM_PYTHON38, python3.8 on PATH, or one of pyenv's; end with a message without one."""
    names = [os.environ.get("RELM_PYTHON38", ""), "python3.8", *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))]
    for name in filter(None, names):
        path = shutil.which(name)
        if path and b"Python 3.8." in subprocess.run([path, "--version"], capture_output=True, check=False).stdout:
            return path
    sys.exit(
        "make_python38: there is no Python 3.8 here; install one, such as pyenv's 3.8.18, and set RELM_PYTHON38 to its path"
    )


def install(environment: Path, python: str) -> None:
    """Install the locked packages."""
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    options = ["--quiet", "--require-hashes", "--disable-pip-version-check", "--no-deps"]
    pip(environment, "install", *options, "--requirement", str(LOCK))


def main() -> None:
    """Make the environment unless it is there."""
    python = find_python()
    cache = Path(os.environ.get("RELM_ENVS") or Path.home() / ".cache" / "relm" / "environments")
    environment = cache / f"python38-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    # What pip and this program report goes to standard error; the path alone is the output.
    output, sys.stdout = sys.stdout, sys.stderr
    install_once(environment, [LOCK], lambda: install(environment, python))
    print(environment / "bin" / "python", file=output)


if __name__ == "__main__":
    main()
