"""The commit of the running code, from its checkout or from the image that contains it."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import relm
from relm.recipes.redaction import mask_secrets

IMAGE_COMMIT = "RELM_IMAGE_COMMIT"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def read_commit() -> dict[str, Any]:
    """Return the commit of this package's checkout or image, and whether `src` or `Snakefile` have changed, new files included.

    Without git or a checkout, ``commit`` and ``changed`` are null, and ``reason`` is given.
    """
    root = Path(relm.__file__).resolve().parents[2]
    if (built_from := os.environ.get(IMAGE_COMMIT)) and not (root / "pyproject.toml").exists():
        commit, _, changes = built_from.partition("+")  # `+changes` marks a checkout with changes
        if not COMMIT.fullmatch(commit):
            return {"commit": None, "changed": None, "reason": "built into an image that does not know its commit"}
        return {"commit": commit, "changed": bool(changes)}
    try:
        commit, top = _git(root, "rev-parse", "HEAD", "--show-toplevel").splitlines()
        if Path(top).resolve() != root:
            return {"commit": None, "changed": None, "reason": "installed as a package, not run from a checkout"}
        changed = bool(_git(root, "status", "--porcelain", "--", "src", "Snakefile"))
    except FileNotFoundError:
        return {"commit": None, "changed": None, "reason": "git is not installed"}
    except subprocess.SubprocessError as error:
        return {"commit": None, "changed": None, "reason": mask_secrets(f"git: {_find_reason(error)}")}
    return {"commit": commit, "changed": changed}


def _find_reason(error: subprocess.SubprocessError) -> str:
    """Return the line of git's output that says what is wrong."""
    lines = [line.strip() for line in str(getattr(error, "stderr", None) or error).splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else str(error))
