"""The oracles: every original whose program runs on a CPU."""

from graphcore_bert import GRAPHCORE_BERT
from graphcore_gpt2 import GRAPHCORE_GPT2
from llama2_c import LLAMA2_C
from llm_c import LLM_C, LLM_C_PYTHON
from modded_nanogpt import MODDED_NANOGPT_ADAMW, MODDED_NANOGPT_MUON
from nanogpt import NANOGPT
from our_runs import Oracle
from run_mlm import RUN_MLM
from t5x_diacritics import T5X_DIACRITICS
from tpu_pretrain import TPU_PRETRAIN

ORACLES: tuple[Oracle, ...] = (
    NANOGPT,
    LLM_C_PYTHON,
    LLM_C,
    LLAMA2_C,
    MODDED_NANOGPT_MUON,
    MODDED_NANOGPT_ADAMW,
    GRAPHCORE_GPT2,
    RUN_MLM,
    TPU_PRETRAIN,
    T5X_DIACRITICS,
    GRAPHCORE_BERT,
)
BY_NAME = {oracle.name: oracle for oracle in ORACLES}
