"""The oracles: every original whose program runs on a CPU."""

from graphcore_gpt2 import GRAPHCORE_GPT2
from llm_c import LLM_C, LLM_C_PYTHON
from nanogpt import NANOGPT
from our_runs import Oracle
from run_mlm import RUN_MLM
from tpu_pretrain import TPU_PRETRAIN

ORACLES: tuple[Oracle, ...] = (NANOGPT, LLM_C_PYTHON, LLM_C, GRAPHCORE_GPT2, RUN_MLM, TPU_PRETRAIN)
BY_NAME = {oracle.name: oracle for oracle in ORACLES}
