"""The model card is what the Hugging Face hub expects, and its lines load the model."""

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from finished_runs import FinishedRun
from relm.plan.products import published_files
from relm.reporting.model_card import licence
from relm.reporting.pages import fence_text


def card(run: FinishedRun) -> str:
    return (run.report() / "README.md").read_text(encoding="utf-8")


def test_the_front_matter_is_what_the_hub_reads(run: FinishedRun) -> None:
    empty, front_matter, text = card(run).split("---\n", 2)
    assert empty == ""
    read = yaml.safe_load(front_matter)
    assert [result["dataset"]["type"] for result in read.pop("model-index")[0]["results"]] == ["texts"]
    assert read == {
        "language": "en",
        "license": "cc-by-sa-3.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["relm", "gpt2"],
    }
    verdict = "> **0.75 nats per token better than bigram counts, 1.88 bits per byte.** On held-out documents:"
    assert text.lstrip().startswith(f"# A tiny GPT-2 on two texts\n\n{verdict}")


def test_datasets_on_the_hub_are_linked(finished_run: Callable[..., Any]) -> None:
    source = {"huggingface": "owner/texts", "repository_type": "dataset", "revision": "a" * 40, "file": "a.xml"}
    assert yaml.safe_load(card(finished_run(source=source)).split("---\n")[1])["datasets"] == ["owner/texts"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CC-BY-SA-4.0", {"license": "cc-by-sa-4.0"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("GFDL-1.2-only", {"license": "gfdl"}),
        ("Public domain", {"license": "other", "license_name": "public-domain"}),
    ],
)
def test_licences_are_named_as_the_hub_names_them(name: str, expected: dict[str, str]) -> None:
    assert licence(name) == expected


def test_a_sample_cannot_end_its_code_block() -> None:
    assert fence_text("a\n```\nb") == "````text\na\n```\nb\n````"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise for any connection."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)


SMALL = {"layers": 2, "heads": 2, "hidden_size": 64}
ENCODER = SMALL | {"intermediate_size": 64}
# Maps an architecture to its section, its objective, and its class in transformers with sizes as small as the lines need.
MODELS: dict[str, tuple[dict[str, Any], str, str, dict[str, Any]]] = {
    "gpt2": (
        SMALL | {"positions": 64},
        "causal",
        "GPT2LMHeadModel",
        {"n_positions": 64, "n_embd": 8, "n_layer": 1, "n_head": 2},
    ),
    "bert": (
        ENCODER | {"positions": 64},
        "masked",
        "BertForMaskedLM",
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
    ),
    "t5": (
        ENCODER | {"head_size": 32},
        "seq2seq",
        "T5ForConditionalGeneration",
        {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    ),
}


@pytest.mark.parametrize("architecture", ["gpt2", *(pytest.param(name, marks=pytest.mark.full) for name in ("bert", "t5"))])
@pytest.mark.usefixtures("no_network")
def test_the_lines_of_the_card_use_the_model(
    finished_run: Callable[..., Any], recipe: Callable[..., Any], architecture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files that `transformers` itself would write, published under our names."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    section, objective, name, sizes = MODELS[architecture]
    phase = recipe()["pretrain"]["main"] | {"objective": objective}
    model = {"architecture": architecture, **section}
    run = finished_run(recipe(model=model, pretrain={"main": phase}, evaluate=[]))
    kind = getattr(transformers, name)
    kind(kind.config_class(vocab_size=8, bos_token_id=0, eos_token_id=0, pad_token_id=0, **sizes)).save_pretrained(
        run.model.parent
    )
    words = Tokenizer(
        models.WordLevel({"</s>": 0, "A": 1, "word": 2, "<mask>": 3, **{str(n): n for n in range(4, 8)}}, unk_token="word")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"eos_token": "</s>", "pad_token": "</s>", "mask_token": "<mask>", "unk_token": "word"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(run.model.parent)
    text = card(run)
    for each, source in published_files(run.plan).items():
        (Path("results/tiny") / each).parent.mkdir(parents=True, exist_ok=True)
        if source.exists():
            (Path("results/tiny") / each).hardlink_to(source)
    lines = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(lines) == 1
    assert len(lines[0].splitlines()) == 3
    exec(compile(lines[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()
    assert ("Its context is 64 tokens" in text) == (architecture == "gpt2")


def test_the_figures_are_what_the_hub_reads_as_a_model_index(run: FinishedRun) -> None:
    from huggingface_hub import ModelCard

    results = ModelCard(card(run)).data.eval_results
    assert results is not None
    found = {each.metric_type: each.metric_value for each in results}
    assert found == {"loss": 4.25, "bits_per_byte": 1.875, "perplexity": 70.11, "word_perplexity": 412.5}
    facts = {(each.task_type, each.dataset_type, each.dataset_name) for each in results}
    assert facts == {("text-generation", "texts", "Two texts")}


def test_a_smoke_twin_has_no_model_index(finished_run: Callable[..., Any]) -> None:
    assert "model-index" not in yaml.safe_load(card(finished_run(name="smoke/tiny")).split("---\n")[1])
