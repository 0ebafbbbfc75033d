import numpy as np
import pytest
import torch

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation import random_windows
from relm.evaluation.execution import Execution
from relm.evaluation.random_windows import estimate, evaluate_random_windows
from relm.examples.contract import draw_indices
from relm.examples.manifest import read_manifest
from relm.examples.storage import TokenStream
from relm.recipes.evaluation.evaluations import RandomWindows

ONE_THREAD = Execution(threads=1)


def found(tmp_path, evaluated, **settings) -> dict:
    output = tmp_path / "random_windows.json"
    options = RandomWindows(batches=4, seed=settings.pop("seed", 9))
    given = {"manifest": evaluated.manifest, "context": 16, "batch_size": 3, "options": options, "execution": ONE_THREAD}
    evaluate_random_windows(evaluated.model, output=output, **given | settings)
    return read_json(output)


def split_tokens(evaluated, split: str) -> np.ndarray:
    return TokenStream(evaluated.manifest, read_manifest(evaluated.manifest).split(split, evaluated.manifest)).tokens(0, 10**9)


def batch_means(evaluated, tokens: np.ndarray, seed: int) -> list[float]:
    """Return the mean loss of each batch as nanoGPT computes it; windows begin at 0 to len(tokens) - context - 1."""
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(evaluated.model).eval()
    starts = draw_indices(seed, np.arange(12), len(tokens) - 16)
    means = []
    for batch in starts.reshape(4, 3):
        x = torch.tensor(np.stack([tokens[start : start + 16] for start in batch]))
        y = torch.tensor(np.stack([tokens[start + 1 : start + 17] for start in batch]))
        with torch.no_grad():
            means.append(torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1).double(), y.flatten()).item())
    return means


def test_the_loss_is_the_mean_of_the_batches_means_on_both_splits(tmp_path, evaluated) -> None:
    figures = found(tmp_path, evaluated)["figures"]
    for name, split in (("loss", "held_out"), ("train_loss", "train")):
        means = batch_means(evaluated, split_tokens(evaluated, split), seed=9)
        assert figures[name] == pytest.approx(np.mean(means), rel=1e-6)
        assert figures[f"{name}_standard_error"] == pytest.approx(np.std(means, ddof=1) / 2, rel=1e-5)
    assert figures["windows"] == 12
    assert figures["loss"] != figures["train_loss"]


def test_all_that_decided_the_figures_is_written(tmp_path, evaluated) -> None:
    result = found(tmp_path, evaluated)
    assert list(result) == ["task", "protocol", "figures", "model_sha256"]
    assert result["task"] == "random_windows"
    assert {"context": 16, "batch_size": 3, "batches": 4, "seed": 9}.items() <= result["protocol"].items()
    assert result["protocol"]["tokenizer_sha256"] == sha256_of(evaluated.tokenizer)
    assert result["model_sha256"] == sha256_of(evaluated.model / "model.safetensors")


def test_a_seed_draws_the_same_windows_and_another_one_others(tmp_path, evaluated) -> None:
    first, again, other = (found(tmp_path, evaluated, seed=seed)["figures"]["loss"] for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("block", [1, 16 * 5, 16 * 1000])
def test_how_many_windows_are_read_or_scored_at_once_makes_no_difference(tmp_path, evaluated, monkeypatch, block: int) -> None:
    together = found(tmp_path, evaluated)["figures"]
    monkeypatch.setattr(random_windows, "BLOCK", block)
    alone = Execution(threads=1, batch_tokens=1)
    assert found(tmp_path, evaluated, execution=alone)["figures"] == pytest.approx(together, rel=1e-6)


def test_one_batch_has_no_standard_error() -> None:
    assert estimate("loss", np.array([2.0])) == {"loss": 2.0}
    assert estimate("loss", np.array([1.0, 2.0, 3.0])) == {
        "loss": 2.0,
        "loss_standard_error": pytest.approx(1 / np.sqrt(3)),
    }


def test_a_context_that_does_not_fit_is_refused(tmp_path, evaluated) -> None:
    with pytest.raises(RelmError, match="has 16 positions; a context of 17 does not fit"):
        found(tmp_path, evaluated, context=17)
