"""A decoder that reads one token at a time, with a cache of keys and values, computes what it computes from the whole text."""

import pytest
import torch
from torch import Tensor

from relm.models.cached_decoding import Cache, decode_token, read_prompts
from relm.models.decoder import Decoder
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig

POSITIONS = 24
LENGTHS = torch.tensor([7, 1, 4])


def model(**changes: object) -> Decoder:
    """Return a model whose weights are large enough that each token depends on all before it."""
    fields = {"layers": 3, "heads": 4, "hidden_size": 32, "positions": POSITIONS, "vocabulary_size": 97, "dropout": 0.5}
    return enlarged(Gpt2(Gpt2Config(**{**fields, **changes})))


def llama() -> Decoder:
    return enlarged(
        Llama(LlamaConfig(3, 4, 32, intermediate_size=48, key_value_heads=2, positions=POSITIONS, vocabulary_size=97))
    )


def enlarged(made: Decoder) -> Decoder:
    made.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
    return made.eval()


def texts() -> Tensor:
    return torch.randint(97, (3, POSITIONS), generator=torch.Generator().manual_seed(1))


def decoded(made: Decoder, ids: Tensor, prompt: int = 7, padding: int = 0) -> Tensor:
    """Return logits of each position of three texts from the end of their prompts on, (3, tokens, vocabulary).

    Args:
        prompt: length of the prompts' batch, in which shorter prompts are padded.
        padding: the id that they are padded with.
    """
    padded = torch.where(torch.arange(prompt) < LENGTHS[:, None], ids[:, :prompt], padding)
    hidden, cache = read_prompts(made, padded, POSITIONS)
    rows = torch.arange(3)
    logits = [made.head(hidden[rows, LENGTHS - 1])]
    for step in range(POSITIONS - int(LENGTHS.max())):
        last, cache = decode_token(made, ids[rows, LENGTHS + step], LENGTHS + step, cache)
        logits.append(made.head(last))
    return torch.stack(logits, dim=1)


def whole(made: Decoder, ids: Tensor) -> Tensor:
    """Return the same logits from one pass over the whole text."""
    tokens = POSITIONS - int(LENGTHS.max()) + 1
    logits = made.logits(ids)
    return torch.stack([logits[row, length - 1 : length - 1 + tokens] for row, length in enumerate(LENGTHS.tolist())])


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{}, {"biases": False}, {"activation": "gelu_erf"}, {"layers": 1, "heads": 1}])
def test_logits_are_those_of_the_whole_pass_but_for_rounding(changes: dict[str, object]) -> None:
    made = model(**changes)
    expected = whole(made, texts())
    assert expected.abs().max() > 1, "rounding is far below the logits"
    torch.testing.assert_close(decoded(made, texts()), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_llama_turns_its_keys_by_their_positions_and_shares_them_between_heads() -> None:
    made = llama()
    expected = whole(made, texts())
    assert expected.abs().max() > 1
    torch.testing.assert_close(decoded(made, texts()), expected, rtol=1e-5, atol=1e-5)
    assert read_prompts(made, texts(), POSITIONS)[1].keys.shape == (3, 3, 2, POSITIONS, 8)


@torch.inference_mode()
@pytest.mark.parametrize(("precision", "share"), [(torch.bfloat16, 2e-2), (torch.float16, 2.5e-3)], ids=["bfloat16", "float16"])
def test_in_16_bits_they_differ_from_float32_as_much_as_the_whole_pass_does(precision: torch.dtype, share: float) -> None:
    exact, made = whole(model(), texts()), model().to(precision)
    found, expected = decoded(made, texts()).float(), whole(made, texts()).float()
    assert (found - expected).abs().max() < share * exact.abs().max()
    assert (found - exact).abs().mean() < 1.2 * (expected - exact).abs().mean()


@torch.inference_mode()
def test_neither_padding_nor_the_length_of_the_batch_changes_a_text() -> None:
    made = model()
    first = decoded(made, texts())
    torch.testing.assert_close(decoded(made, texts(), prompt=7, padding=96), first, rtol=0, atol=0)
    torch.testing.assert_close(decoded(made, texts(), prompt=12), first, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_what_the_cache_has_beyond_a_token_decides_nothing() -> None:
    made, ids = model(), texts()
    _, cache = read_prompts(made, ids[:, :7], POSITIONS)
    beyond = torch.arange(POSITIONS)[:, None] >= 5
    noisy = Cache(*(torch.where(beyond, torch.full_like(each, 3.0), each) for each in cache))
    places = torch.tensor([5, 5, 5])
    found, kept = decode_token(made, ids[:, 5], places, noisy)
    expected, _ = decode_token(made, ids[:, 5], places, cache)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert kept.keys.shape == (3, 3, 4, POSITIONS, 8)
    assert torch.equal(kept.keys[..., 6:, :], noisy.keys[..., 6:, :]), "one position is written"
    assert not torch.equal(kept.keys[..., 5, :], noisy.keys[..., 5, :])
