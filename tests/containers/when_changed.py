"""Run a command only if something that images are made of changed since it last ended well here; say so in one line if not.

    python tests/containers/when_changed.py [--always] -- COMMAND...

The hash of the last green tree lies next to the cached environments, so a fresh machine always runs it.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from relm.containers.context import cache_folder

WATCHED = (
    "containers", "envs", "src/relm/containers", "src/relm/graph", "src/rules", "Snakefile", "tests/containers", "Makefile",
)  # fmt: skip


def tree_hash(checkout: Path) -> str:
    """Return the sha256 over names and content of the watched files, those that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *WATCHED]
    listed = subprocess.run(command, cwd=checkout, capture_output=True, check=True).stdout
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.split(b"\0"))):
        path = checkout / name.decode()
        if path.is_file():
            digest.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def main(arguments: list[str], checkout: Path) -> int:
    """Run the command if something changed; return its exit status, or 0 where it was not run."""
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    green, now = cache_folder() / "containers-green", tree_hash(checkout)
    if "--always" not in options and green.exists() and green.read_text() == now:
        print(f"containers: {', '.join(WATCHED)} are as they were when these tests were last green here; FORCE=1 runs them")
        return 0
    status = subprocess.run(command, cwd=checkout).returncode
    if status == 0:
        green.parent.mkdir(parents=True, exist_ok=True)
        green.write_text(now)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[2]))
