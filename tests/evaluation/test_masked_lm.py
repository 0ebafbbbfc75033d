"""The loss of masked tokens: that of transformers, with the same masks for every model, and averaged as in the blog."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from masked_cases import ALONE, LENGTH, MASK, TINY, TOKENS, Case, bert, examples, phase
from transformers import BertForMaskedLM, BertForPreTraining

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation import masked_scoring
from relm.evaluation.execution import Execution
from relm.evaluation.masked_lm import average_batches, evaluate_masked_lm, list_masks
from relm.evaluation.result import Result
from relm.examples.builders import open_examples
from relm.examples.contract import IGNORED, Batch
from relm.models.bert import Bert
from relm.recipes.evaluation.evaluations import MaskedLm

# Enough that every batch has a masked token.
BERNOULLI = {"selection": "bernoulli", "probability": 0.4}


@pytest.fixture
def evaluate(case: Case, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(model: Path = case.model, manifest: Path = case.manifest, **given: Any) -> dict[str, Any]:
        masked = given.pop("masked", {})
        options = MaskedLm(**{name: given.pop(name) for name in set(given) & set(MaskedLm.model_fields)})
        given = {"execution": ALONE, "task": "masked_lm", **given}
        summary = evaluate_masked_lm(
            model, manifest, output=tmp_path / "out.json", phase=phase(**masked), options=options, **given
        )
        return {**json.loads((tmp_path / "out.json").read_text()), "summary": summary}

    return run


def drawn(manifest: Path, seed: int, draw: int, **masked: Any) -> Batch:
    """Return all held-out examples with the masks of one drawing."""
    found = open_examples(manifest, "held_out", phase(**masked), seed)
    return found.batch(np.arange(len(found)), np.full(len(found), draw))


def dense_labels(batch: Batch) -> torch.Tensor:
    """Return labels, (examples, sequence), -100 for tokens that are not masked, as transformers' heads read them."""
    dense = np.full(batch["input_ids"].shape, IGNORED)
    row, position = np.nonzero(batch["masked_labels"] != IGNORED)
    dense[row, batch["masked_positions"][row, position]] = batch["masked_labels"][row, position]
    return torch.from_numpy(dense)


def inputs(batch: Batch, rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: torch.from_numpy(batch[name][rows].astype(np.int64)) for name in names}


def test_losses_and_accuracies_are_those_of_transformers_on_the_same_masks(case: Case, evaluate: Callable) -> None:
    figures = evaluate(seed=5)["figures"]
    batch = drawn(case.manifest, 5, 0)
    labels, pairs = dense_labels(batch), torch.from_numpy(batch["next_sentence_labels"])
    theirs = BertForPreTraining.from_pretrained(case.model).eval()
    with torch.no_grad():
        found = theirs(**inputs(batch), labels=labels, next_sentence_label=pairs)
    hidden = labels != IGNORED
    nats = float(F.cross_entropy(found.prediction_logits[hidden].double(), labels[hidden]))
    assert figures["masked_nats_per_token"] == pytest.approx(nats, rel=1e-6)
    assert figures["masked_nats_per_token"] + figures["next_sentence_nats"] == pytest.approx(float(found.loss), rel=1e-6)
    assert figures["masked_perplexity"] == pytest.approx(math.exp(nats), rel=1e-6)
    assert figures["masked_accuracy"] == float((found.prediction_logits.argmax(-1) == labels)[hidden].double().mean())
    assert figures["next_sentence_accuracy"] == float((found.seq_relationship_logits.argmax(-1) == pairs).double().mean())
    assert 0.2 < figures["next_sentence_accuracy"] < 0.8
    assert figures["masked_tokens"] == int(hidden.sum())
    assert figures["sequences"] == len(labels) > 40


def constant(folder: Path, **logits: float) -> Path:
    """Write a model with these logits at every position, 0 for other tokens, and odds of e : 1 for every next sentence."""
    model = Bert(replace(TINY, next_sentence=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for token, logit in logits.items():
            model.cls.predictions.bias[TOKENS.index(token)] = logit
        model.cls.seq_relationship.bias[0] = 1.0
    folder.mkdir()
    model.save_folder(folder, {})
    return folder


def test_a_uniform_model_has_the_logarithm_of_its_vocabulary_as_its_loss(
    case: Case, evaluate: Callable, tmp_path: Path
) -> None:
    figures = evaluate(constant(tmp_path / "m"))["figures"]
    assert figures["masked_nats_per_token"] == pytest.approx(math.log(len(TOKENS) + 3), rel=1e-6)
    assert figures["redrawn_perplexity"] == pytest.approx(len(TOKENS) + 3, rel=1e-5)
    assert figures["redrawn_perplexity_standard_deviation"] == pytest.approx(0, abs=1e-4)
    assert figures["masked_accuracy"] == 0  # of equals the first counts, which is padding
    labels = drawn(case.manifest, 0, 0)["next_sentence_labels"]
    assert figures["next_sentence_accuracy"] == (labels == 0).mean()
    expected = math.log1p(math.exp(-1)) + labels.mean()
    assert figures["next_sentence_nats"] == pytest.approx(expected, rel=1e-6)


def test_all_models_predict_the_same_tokens_and_another_seed_masks_others(
    case: Case, evaluate: Callable, tmp_path: Path
) -> None:
    first, again = evaluate(), evaluate()
    before = evaluate(bert(tmp_path / "before", seed=9))
    other = evaluate(seed=1)
    assert {**first, "summary": ""} == {**again, "summary": ""}
    assert before["protocol"] == first["protocol"]
    assert before["model_sha256"] != first["model_sha256"]
    assert before["figures"]["masked_nats_per_token"] != first["figures"]["masked_nats_per_token"]
    assert other["protocol"]["masks_sha256"] != first["protocol"]["masks_sha256"]
    assert other["figures"]["masked_tokens"] == first["figures"]["masked_tokens"]


def test_the_hash_is_of_masked_tokens_and_their_replacements(case: Case, evaluate: Callable) -> None:
    batch = {
        "input_ids": np.array([[2, 7, 4, 3], [2, 4, 3, 0]]),
        "masked_positions": np.array([[1, 2], [1, 0]]),
        "masked_labels": np.array([[7, 9], [8, IGNORED]]),
    }
    assert list_masks(np.array([4, 5]), batch).tolist() == [[4, 1, 7, 7], [4, 2, 4, 9], [5, 1, 4, 8]]
    whole = drawn(case.manifest, 0, 0)
    bytes_ = list_masks(np.arange(len(whole["input_ids"])), whole).astype("<i8").tobytes()
    assert evaluate()["protocol"]["masks_sha256"] == hashlib.sha256(bytes_).hexdigest()


@pytest.mark.parametrize("masked", [{}, BERNOULLI])
def test_batches_and_chunks_change_no_figure(
    masked: dict[str, Any], evaluate: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate(masked=masked, limit=25)
    monkeypatch.setattr(masked_scoring, "CHUNK", 7 * LENGTH)
    for tokens in (1, 8 * LENGTH):
        found = evaluate(masked=masked, limit=25, execution=Execution(threads=1, batch_tokens=tokens))
        assert found["protocol"] == whole["protocol"]
        assert found["figures"] == pytest.approx(whole["figures"], rel=1e-6)


def trainers_mean(losses: Callable[[list[int]], float], examples: int, batch_size: int, processes: int) -> float:
    """Return the mean of losses by transformers 4.2.2's sampler, loop and gatherer, step by step."""
    rounded = math.ceil(examples / processes) * processes
    order = list(range(examples)) + list(range(rounded - examples))
    slots = math.ceil(examples / (processes * batch_size)) * batch_size
    storage = [math.nan] * (processes * slots)
    for process in range(processes):
        mine = order[process * (rounded // processes) : (process + 1) * (rounded // processes)]
        offset = process * slots
        for start in range(0, len(mine), batch_size):
            loss = losses(mine[start : start + batch_size])
            storage[offset : offset + batch_size] = [loss] * batch_size
            offset += batch_size
    return float(np.mean(storage[:examples]))


@pytest.mark.parametrize(("batch_size", "processes"), [(8, 1), (3, 1), (100, 1), (8, 8), (3, 2), (2, 4)])
def test_redrawn_masks_are_averaged_as_trainer_averages(
    case: Case, evaluate: Callable, batch_size: int, processes: int
) -> None:
    """Compare on the masks that are drawn, with the losses that transformers computes for each batch."""
    options = {"seed": 3, "redraws": 2, "batch_size": batch_size, "processes": processes}
    figures = evaluate(masked=BERNOULLI, **options)["figures"]
    theirs = BertForMaskedLM.from_pretrained(case.model).eval()
    means = []
    for draw in (1, 2):
        batch = drawn(case.manifest, 3, draw, **BERNOULLI)
        labels, given = dense_labels(batch), inputs(batch)

        def loss(rows: list[int], labels: torch.Tensor = labels, given: dict[str, torch.Tensor] = given) -> float:
            with torch.no_grad():
                return float(theirs(**{name: value[rows] for name, value in given.items()}, labels=labels[rows]).loss)

        means.append(trainers_mean(loss, len(labels), batch_size, processes))
    assert figures["redrawn_nats"] == pytest.approx(np.mean(means), rel=1e-6)
    assert figures["redrawn_perplexity"] == pytest.approx(np.exp(means).mean(), rel=1e-6)
    assert figures["redrawn_perplexity_standard_deviation"] == pytest.approx(np.exp(means).std(ddof=1), rel=1e-4)
    assert figures["redrawn_nats"] != pytest.approx(figures["masked_nats_per_token"], rel=1e-4)


@pytest.mark.parametrize(
    ("batch_size", "processes", "expected"),
    [
        (1, 1, (1 + 4 + 4 + 0 + 5) / 5),
        (2, 1, (2 * 2.5 + 2 * 3 + 5) / 5),  # 5 / 2, 12 / 4 and 5 / 1: the last batch has one sequence
        (9, 1, 22 / 7),
        # Pieces of three, the second ends with the first sequence again: 5 / 2, 12 / 3, 5 / 2, and the rest is left out.
        (2, 2, (2 * 2.5 + 2 * 4 + 2.5) / 5),
    ],
)
def test_means_of_batches_by_hand(batch_size: int, processes: int, expected: float) -> None:
    nats, counts = np.array([1.0, 4.0, 12.0, 0.0, 5.0]), np.array([1, 1, 3, 1, 1])
    assert average_batches(nats, counts, batch_size, processes) == pytest.approx(expected)


def test_a_batch_without_a_masked_token_is_left_out() -> None:
    assert average_batches(np.array([2.0, 0.0, 4.0]), np.array([1, 0, 2]), 1) == 2.0


def test_stored_masks_are_used_unchanged_and_never_redrawn(evaluate: Callable, tmp_path: Path) -> None:
    manifest = examples(tmp_path / "static", masks="static")
    batch = drawn(manifest, 0, 0, masks="static")
    assert np.isin(batch["input_ids"][batch["attention_mask"]], [MASK]).any()
    found = [evaluate(manifest=manifest, masked={"masks": "static"}, seed=seed) for seed in (0, 1)]
    assert {**found[0], "summary": ""} == {**found[1], "summary": ""}
    assert not [name for name in found[0]["figures"] if name.startswith("redrawn")]
    assert found[0]["protocol"]["redrawn"] == (
        "not measured: the masks are stored with the examples, so there is nothing to redraw"
    )
    bytes_ = list_masks(np.arange(len(batch["input_ids"])), batch).astype("<i8").tobytes()
    assert found[0]["protocol"]["masks_sha256"] == hashlib.sha256(bytes_).hexdigest()


def test_pairs_are_not_scored_without_pairs_or_without_the_head(evaluate: Callable, tmp_path: Path) -> None:
    texts = examples(tmp_path / "texts", packing="full_sentences")
    without_pairs = evaluate(manifest=texts, masked={"packing": "full_sentences"})
    without_head = evaluate(model=bert(tmp_path / "headless", next_sentence=False))
    for found in (without_pairs, without_head):
        assert not [name for name in found["figures"] if name.startswith("next_sentence")]
        assert "Next sentence" not in found["protocol"]["in_words"]
    assert "Next sentence: " in evaluate()["protocol"]["in_words"]


def test_the_protocol_is_recorded(case: Case, evaluate: Callable) -> None:
    found = evaluate(limit=10, seed=2, masked={"probability": 0.3}, task="masked_lm_before")
    summary = found.pop("summary")
    assert Result.model_validate(found).task == "masked_lm_before"
    protocol, figures = found["protocol"], found["figures"]
    expected = {
        "tokenizer_sha256": sha256_of(case.manifest.parent / "tokenizer.json"),
        "manifest_sha256": sha256_of(case.manifest),
        "sequence_length": LENGTH,
        "probability": 0.3,
        "seed": 2,
        "redraws": 3,
        "batch_size": 8,
        "limit": 10,
    }
    assert {name: protocol[name] for name in expected} == expected
    assert found["model_sha256"] == sha256_of(case.model / "model.safetensors")
    assert figures["sequences"] == 10
    assert f"predicted {figures['masked_tokens']} masked tokens of 10 sequences: " in summary
    assert f"{figures['masked_nats_per_token']:.4f} nats per token, perplexity {figures['masked_perplexity']:.4f}, " in summary
    whole = drawn(case.manifest, 2, 0, probability=0.3)
    first = list_masks(np.arange(10), {name: array[:10] for name, array in whole.items()})
    assert protocol["masks_sha256"] == hashlib.sha256(first.astype("<i8").tobytes()).hexdigest()
    assert figures["masked_tokens"] == len(first)


def test_a_phase_that_hides_nothing_is_refused(case: Case, tmp_path: Path) -> None:
    other = phase().model_validate({"objective": "causal", "sequence_length": LENGTH})
    with pytest.raises(
        RelmError, match="objective: causal masks no tokens; give the settings of a phase with objective masked"
    ):
        evaluate_masked_lm(case.model, case.manifest, other, output=tmp_path / "out.json")


def test_a_phase_of_other_examples_is_refused(evaluate: Callable) -> None:
    with pytest.raises(RelmError, match=r"expected examples with .*, found"):
        evaluate(masked={"packing": "full_sentences"})


def test_a_loss_whose_perplexity_overflows_is_reported_in_nats(evaluate: Callable, tmp_path: Path) -> None:
    found = evaluate(constant(tmp_path / "m", **{"[UNK]": 2000.0}))
    assert found["figures"]["masked_nats_per_token"] > 1900
    assert not [name for name in found["figures"] if "perplexity" in name]
    assert "perplexity inf, " in found["summary"]


def test_examples_without_a_masked_token_are_an_error(evaluate: Callable) -> None:
    with pytest.raises(RelmError, match="no token of 3 held-out examples was masked; use more examples, or another seed"):
        evaluate(masked={"selection": "bernoulli", "probability": 1e-6}, limit=3)


def test_one_redraw_has_no_spread(evaluate: Callable) -> None:
    assert "redrawn_perplexity_standard_deviation" not in evaluate(redraws=1)["figures"]
