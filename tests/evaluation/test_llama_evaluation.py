"""A Llama that relm trained is evaluated from its folder, as any model of `transformers`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from llama_form import BOS, EOS, llama_tokenizer

from relm.evaluation.execution import Execution
from relm.evaluation.generation.sampling import Sampling
from relm.evaluation.generation.texts import Writer, Writing
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig

ONE_THREAD = Execution(threads=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Llama]:
    folder, tokenizer = tmp_path_factory.mktemp("llama"), llama_tokenizer(adds_bos=True)
    config = LlamaConfig(2, 4, 32, 44, 24, tokenizer.get_vocab_size(), key_value_heads=2, dropout=0.1, initializer_range=0.5)
    model = Llama(config)
    model.initialise(torch.Generator().manual_seed(0))
    model.save_folder(folder, {"bos_token_id": BOS, "eos_token_id": EOS})
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, model.eval()


def test_its_losses_are_those_of_the_model(trained: tuple[Path, Llama]) -> None:
    folder, model = trained
    tokens = np.random.default_rng(0).integers(3, model.config.vocabulary_size, 40)
    sequences = ScoredSequences(tokens, np.array([0, 20]), np.array([20, 40]), np.array([19, 19]))
    found = score(load_causal(folder, model.config.vocabulary_size, ONE_THREAD), sequences, 1000).nats
    ids = torch.from_numpy(tokens).view(2, 20)
    logits = model.logits(ids[:, :-1])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-4)


def test_its_likeliest_tokens_are_what_it_writes(trained: tuple[Path, Llama]) -> None:
    folder, model = trained
    writer = Writer(folder, folder / "tokenizer.json", ONE_THREAD)
    prompt = writer.prompt("the cat")
    [written] = writer.texts([prompt], Writing(length=8, sampling=Sampling(temperature=0)))
    assert written.tokens > 0
    ids = list(prompt.ids)
    with torch.inference_mode():
        while len(ids) < len(prompt.ids) + written.tokens:
            ids.append(int(model.logits(torch.tensor([ids]))[0, -1].argmax()))
    text = writer.loaded.tokenizer.decode(ids, skip_special_tokens=True)
    assert written.text.split() == text.split()
