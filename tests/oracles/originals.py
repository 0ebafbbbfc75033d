"""The oracles: every original whose program runs on a CPU."""

from graphcore_gpt2 import GRAPHCORE_GPT2
from nanogpt import NANOGPT
from our_runs import Oracle

ORACLES: tuple[Oracle, ...] = (NANOGPT, GRAPHCORE_GPT2)
BY_NAME = {oracle.name: oracle for oracle in ORACLES}
