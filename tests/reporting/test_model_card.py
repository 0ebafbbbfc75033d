"""The model card is what the Hugging Face hub expects, and its lines load the model."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relm.reporting.model_card import licence
from relm.reporting.pages import fenced
from relm.reporting.publish import published_files
from relm.reporting.report import write_report


def card(run: Any) -> str:
    folder = run.plan.run_folder / "report"
    write_report(run.plan, run.verify, run.evaluations, folder)
    return (folder / "README.md").read_text(encoding="utf-8")


def test_the_front_matter_is_what_the_hub_reads(finished_run: Callable[..., Any]) -> None:
    empty, front_matter, text = card(finished_run()).split("---\n", 2)
    assert empty == ""
    assert yaml.safe_load(front_matter) == {
        "language": "en",
        "license": "cc-by-sa-3.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["relm", "gpt2"],
    }
    assert text.lstrip().startswith("# A tiny GPT-2 on two texts\n\n> **No published figure to compare with.**")


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
    assert fenced("a\n```\nb") == "````text\na\n```\nb\n````"


def test_figures_data_limits_and_the_way_to_repeat_it_are_stated(finished_run: Callable[..., Any]) -> None:
    text = card(finished_run())
    for words in (
        "| held_out | Perplexity per word | 412.50 |",
        "- training data: Two texts (<https://example.org/>), licence CC-BY-SA-3.0",
        "- phase main: 50 steps of 4 sequences of 64 tokens",
        "## Limitations",
        "snakemake results/tiny",
    ):
        assert words in text


def test_the_lines_of_the_card_load_the_model(finished_run: Callable[..., Any]) -> None:
    """The files that `transformers` itself would write, published under our names."""
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    run = finished_run()
    folder = run.model.parent
    GPT2LMHeadModel(GPT2Config(vocab_size=2, n_positions=8, n_embd=8, n_layer=1, n_head=2)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "word": 1}, unk_token="<|endoftext|>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|endoftext|>").save_pretrained(folder)
    text = card(run)
    for name, source in published_files(run.plan).items():
        target = Path("results/tiny") / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(source)
    lines = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(lines) == 1
    assert len(lines[0].splitlines()) == 3
    names: dict[str, Any] = {}
    exec(compile(lines[0], "README.md", "exec"), names)
    assert names["tokenizer"]("word")["input_ids"] == [1]
    assert sum(parameter.numel() for parameter in names["model"].parameters()) == 2 * 8 + 8 * 8 + 12 * 64 + 13 * 8 + 2 * 8
