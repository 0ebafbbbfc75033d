"""Named points at which tests kill or halt the trainer, to prove that no interruption changes a result."""

import os
import signal
from collections import Counter

KILL_AT = "RELM_KILL_AT"
_passed: Counter[str] = Counter()


def kill_point(name: str) -> None:
    """Send this process a signal if RELM_KILL_AT is NAME:COUNT[:SIGNAL] and this is the COUNTth call with this name.

    The default is SIGKILL; after SIGSTOP the process waits here for SIGCONT.
    """
    wanted = os.environ.get(KILL_AT)
    if not wanted:
        return
    _passed[name] += 1
    wanted_name, count, *named = wanted.split(":")
    if (wanted_name, count) == (name, str(_passed[name])):
        os.kill(os.getpid(), signal.Signals[named[0]] if named else signal.SIGKILL)
