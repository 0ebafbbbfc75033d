"""The parameters that arithmetic counts in each segment are those that the model reads there first."""

from typing import Any

import pytest

from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig
from relm.training.arithmetic import model_weights

GPT2 = {"layers": 3, "heads": 2, "hidden_size": 8, "positions": 6, "vocabulary_size": 11}
LLAMA = {**GPT2, "heads": 4, "intermediate_size": 12, "key_value_heads": 2}
BERT = {"layers": 2, "heads": 2, "hidden_size": 8, "intermediate_size": 20, "positions": 6, "vocabulary_size": 11}
GRAPHCORE = {
    "query_key_value_bias": False,
    "attention_projection_bias": False,
    "transform_layer": False,
    "prediction_bias": False,
    "next_sentence": True,
}


def read_first(model: Any) -> dict[str, int]:
    """Return the count of parameters that each segment is the first to read."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return {segment.name: sum(sizes.pop(name, 0) for name in segment.parameters) for segment in model.segments()}


@pytest.mark.parametrize(
    "model",
    [
        Gpt2(Gpt2Config(**GPT2)),
        Gpt2(Gpt2Config(**GPT2, biases=False)),
        Llama(LlamaConfig(**LLAMA)),
        Llama(LlamaConfig(**LLAMA, tied_head=True)),
        Bert(BertConfig(**BERT)),
        Bert(BertConfig(**BERT, next_sentence=True)),
        Bert(BertConfig(**BERT, **GRAPHCORE)),
    ],
    ids=["gpt2", "gpt2 without biases", "llama", "llama, tied head", "bert", "bert with sentence pairs", "Graphcore's bert"],
)
def test_each_segment_has_the_parameters_that_it_reads_first(model: Any) -> None:
    counted = dict.fromkeys((segment.name for segment in model.segments()), 0)
    for weights in model_weights(model.config):
        counted[weights.segment] += weights.numbers
    assert counted == read_first(model)
