"""relm's own models are compared with the classes of `transformers` that they are converted to."""

from dataclasses import replace

import pytest
import torch

from relm.evaluation.transformers_form import as_transformers
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.t5 import T5, T5Config

GPT2 = Gpt2Config(layers=2, heads=2, hidden_size=8, positions=9, vocabulary_size=11)
T5_1_1 = T5Config(2, 3, 5, 8, 12, vocabulary_size=11, relative_attention_buckets=8, relative_attention_distance=12)
FORMS = {
    "gpt2": GPT2,
    "gpt2, exact gelu": replace(GPT2, activation="gelu_erf", layer_norm_epsilon=1e-2),
    "gpt2 without biases": replace(GPT2, biases=False),
    "t5 1.0": replace(T5_1_1, tied_head=True, feed_forward="relu"),
    "t5 1.1": T5_1_1,
    "t5, uneven": replace(T5_1_1, decoder_layers=1, decoder_start_token_id=4),
    "mt5": replace(T5_1_1, family="mt5"),
    "mt5 with a tied head": replace(T5_1_1, family="mt5", tied_head=True),
}


@pytest.mark.parametrize("name", FORMS)
def test_logits_are_those_of_our_own_model_whose_weights_are_shared(name: str) -> None:
    config = FORMS[name]
    own: Gpt2 | T5 = Gpt2(config) if isinstance(config, Gpt2Config) else T5(config)
    for number, parameter in enumerate(own.parameters()):
        parameter.data.normal_(0.0, 0.5, generator=torch.Generator().manual_seed(number))
    form = as_transformers(own.eval())
    ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 10]])
    target = [torch.tensor([[0, 7, 8], [0, 9, 2]])] if isinstance(own, T5) else []
    with torch.no_grad():
        given = {"decoder_input_ids": target[0]} if target else {}
        torch.testing.assert_close(form(input_ids=ids, **given).logits, own.logits(ids, *target), rtol=1e-5, atol=2e-5)
    assert not form.training
    pointers = {parameter.data_ptr() for parameter in own.parameters()}
    assert pointers <= {parameter.data_ptr() for parameter in form.parameters()}
    if isinstance(config, T5Config):
        assert form.generation_config.decoder_start_token_id == config.decoder_start_token_id
