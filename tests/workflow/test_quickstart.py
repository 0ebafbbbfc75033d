"""Results of `make quickstart`, checked after it by `make test-quickstart`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quickstart


@pytest.fixture(scope="module")
def results() -> Path:
    folder = Path(__file__).resolve().parent.parent.parent / "results" / "quickstart"
    assert folder.is_dir(), "run `make quickstart` first"
    return folder


def test_the_held_out_loss_beats_a_unigram_by_a_nat_and_a_bigram_model(results: Path) -> None:
    figures = json.loads((results / "eval" / "held_out.json").read_text())["figures"]
    print(json.dumps(figures, indent=1))
    assert figures["nats_per_token"] <= figures["unigram_nats_per_token"] - 1
    assert figures["nats_per_token"] < figures["bigram_nats_per_token"]


def test_it_trained_on_all_of_enwik8(results: Path) -> None:
    records = json.dumps(json.loads((results / "provenance.json").read_text()))
    assert "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8" in records
    figures = json.loads((results / "eval" / "held_out.json").read_text())["figures"]
    assert figures["documents"] > 50
    assert figures["bytes"] > 200_000


def test_transformers_loads_the_model_and_finds_english_likely(results: Path) -> None:
    """`transformers` loads the published folder and finds plain English likelier than a unigram model does."""
    program = (
        "import torch, transformers\n"
        f"model = transformers.AutoModelForCausalLM.from_pretrained({str(results)!r})\n"
        f"tokenizer = transformers.AutoTokenizer.from_pretrained({str(results)!r})\n"
        "ids = tokenizer('<|endoftext|>The United States is a country in North America.', return_tensors='pt').input_ids\n"
        "print(float(model(ids, labels=ids).loss))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads((results / "eval" / "held_out.json").read_text())["figures"]
    assert float(done.stdout) < figures["unigram_nats_per_token"]


def test_a_second_make_says_that_there_is_nothing_to_be_done(results: Path) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "quickstart"], cwd=results.parent.parent, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr
