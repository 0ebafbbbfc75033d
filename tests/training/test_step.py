"""The loss and gradient of a global batch for every division into micro-batches, with unequal counts of scored labels."""

import ast
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from relm.models.losses import Term
from relm.recipes.objectives import OBJECTIVES
from relm.training import step as step_module
from relm.training.step import accumulate_terms, loss_denominators, scored_counts

SEQUENCES, LENGTH, VOCABULARY, IGNORED = 16, 6, 11, -100
# Masked labels of each sequence: none in one, all in another, so that no two shares of the batch have the same count.
MASKED = (0, 6, 1, 5, 2, 2, 4, 1, 3, 6, 0, 1, 5, 4, 2, 3)


class Tiny(nn.Module):
    """A model that scores masked tokens and, with a separate head, the sentence pair."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, 5, generator=generator, dtype=torch.float64))
        self.pair = nn.Parameter(torch.randn(2, 5, generator=generator, dtype=torch.float64))

    def terms(self, batch: dict[str, Tensor]) -> dict[str, Term]:
        hidden = torch.tanh(self.embedding[batch["input_ids"]])
        return {
            "masked_token": self._term(hidden @ self.embedding.T, batch["masked_labels"]),
            "next_sentence": self._term(hidden.mean(1) @ self.pair.T, batch["next_sentence_labels"]),
        }

    @staticmethod
    def _term(logits: Tensor, labels: Tensor) -> Term:
        flat, wanted = logits.flatten(0, -2), labels.flatten()
        nats = F.cross_entropy(flat, wanted, ignore_index=IGNORED, reduction="sum")
        return Term(nats, (wanted != IGNORED).sum(), (flat.argmax(-1) == wanted).sum())


def global_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), generator=generator)
    labels = torch.full_like(ids, IGNORED)
    for row, count in enumerate(MASKED):
        labels[row, :count] = torch.randint(VOCABULARY, (count,), generator=generator)
    pairs = torch.randint(2, (SEQUENCES,), generator=generator)
    return {"input_ids": ids, "masked_labels": labels, "next_sentence_labels": pairs}


def cut(sizes: list[int]) -> list[dict[str, Tensor]]:
    batch = global_batch()
    parts = {name: tensor.split(sizes) for name, tensor in batch.items()}
    return [{name: parts[name][i] for name in batch} for i in range(len(sizes))]


def counts_of(micro_batches: list[dict[str, Tensor]]) -> list[dict[str, int]]:
    return [scored_counts(micro_batch, OBJECTIVES["masked"].labels) for micro_batch in micro_batches]


def result(sizes: list[int], shares: int = 1, **options: Any) -> tuple[Tensor, list[Tensor], Any]:
    """Return loss, gradients and terms of the global batch in micro-batches of these sizes."""
    model, micro_batches = Tiny(), cut(sizes)
    denominators = loss_denominators(counts_of(micro_batches), shares)
    accumulated = accumulate_terms(model.terms, iter(micro_batches), denominators, nullcontext, **options)
    return accumulated.loss, [p.grad for p in model.parameters() if p.grad is not None], accumulated.terms


def expected(loss_of: Callable[[Tiny], Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return a loss written as one expression, and its gradients."""
    model = Tiny()
    loss = loss_of(model)
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def means(model: Tiny, micro_batches: list[dict[str, Tensor]]) -> Tensor:
    """Return the mean over micro-batches of each one's mean losses; 0 for a term without labels."""
    total = torch.zeros((), dtype=torch.float64)
    for batch in micro_batches:
        for term in model.terms(batch).values():
            total = total + term.nats / max(1, int(term.count)) / len(micro_batches)
    return total


def assert_same(found: tuple[Tensor, list[Tensor]], wanted: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-12, atol=1e-14)
    assert len(found[1]) == len(wanted[1]) == 2
    for gradient, other in zip(found[1], wanted[1], strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-11, atol=1e-13)


WHOLE = expected(lambda model: means(model, cut([SEQUENCES])))


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_global_tokens_is_the_same_for_any_count_of_replicas_and_any_accumulation(replicas: int, accumulation: int) -> None:
    parts = replicas * accumulation
    loss, gradients, _ = result([SEQUENCES // parts] * parts)
    assert_same((loss, gradients), WHOLE)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, SEQUENCES), min_size=1, max_size=8))
def test_global_tokens_is_the_same_for_unequal_micro_batches(sizes: list[int]) -> None:
    sizes = [size for i, size in enumerate(sizes) if sum(sizes[: i + 1]) < SEQUENCES]
    sizes.append(SEQUENCES - sum(sizes))
    loss, gradients, _ = result(sizes)
    assert_same((loss, gradients), WHOLE)


@pytest.mark.parametrize("replicas", [2, 4, 8])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_per_replica_is_the_mean_of_the_replicas_means_for_any_accumulation(replicas: int, accumulation: int) -> None:
    parts = replicas * accumulation
    loss, gradients, _ = result([SEQUENCES // parts] * parts, replicas)
    assert_same((loss, gradients), expected(lambda model: means(model, cut([SEQUENCES // replicas] * replicas))))
    assert not torch.allclose(loss, WHOLE[0], rtol=1e-6)


def test_per_micro_batch_is_the_mean_of_the_micro_batches_means() -> None:
    loss, gradients, _ = result([2] * 8, 8)
    assert_same((loss, gradients), expected(lambda model: means(model, cut([2] * 8))))
    assert not torch.allclose(loss, WHOLE[0], rtol=1e-6)


def test_labels_are_counted_on_the_host_by_the_names_of_their_terms() -> None:
    labels = np.array([[5, -100], [-100, -100]])
    assert scored_counts({"labels": labels}, OBJECTIVES["causal"].labels) == {"next_token": 1}
    assert scored_counts({"labels": labels}, OBJECTIVES["seq2seq"].labels) == {"target_token": 1}
    assert scored_counts({"masked_labels": labels}, OBJECTIVES["masked"].labels) == {"masked_token": 1}
    both = {"masked_labels": labels, "next_sentence_labels": np.array([0, 1])}
    assert scored_counts(both, OBJECTIVES["masked"].labels) == {"masked_token": 1, "next_sentence": 2}


def test_a_share_without_a_scored_label_adds_nothing_and_stays_finite() -> None:
    loss, gradients, terms = result([1] * SEQUENCES, SEQUENCES)
    assert_same((loss, gradients), expected(lambda model: means(model, cut([1] * SEQUENCES))))
    assert torch.isfinite(loss)
    assert MASKED.count(0) == 2
    assert terms["masked_token"].count == sum(MASKED)


def test_the_terms_are_sums_over_the_global_batch() -> None:
    _, _, terms = result([4] * 4)
    whole = Tiny().terms(global_batch())
    for name, term in whole.items():
        torch.testing.assert_close(terms[name].nats, term.nats.detach(), rtol=1e-12, atol=0.0)
        assert terms[name].count == term.count
        assert terms[name].correct == term.correct
        assert not terms[name].nats.requires_grad


def test_a_loss_scale_multiplies_the_gradients_and_not_the_loss() -> None:
    loss, gradients, _ = result([4] * 4, loss_scale=torch.tensor(1024.0, dtype=torch.float64))
    assert_same((loss, [gradient / 1024 for gradient in gradients]), WHOLE)


def test_denominators_may_be_tensors_on_the_device() -> None:
    model, micro_batches = Tiny(), cut([8, 8])
    numbers = loss_denominators(counts_of(micro_batches))
    tensors = [{name: torch.tensor(value, dtype=torch.float64) for name, value in each.items()} for each in numbers]
    accumulated = accumulate_terms(model.terms, micro_batches, tensors, nullcontext)
    torch.testing.assert_close(accumulated.loss, WHOLE[0], rtol=1e-12, atol=0.0)


def test_gradients_are_added_to_existing_ones() -> None:
    model, micro_batches = Tiny(), cut([SEQUENCES])
    denominators = loss_denominators(counts_of(micro_batches))
    for _ in range(2):
        accumulate_terms(model.terms, micro_batches, denominators, nullcontext)
    assert model.pair.grad is not None
    torch.testing.assert_close(model.pair.grad, 2 * WHOLE[1][1], rtol=1e-11, atol=1e-13)


def test_mismatched_arguments_are_refused() -> None:
    counts = [{"masked_token": 3}, {"masked_token": 1}, {"masked_token": 2}]
    with pytest.raises(ValueError, match="3 micro-batches cannot be divided evenly among 2 shares"):
        loss_denominators(counts, 2)

    model, micro_batches = Tiny(), cut([8, 8])
    denominators = loss_denominators(counts_of(micro_batches))
    with pytest.raises(ValueError, match="1 micro-batches, but denominators for 2"):
        accumulate_terms(model.terms, micro_batches[:1], denominators, nullcontext)
    with pytest.raises(ValueError, match="more micro-batches than the 1"):
        accumulate_terms(model.terms, micro_batches, denominators[:1], nullcontext)
    with pytest.raises(ValueError, match=r"terms are \['masked_token', 'next_sentence'\]"):
        accumulate_terms(model.terms, micro_batches, [{"masked_token": 1.0}] * 2, nullcontext)


def test_it_can_be_imported_by_python_3_8() -> None:
    """The image of the last Poplar SDK has no newer one."""
    source = Path(step_module.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    assert "from __future__ import annotations" in source
    # Outside annotations, subscripts and unions are evaluated.
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert not [k.arg for node in called for k in node.keywords if k.arg == "strict"]
