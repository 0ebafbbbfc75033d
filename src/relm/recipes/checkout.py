"""The commit of the code that runs, of its checkout or of the image that it was built into."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import relm
from relm.recipes.redaction import mask_secrets

IMAGE_COMMIT = "RELM_IMAGE_COMMIT"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def read_commit() -> dict[str, Any]:
    """Return the commit of the checkout that this package lies in, and whether `src` or `Snakefile` differ, new files included.

    An image has the commit that it was built from in a variable. Without git or a checkout ``commit`` and ``changed`` are null,
    and there is a ``reason``.
    """
    root = Path(relm.__file__).resolve().parents[2]
    if (built_from := os.environ.get(IMAGE_COMMIT)) and not (root / "pyproject.toml").exists():
        return _parse_image_commit(built_from)
    try:
        commit, top = _git(root, "rev-parse", "HEAD", "--show-toplevel").splitlines()
        if Path(top).resolve() != root:
            return {"commit": None, "changed": None, "reason": "installed as a package, not run from a checkout"}
        changed = bool(_git(root, "status", "--porcelain", "--", "src", "Snakefile"))
    except FileNotFoundError:
        return {"commit": None, "changed": None, "reason": "git is not installed"}
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        return {"commit": None, "changed": None, "reason": mask_secrets(f"git: {said[0] if said else 'failed'}")}
    return {"commit": commit, "changed": changed}


def _parse_image_commit(built_from: str) -> dict[str, Any]:
    """Return the commit of an image, which has `+changes` where the checkout had some."""
    commit, _, changes = built_from.partition("+")
    if not _COMMIT.fullmatch(commit):
        return {"commit": None, "changed": None, "reason": "built into an image that does not know its commit"}
    return {"commit": commit, "changed": bool(changes)}
