"""The oracles: every original whose program runs on a CPU."""

from nanogpt import NANOGPT
from our_runs import Oracle

ORACLES: tuple[Oracle, ...] = (NANOGPT,)
BY_NAME = {oracle.name: oracle for oracle in ORACLES}
