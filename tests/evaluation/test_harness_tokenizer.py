"""The harness encodes as tokenizer.json does, also where `transformers` builds another tokenizer from the same folder."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizer_forms import byte_level, legacy_sentencepiece
from tokenizers import Tokenizer, normalizers
from transformers import AutoTokenizer

from harness_tasks import PROSE, harness_python, own_tasks, passages, small_model
from relm.artifact import read_json
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.harness.harness_tokenizer import TEXTS, choose_tokenizer
from relm.evaluation.harness.tasks import evaluate_harness
from relm.evaluation.lambada import evaluate_lambada
from relm.examples.tokenization.tokenizer_models import characters
from relm.recipes.evaluation.protocol_options import Lambada

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DIGITS = GPT2.replace(r" ?\p{N}+", r"\p{N}{1,3}")
LINES = [*PROSE.read_text(encoding="utf-8").splitlines(), *["in 1234567 of 234567 and 12345 years"] * 20]


def lower_case(path: Path) -> None:
    tokenizer = byte_level(path, LINES, GPT2)
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.save(str(path))


def whole_tokens(path: Path) -> None:
    """Write a tokenizer of which most tokens follow from no merge, as some of Llama 3's."""
    byte_level(path, LINES, GPT2)
    content = json.loads(path.read_text())
    content["model"] |= {"merges": content["model"]["merges"][:20], "ignore_merges": True}
    path.write_text(json.dumps(content))


OTHERS: dict[str, Callable[[Path], object]] = {
    "digits": lambda path: byte_level(path, LINES, DIGITS),
    "undivided": lambda path: byte_level(path, LINES, None),
    "lower case": lower_case,
    "whole tokens": whole_tokens,
}


def folder_of(folder: Path, write: Callable[[Path], object], settings: dict[str, str] | None) -> Path:
    write(folder / "tokenizer.json")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def chosen(folder: Path) -> tuple[Path, dict[str, Any]]:
    return choose_tokenizer(folder, folder / "made", folder)


@pytest.mark.parametrize("settings", [None, {"tokenizer_class": "GPT2Tokenizer"}, {"tokenizer_class": "GPT2TokenizerFast"}])
@pytest.mark.parametrize("kind", OTHERS)
def test_ids_are_those_of_tokenizer_json(kind: str, settings: dict[str, str] | None, tmp_path: Path) -> None:
    made, recorded = chosen(folder_of(tmp_path, OTHERS[kind], settings))
    tokenizer = AutoTokenizer.from_pretrained(made)
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [tokenizer(text)["input_ids"] for text in (*TEXTS, *LINES)] == [own.encode(text).ids for text in (*TEXTS, *LINES)]
    assert recorded["tokenizer"].startswith("GPT2Tokenizer of transformers 5.")
    assert recorded["prefix_token"] == {"id": 0, "token": "<|endoftext|>"}


@pytest.mark.parametrize(
    ("pattern", "settings"),
    [
        (GPT2, None),
        (GPT2, {"tokenizer_class": "GPT2Tokenizer"}),
        (DIGITS, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}),
    ],
)
def test_a_folder_of_the_same_ids_is_read_by_transformers(pattern: str, settings: dict[str, str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path, lambda path: byte_level(path, LINES, pattern), settings)
    prefix = {"id": 0, "token": "<|endoftext|>"}
    assert chosen(folder) == (folder, {"begin": "tokenizer", "begin_tokens": [], "prefix_token": prefix})


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "LlamaTokenizer"])
def test_a_tokenizer_without_an_end_of_text_is_refused_whatever_its_class(name: str, tmp_path: Path) -> None:
    write = legacy_sentencepiece if name == "GPT2Tokenizer" else OTHERS["digits"]
    folder = folder_of(tmp_path, write, {"tokenizer_class": name})
    with pytest.raises(RelmError, match=r"has no end of text; name its eos_token in tokenizer_config.json"):
        chosen(folder)


def test_characters_without_a_token_are_left_out_of_the_comparison(tmp_path: Path) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "a"}
    folder = folder_of(tmp_path, lambda path: characters(["a", "b"], special=False).save(str(path)), settings)
    assert chosen(folder)[0] == folder


def test_a_letter_that_the_settings_name_as_special_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, OTHERS["digits"], {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "e"})
    with pytest.raises(RelmError, match=r"a special token of the settings, e, also occurs inside words: .*; name another"):
        chosen(folder)


def test_a_class_that_cannot_be_built_of_the_file_is_refused_with_one_that_can(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, OTHERS["digits"], {"tokenizer_class": "T5Tokenizer"})
    with pytest.raises(
        RelmError, match=r"the tokenizer cannot be opened by transformers \(TypeError: .*; tokenizer_class: Pre"
    ):
        chosen(folder)


@pytest.mark.full
def test_the_harness_scores_the_ids_that_other_evaluations_score(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    python = harness_python()
    byte_level(tmp_path / "tokenizer.json", LINES, DIGITS)
    model = small_model(tmp_path / "model", tmp_path / "tokenizer.json")
    (model / "model.safetensors.json").unlink()  # as in folders of other origin
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    texts = [f"{text[:40]} in 1234567 to 234567" for text in passages()[:8]]
    tasks = own_tasks(tmp_path / "tasks", texts, [], python)
    execution = Execution(threads=1)
    with caplog.at_level(logging.WARNING):
        evaluate_harness(model, "own_lambada", python, tasks, output=tmp_path / "h.json", execution=execution)
    file = tasks / "own_lambada.jsonl"
    evaluate_lambada(model, model / "tokenizer.json", file, Lambada(), output=tmp_path / "e.json", execution=execution)
    harness, ours = read_json(tmp_path / "h.json"), read_json(tmp_path / "e.json")["figures"]
    assert harness["figures"]["perplexity"] == pytest.approx(ours["lambada_openai_perplexity"], rel=1e-4)
    assert harness["protocol"]["tokenizer"] in caplog.text
