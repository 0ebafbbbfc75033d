"""Named points at which tests kill the trainer, to prove that an interruption anywhere changes no result."""

import os
import signal
from collections import Counter

KILL_AT = "RELM_KILL_AT"
_passed: Counter[str] = Counter()


def kill_point(name: str) -> None:
    """Kill this process with SIGKILL if RELM_KILL_AT is NAME:COUNT and this is the COUNTth call with this name."""
    wanted = os.environ.get(KILL_AT)
    if wanted is None:
        return
    _passed[name] += 1
    if wanted == f"{name}:{_passed[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
