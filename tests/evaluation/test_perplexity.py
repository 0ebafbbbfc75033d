import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation import perplexity
from relm.evaluation.baselines import BigramModel, unigram_entropy
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import Execution
from relm.evaluation.perplexity import evaluate_held_out, sum_stream_nats
from relm.examples.manifest import read_manifest
from relm.examples.storage import TokenStream

ONE_THREAD = Execution(threads=1)


def evaluate(evaluated, folder: Path, **changes) -> dict:
    """Return the result of the held-out documents in windows of 16 tokens, with some arguments changed."""
    given = {"model_folder": evaluated.model, "manifest": evaluated.manifest, "context": 16, "execution": ONE_THREAD, **changes}
    evaluate_held_out(**given, output=folder / "held_out.json")
    return read_json(folder / "held_out.json")


def held_out_stream(evaluated) -> TokenStream:
    return TokenStream(evaluated.manifest, read_manifest(evaluated.manifest).split("held_out", evaluated.manifest))


def test_the_loss_is_that_of_transformers_on_the_same_windows(tmp_path, evaluated) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel.from_pretrained(evaluated.model).eval()
    nats = 0.0
    with torch.no_grad():
        for start in range(0, len(evaluated.held_out) - 1, 16):
            window = torch.tensor(evaluated.held_out[start : start + 17])[None]
            logits = model(window[:, :-1]).logits
            nats += torch.nn.functional.cross_entropy(logits[0].double(), window[0, 1:], reduction="sum").item()
    figures = evaluate(evaluated, tmp_path)["figures"]
    assert figures["nats_per_token"] == pytest.approx(nats / (len(evaluated.held_out) - 1), rel=1e-6)


class Uniform(CausalModel):
    """A model to which all tokens are equally likely, and which records its inputs."""

    folder, sha256, positions, vocabulary_size = Path("uniform"), "", 16, 257

    def __init__(self) -> None:
        self.shown: list[list[int]] = []
        self.shapes: list[tuple[int, ...]] = []

    def hidden(self, input_ids: torch.Tensor) -> torch.Tensor:
        self.shown.extend(input_ids.tolist())
        self.shapes.append(tuple(input_ids.shape))
        return torch.zeros(*input_ids.shape, 1)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), self.vocabulary_size)


def test_every_token_but_the_first_is_scored_once_given_only_its_window(evaluated) -> None:
    model, stream = Uniform(), held_out_stream(evaluated)
    nats = sum_stream_nats(model, stream, context=16, batch_tokens=48)
    assert nats == pytest.approx((len(stream) - 1) * math.log(257), rel=1e-6)
    assert model.shapes == [(3, 16), (3, 16), (2, 16)]
    *whole, last = model.shown
    assert [token for row in whole for token in row] + last[:5] == evaluated.held_out[:-1].tolist()
    assert last[5:] == [last[4]] * 11  # padding, which is scored nowhere


def test_windows_that_fill_the_stream_leave_no_last_one(evaluated) -> None:
    model = Uniform()
    sum_stream_nats(model, held_out_stream(evaluated), context=9, batch_tokens=1000)
    assert len(evaluated.held_out) - 1 == 117
    assert model.shapes == [(13, 9)]


@pytest.mark.parametrize("block", [1, 16, 50, 117, 118])
def test_a_stream_is_read_a_block_of_windows_at_a_time(evaluated, monkeypatch, block: int) -> None:
    monkeypatch.setattr(perplexity, "BLOCK", block)
    read: list[int] = []
    stream = held_out_stream(evaluated)
    tokens = stream.tokens

    def noted(start: int, stop: int) -> np.ndarray:
        found = tokens(start, stop)
        read.append(len(found))
        return found

    monkeypatch.setattr(stream, "tokens", noted)
    model = Uniform()
    nats = sum_stream_nats(model, stream, context=16, batch_tokens=16)
    assert nats == pytest.approx(117 * math.log(257), rel=1e-6)
    assert model.shown == [evaluated.held_out[start : start + 16].tolist() for start in range(0, 112, 16)] + [
        evaluated.held_out[112:117].tolist()
    ]
    assert max(read) <= max(block, 16) + 1


def test_figures_follow_from_the_sum_of_nats(tmp_path, evaluated) -> None:
    result = evaluate(evaluated, tmp_path)
    figures, tokens = result["figures"], len(evaluated.held_out) - 1
    nats = figures["nats_per_token"] * tokens
    words = 50 // 5 + (tokens + 1 - 50) // 5
    assert figures["tokens_scored"] == tokens
    assert (figures["documents"], figures["words"], figures["bytes"]) == (2, words, tokens + 1)
    assert figures["perplexity_per_token"] == pytest.approx(math.exp(nats / tokens))
    assert figures["perplexity_per_word"] == pytest.approx(math.exp(nats / words))
    assert figures["bits_per_byte"] == pytest.approx(nats / math.log(2) / (tokens + 1))
    assert figures["nats_below_unigram"] == pytest.approx(figures["unigram_nats_per_token"] - nats / tokens)
    assert figures["nats_below_bigram"] == pytest.approx(figures["bigram_nats_per_token"] - nats / tokens)
    assert list(result) == ["task", "protocol", "figures", "model_sha256"]
    assert result["task"] == "held_out"
    assert result["model_sha256"] == sha256_of(evaluated.model / "model.safetensors")
    assert (result["protocol"]["context"], result["protocol"]["stride"]) == (16, 16)
    assert result["protocol"]["tokenizer_sha256"] == sha256_of(evaluated.tokenizer)
    assert result["protocol"]["bigram_training_tokens"] == 4000


def test_baselines_score_the_same_tokens(tmp_path, evaluated, monkeypatch) -> None:
    figures = evaluate(evaluated, tmp_path)["figures"]
    facts = read_manifest(evaluated.manifest)
    train = TokenStream(evaluated.manifest, facts.split("train", evaluated.manifest)).tokens(0, 10**9)
    bigram = BigramModel.estimated([train], 257).nats([evaluated.held_out]) / (len(evaluated.held_out) - 1)
    assert figures["bigram_nats_per_token"] == pytest.approx(bigram)
    assert figures["unigram_nats_per_token"] == pytest.approx(unigram_entropy([evaluated.held_out], 257))
    monkeypatch.setattr(perplexity, "LARGEST_TRAINING", 500)
    less = evaluate(evaluated, tmp_path)
    assert less["protocol"]["bigram_training_tokens"] == 500
    assert less["figures"]["bigram_nats_per_token"] > figures["bigram_nats_per_token"]


def test_the_protocol_records_the_tokens_between_documents(tmp_path, evaluated) -> None:
    folder = shutil.copytree(evaluated.manifest.parent, tmp_path / "copy")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"end_of_text_id": 0', '"end_of_text_id": null'))
    results = [evaluate(evaluated, tmp_path, manifest=path) for path in (evaluated.manifest, manifest)]
    assert results[0]["figures"] == results[1]["figures"]
    ends = [result["protocol"]["scored"].rpartition("; ")[2] for result in results]
    assert ends == ["an end of text follows each document", "nothing between these"]


def test_what_does_not_fit_the_model_is_refused(tmp_path, evaluated) -> None:
    larger = tmp_path / "larger.json"
    larger.write_text(evaluated.manifest.read_text().replace('"vocabulary_size": 257', '"vocabulary_size": 300'))
    damaged = Path(shutil.copytree(evaluated.model, tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    faults = [
        ({"context": 17}, "has 16 positions; a context of 17 does not fit"),
        ({"manifest": larger}, "the model has 257 tokens, the tokenizer 300"),
        ({"model_folder": tmp_path / "nowhere"}, r"nowhere: cannot be read as a causal language model: .*No such file"),
        ({"model_folder": damaged}, "damaged: cannot be read as a causal language model"),
    ]
    for changes, message in faults:
        with pytest.raises(RelmError, match=message):
            evaluate(evaluated, tmp_path, **changes)
    assert not (tmp_path / "held_out.json").exists()


def test_text_without_spaces_has_no_perplexity_per_word(evaluated) -> None:
    split = read_manifest(evaluated.manifest).splits["held_out"]
    assert "perplexity_per_word" in perplexity.figures(600.0 * split.words, 117, split, 1.0, 1.0)
    assert "perplexity_per_word" not in perplexity.figures(800.0 * split.words, 117, split, 1.0, 1.0)
