"""The cache against the model without one."""

from dataclasses import replace

import pytest
import torch
from random_weights import randomised

from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.gpt2_cache import Gpt2Cache

TINY = Gpt2Config(layers=2, heads=2, hidden_size=8, positions=9, vocabulary_size=11, dropout=0.0)
TEXTS = [[3, 1, 4, 1], [5], [9, 2, 6, 5, 3]]
LATER = [[5, 8, 9], [7, 9, 3], [2, 3, 8]]


def padded(texts: list[list[int]], padding: int) -> torch.Tensor:
    width = max(map(len, texts))
    return torch.tensor([text + [padding] * (width - len(text)) for text in texts])


def begun(model: Gpt2, texts: list[list[int]], padding: int = 0, capacity: int = 9) -> Gpt2Cache:
    return Gpt2Cache(model, padded(texts, padding), [len(text) for text in texts], capacity)


def alone(model: Gpt2, text: list[int]) -> torch.Tensor:
    """What the head reads after a text that is all there is."""
    return model.hidden(torch.tensor([text]))[0, -1]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(
    "changes", [{}, {"activation": "gelu_erf"}, {"biases": False}, {"heads": 4}], ids=["tanh", "erf", "no-biases", "heads"]
)
@pytest.mark.parametrize("texts", [TEXTS, [[3, 1], [4, 1], [5, 9]], [[2]]], ids=["of three lengths", "of one length", "one"])
def test_each_text_gets_what_it_gets_alone_without_a_cache(changes: dict[str, object], texts: list[list[int]]) -> None:
    model = randomised(Gpt2(replace(TINY, **changes))).eval()
    cache = begun(model, texts)
    whole = [list(text) for text in texts]
    for step in range(4):
        expected = torch.stack([alone(model, text) for text in whole])
        torch.testing.assert_close(cache.hidden, expected, rtol=1e-5, atol=1e-5)
        if step < 3:
            tokens = [LATER[row][step] for row in range(len(whole))]
            whole = [[*text, token] for text, token in zip(whole, tokens, strict=True)]
            assert cache.append(torch.tensor(tokens)) is cache.hidden


def test_what_stands_after_a_text_does_not_matter() -> None:
    model = randomised(Gpt2(TINY)).eval()
    one, other = begun(model, TEXTS, padding=0), begun(model, TEXTS, padding=10)
    assert torch.equal(one.hidden, other.hidden)
    for step in range(3):
        tokens = torch.tensor([row[step] for row in LATER])
        assert torch.equal(one.append(tokens), other.append(tokens))


def test_texts_that_are_taken_out_leave_the_others_as_they_were() -> None:
    model = randomised(Gpt2(TINY)).eval()
    cache = begun(model, TEXTS)
    cache.append(torch.tensor([5, 7, 2]))
    cache.keep(torch.tensor([0, 2]))
    found = cache.append(torch.tensor([8, 3]))
    expected = torch.stack([alone(model, [*TEXTS[0], 5, 8]), alone(model, [*TEXTS[2], 2, 3])])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    cache.keep(torch.tensor([1]))  # the rest is of one length now
    torch.testing.assert_close(cache.append(torch.tensor([0]))[0], alone(model, [*TEXTS[2], 2, 3, 0]), rtol=1e-5, atol=1e-5)


def test_memory_is_taken_once_and_a_text_can_fill_it() -> None:
    model = randomised(Gpt2(TINY)).eval()
    cache = begun(model, [[1, 2], [3]], capacity=4)
    taken = [layer.keys.data_ptr() for layer in cache._layers]
    assert [layer.keys.shape for layer in cache._layers] == [(2, 2, 4, 4)] * 2
    for token in (4, 5):
        cache.append(torch.tensor([token, token]))
    assert [layer.keys.data_ptr() for layer in cache._layers] == taken
    with pytest.raises(ValueError, match="a text of 4 tokens cannot grow: there is room for 4"):
        cache.append(torch.tensor([6, 6]))


@pytest.mark.parametrize(("texts", "capacity"), [([[1] * 5], 4), ([[1] * 5], 10), ([[1] * 10], 10)])
def test_more_than_the_model_has_positions_for_is_refused(texts: list[list[int]], capacity: int) -> None:
    with pytest.raises(ValueError, match="but the model has 9 positions"):
        begun(Gpt2(TINY), texts, capacity=capacity)


def test_in_bfloat16_keys_and_values_are_kept_as_they_are_computed() -> None:
    model = randomised(Gpt2(TINY), spread=0.2).eval()
    with torch.autocast("cpu", torch.bfloat16):
        cache = begun(model, TEXTS)
        found = cache.append(torch.tensor([5, 7, 2]))
        expected = torch.stack([alone(model, [*text, row[0]]) for text, row in zip(TEXTS, LATER, strict=True)])
    assert cache._layers[0].keys.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.05)
