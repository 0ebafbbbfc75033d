"""Any folder of a BERT or RoBERTa gives the logits of transformers, and others are rejected with a message."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from masked_cases import ALONE, bert
from safetensors.torch import load_file, save_file
from torch import Tensor

from relm.errors import RelmError
from relm.evaluation import masked_scoring
from relm.evaluation.execution import Execution
from relm.evaluation.masked_models import TorchMaskedModel, load_masked
from relm.evaluation.masked_scoring import require_positions, score_masked

VOCABULARY, POSITIONS = 23, 14
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
}  # fmt: skip
# Name -> configuration, and the class with the head.
KINDS: dict[str, tuple[Any, Any]] = {
    "bert": (hf.BertConfig(**SMALL), hf.BertForMaskedLM),
    "bert with pairs": (hf.BertConfig(**SMALL), hf.BertForPreTraining),
    "roberta": (hf.RobertaConfig(**SMALL, pad_token_id=1), hf.RobertaForMaskedLM),
}


def saved(kind: Any, config: Any, folder: Path) -> Any:
    """Save a model of transformers with random weights, large enough that models differ; return it and its folder."""
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return model


def a_batch(pad: int | None = 0) -> dict[str, Tensor]:
    """Return a batch of three sequences, two of them padded, with three positions of each."""
    draw = torch.Generator().manual_seed(0)
    mask = torch.arange(12) < torch.tensor([[12], [9], [5]])
    ids = torch.randint(5, VOCABULARY, (3, 12), generator=draw)
    return {
        "input_ids": torch.where(mask, ids, pad or 0),
        "attention_mask": mask,
        "token_type_ids": torch.randint(0, 2, (3, 12), generator=draw) * mask,
        "masked_positions": torch.tensor([[1, 3, 11], [2, 4, 8], [1, 4, 0]]),
    }


def their_output(model: Any, batch: Mapping[str, Tensor]) -> Any:
    """Return the output of transformers at all positions."""
    given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"].long()}
    given["token_type_ids"] = batch["token_type_ids"]
    with torch.no_grad():
        return model(**given)


@pytest.mark.parametrize("name", KINDS)
def test_logits_of_chosen_positions_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    config, kind = KINDS[name]
    theirs = saved(kind, config, tmp_path)
    batch = a_batch(config.pad_token_id)
    found = load_masked(tmp_path, VOCABULARY, ALONE)
    assert isinstance(found, TorchMaskedModel)
    assert found.vocabulary_size == VOCABULARY
    with torch.inference_mode():
        read = found.read(batch)
    expected = their_output(theirs, batch)
    logits = expected["prediction_logits"] if "pairs" in name else expected["logits"]
    chosen = logits.gather(1, batch["masked_positions"][:, :, None].expand(-1, -1, VOCABULARY))
    torch.testing.assert_close(read.logits, chosen, rtol=1e-5, atol=1e-5)
    assert found.has_next_sentence == ("pairs" in name)
    if read.next_sentence is not None:
        torch.testing.assert_close(read.next_sentence, expected["seq_relationship_logits"], rtol=1e-5, atol=1e-5)


def test_a_head_for_pairs_is_found_in_the_file_whatever_the_configuration_names(tmp_path: Path) -> None:
    """Load a BertForMaskedLM with the weights of both heads, as BERT was published."""
    theirs = saved(hf.BertForPreTraining, hf.BertConfig(**SMALL), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}))
    found = load_masked(tmp_path, VOCABULARY, ALONE)
    assert found.has_next_sentence
    with torch.inference_mode():
        pairs = found.read(a_batch()).next_sentence
    torch.testing.assert_close(pairs, their_output(theirs, a_batch())["seq_relationship_logits"], rtol=1e-5, atol=1e-5)


def test_only_scored_positions_reach_the_head(tmp_path: Path) -> None:
    saved(hf.BertForMaskedLM, hf.BertConfig(**SMALL), tmp_path)
    found = load_masked(tmp_path, VOCABULARY, ALONE)
    shapes = []
    found.model.cls.predictions.register_forward_hook(lambda _module, given, _output: shapes.append(tuple(given[0].shape)))
    with torch.inference_mode():
        found.read(a_batch())
    assert shapes == [(3, 3, 16)]


def test_padding_changes_no_loss(tmp_path: Path) -> None:
    theirs = saved(hf.BertForMaskedLM, hf.BertConfig(**SMALL), tmp_path)
    found = load_masked(tmp_path, VOCABULARY, ALONE)
    batch = {key: value.numpy() for key, value in a_batch().items()}
    batch["masked_labels"] = np.array([[5, 6, 7], [8, 9, 10], [11, 12, -100]])
    nats = score_masked(found, batch, 8192).nats
    for row, length in enumerate((12, 9, 5)):
        alone = {key: value[row : row + 1, :length] for key, value in a_batch().items() if key != "masked_positions"}
        logs = their_output(theirs, alone).logits[0].log_softmax(-1)
        pairs = zip(batch["masked_positions"][row], batch["masked_labels"][row], strict=True)
        expected = [0.0 if label < 0 else -float(logs[position, label]) for position, label in pairs]
        np.testing.assert_allclose(nats[row], expected, rtol=1e-5)


def test_neither_tokens_nor_logits_are_more_than_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_masked(bert(tmp_path / "m", vocabulary_size=VOCABULARY), VOCABULARY, ALONE)
    batch = {key: value.numpy() for key, value in a_batch().items()}
    batch["masked_labels"] = np.array([[5, 6, 7], [8, -100, -100], [11, 12, -100]])
    shapes: list[tuple[int, ...]] = []
    read = found.read
    monkeypatch.setattr(found, "read", lambda fed: (shapes.append(tuple(fed["masked_positions"].shape)), read(fed))[1])
    whole = score_masked(found, batch, 8192)
    assert shapes == [(3, 3)]
    shapes.clear()
    one_by_one = score_masked(found, batch, 1)
    assert shapes == [(1, 3), (1, 1), (1, 2)]
    shapes.clear()
    monkeypatch.setattr(masked_scoring, "LARGEST_LOGITS", 2 * 3 * VOCABULARY)
    few_logits = score_masked(found, batch, 8192)
    assert shapes == [(2, 3), (1, 2)]
    for other in (one_by_one, few_logits):
        np.testing.assert_allclose(other.nats, whole.nats, rtol=1e-6)
        np.testing.assert_allclose(other.next_sentence, whole.next_sentence, rtol=1e-6)
        assert (other.likeliest == whole.likeliest).all()
    assert (whole.nats[1, 1:] == 0).all()


def test_half_precision_changes_the_loss_a_little(tmp_path: Path) -> None:
    folder = bert(tmp_path / "m", vocabulary_size=VOCABULARY)
    exact, rounded = (
        load_masked(folder, VOCABULARY, Execution(precision=precision, threads=1)).read(a_batch()).logits
        for precision in ("float32", "bfloat16")
    )
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(exact, rounded, rtol=0.1, atol=0.3)


def test_rows_that_no_token_uses_are_no_positions(tmp_path: Path) -> None:
    config, head = KINDS["roberta"]
    saved(head, config, tmp_path)
    found = load_masked(tmp_path, VOCABULARY, ALONE)
    assert found.positions == POSITIONS - 2
    require_positions(found, POSITIONS - 2)
    with pytest.raises(RelmError, match="has 12 positions, but the longest sequence has 13 tokens"):
        require_positions(found, POSITIONS - 1)


GPT2 = hf.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=POSITIONS)
T5 = hf.T5Config(vocab_size=VOCABULARY, d_model=16, num_layers=1, num_heads=2, d_kv=8, d_ff=16)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (hf.GPT2LMHeadModel, GPT2, "model_type is 'gpt2', expected"),
        (hf.T5ForConditionalGeneration, T5, "model_type is 't5', expected"),
        (hf.BertLMHeadModel, hf.BertConfig(**SMALL, is_decoder=True), "is_decoder is True, expected false"),
        (hf.BertForMaskedLM, hf.BertConfig(**SMALL, hidden_act="relu"), "hidden_act is 'relu'"),
        (hf.BertModel, hf.BertConfig(**SMALL), "word_embeddings.weight is missing"),
    ],
)
def test_a_model_of_another_kind_is_refused(kind: Any, config: Any, message: str, tmp_path: Path) -> None:
    saved(kind, config, tmp_path)
    with pytest.raises(RelmError, match=message) as raised:
        load_masked(tmp_path, VOCABULARY, ALONE)
    assert "\n" not in str(raised.value)


def leave_out(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["cls.predictions.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def unknown_switch(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"relm": {"depth": 2}}))


@pytest.mark.parametrize("spoil", [leave_out, unknown_switch])
def test_a_folder_that_cannot_be_trusted_is_refused_in_one_sentence(
    spoil: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = bert(tmp_path / "m")
    spoil(folder)
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(RelmError, match="cannot be read as a BERT or RoBERTa with a head for masked tokens: ") as raised,
    ):
        load_masked(folder, 5, ALONE)
    assert str(raised.value).startswith(f"{folder}: ")
    assert "\n" not in str(raised.value)
