"""Each token is masked alone; losses are those of a loop over transformers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from masked_cases import ALONE, CLS, LENGTH, MASK, PAD, SEP, Case, examples
from transformers import AutoModelForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

from relm.artifact import sha256_of
from relm.evaluation import masked_scoring, pseudo_perplexity
from relm.evaluation.execution import Execution
from relm.evaluation.pseudo_perplexity import Originals, evaluate_pseudo_perplexity, mask_one_by_one, originals
from relm.evaluation.result import Result
from relm.examples.sharded_tables import ExampleTables
from relm.recipes.evaluation.evaluations import PseudoPerplexity


@pytest.fixture
def evaluate(case: Case, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(model: Path = case.model, manifest: Path = case.manifest, examples: int = 6, **given: Any) -> dict[str, Any]:
        given = {"execution": ALONE, "task": "pseudo_perplexity", **given}
        options = PseudoPerplexity(examples=examples)
        summary = evaluate_pseudo_perplexity(model, manifest, output=tmp_path / "out.json", options=options, **given)
        return {**json.loads((tmp_path / "out.json").read_text()), "summary": summary}

    return run


def looped(model: Path, manifest: Path, count: int) -> tuple[float, int]:
    """Return the sum of -ln P and the count of tokens, by one forward pass of transformers per token, without padding."""
    theirs = AutoModelForMaskedLM.from_pretrained(model).eval()
    tables, nats, tokens = ExampleTables(manifest, "held_out"), 0.0, 0
    for number in range(count):
        one = np.array([number])
        length, second = (int(tables.rows(name, one)[0]) for name in ("length", "second_start"))
        ids = tables.rows("input_ids", one)[0, :length].astype(np.int64)
        segments = {"token_type_ids": torch.from_numpy((np.arange(length) >= second).astype(np.int64))[None]}
        for position in range(length):
            if ids[position] in (CLS, SEP):
                continue
            masked = ids.copy()
            masked[position] = MASK
            given = {} if "DistilBert" in type(theirs).__name__ else segments
            with torch.no_grad():
                logits = theirs(input_ids=torch.from_numpy(masked)[None], **given).logits[0, position]
            nats, tokens = nats - float(logits.double().log_softmax(-1)[ids[position]]), tokens + 1
    return nats, tokens


def test_figures_are_those_of_a_loop_over_transformers(case: Case, evaluate: Callable) -> None:
    figures = evaluate()["figures"]
    nats, tokens = looped(case.model, case.manifest, 6)
    assert figures["tokens"] == tokens > 60
    assert figures["pseudo_nats_per_token"] == pytest.approx(nats / tokens, rel=1e-6)
    assert figures["pseudo_perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-6)
    assert figures["sequences"] == 6


def test_any_model_of_transformers_is_scored(case: Case, evaluate: Callable, tmp_path: Path) -> None:
    config = DistilBertConfig(
        vocab_size=40, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=LENGTH, initializer_range=0.5
    )
    DistilBertForMaskedLM(config).save_pretrained(tmp_path / "distilbert")
    figures = evaluate(tmp_path / "distilbert", examples=3)["figures"]
    nats, tokens = looped(tmp_path / "distilbert", case.manifest, 3)
    assert figures["pseudo_nats_per_token"] == pytest.approx(nats / tokens, rel=1e-6)


def test_each_token_but_the_special_ones_is_masked_once() -> None:
    found = Originals(np.array([[CLS, 8, SEP, 9, SEP, PAD], [CLS, 7, 8, SEP, PAD, PAD]]), np.array([5, 4]), np.array([3, 4]))
    scored = np.array([[False, True, False, True, False, False], [False, True, True, False, False, False]])
    (batch,) = mask_one_by_one(found, scored, MASK)
    assert {name: array.astype(int).tolist() for name, array in batch.items()} == {
        "input_ids": [
            [CLS, MASK, SEP, 9, SEP, PAD],
            [CLS, 8, SEP, MASK, SEP, PAD],
            [CLS, MASK, 8, SEP, PAD, PAD],
            [CLS, 7, MASK, SEP, PAD, PAD],
        ],
        "attention_mask": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]],
        "token_type_ids": [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
        "masked_positions": [[1], [3], [1], [2]],
        "masked_labels": [[8], [9], [7], [8]],
    }


def test_batches_and_chunks_change_no_figure(evaluate: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate()
    monkeypatch.setattr(masked_scoring, "CHUNK", 5 * LENGTH)
    monkeypatch.setattr(pseudo_perplexity, "ROWS", 4)
    for tokens in (1, 8 * LENGTH):
        found = evaluate(execution=Execution(threads=1, batch_tokens=tokens))
        assert found["protocol"] == whole["protocol"]
        assert found["figures"] == pytest.approx(whole["figures"], rel=1e-6)


def test_stored_masks_are_undone(case: Case, evaluate: Callable, tmp_path: Path) -> None:
    static = examples(tmp_path / "static", masks="static")
    hidden, plain = ExampleTables(static, "held_out"), ExampleTables(case.manifest, "held_out")
    numbers = np.arange(len(plain))
    assert (hidden.rows("input_ids", numbers) == MASK).any()
    for undone, original in zip(originals(hidden, numbers), originals(plain, numbers), strict=True):
        np.testing.assert_array_equal(undone, original)
    assert evaluate(manifest=static)["figures"] == evaluate()["figures"]


def test_the_protocol_is_recorded(case: Case, evaluate: Callable) -> None:
    found = evaluate(examples=5, limit=2, task="pseudo_perplexity_before")
    summary = found.pop("summary")
    assert Result.model_validate(found).task == "pseudo_perplexity_before"
    protocol = found["protocol"]
    expected = {
        "tokenizer_sha256": sha256_of(case.manifest.parent / "tokenizer.json"),
        "manifest_sha256": sha256_of(case.manifest),
        "split": "held_out",
        "examples": 5,
        "limit": 2,
    }
    assert {name: protocol[name] for name in expected} == expected
    assert found["model_sha256"] == sha256_of(case.model / "model.safetensors")
    assert found["figures"]["sequences"] == 2
    assert summary.startswith(f"predicted each of {found['figures']['tokens']} tokens of 2 sequences by itself: ")
    assert "limit" not in evaluate()["protocol"]


def test_there_are_no_more_sequences_than_held_out(case: Case, evaluate: Callable) -> None:
    everything = len(ExampleTables(case.manifest, "held_out"))
    assert evaluate(examples=10**6)["figures"]["sequences"] == everything
