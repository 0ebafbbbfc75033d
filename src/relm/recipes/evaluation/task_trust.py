"""Trust in task files for the language-model evaluation harness, which are programs and run only with the user's consent.

They name Python that the harness loads (`!function`), and even without it their Jinja2 prompts, which have no sandbox, can
call any function. The harness's own tasks come with its locked package and need no trust.
"""

import os
from pathlib import Path

from relm.errors import RelmError

TRUST = "RELM_TRUST_TASKS"
"""Variable that, if it is 1, trusts the project's task files."""
FLAG = "--trust-tasks"


def find_trust_fault(folder: Path, remedy: str) -> str | None:
    """Return why a folder's task files may not run, with a remedy; None without files, or if RELM_TRUST_TASKS trusts them."""
    if os.environ.get(TRUST) == "1":
        return None
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    if not files:
        return None
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    return f"{folder}: has task files for the harness ({shown}), which can run any program. If you trust them, give {remedy}"


def require_trusted_tasks(folder: Path, given: bool) -> None:
    """Raise unless the command (`given`) or RELM_TRUST_TASKS trusts a folder's task files."""
    if not given and (fault := find_trust_fault(folder, f"{FLAG}, or set {TRUST}=1")):
        raise RelmError(fault)
