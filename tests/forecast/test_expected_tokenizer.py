"""The facts that are expected of a recipe's tokenizer are those of the tokenizer once it is made."""

import dataclasses
import json
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, import_tokenizer, load_tokenizer, train_tokenizer
from relm.forecast.expected_tokenizer import KINDS, tokenizer_of
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from small_project import Commands

PUBLISHED = {
    "gpt2_bpe": {"vocab.json": "gpt2/encoder.json", "merges.txt": "gpt2/vocab.bpe"},
    "roberta_bpe": {name: f"roberta-fairseq/{name}" for name in ("vocab.json", "merges.txt")},
    "bert_wordpiece_uncased": {"vocab.txt": "bert-base-uncased/vocab.txt"},
    "t5_sentencepiece": {"spiece.model": "t5/spiece.model"},
    "llama2_c": {"tokenizer.bin": "../models/stories260K/tok512.bin"},
}


def special_of(loaded: LoadedTokenizer) -> dict[str, int]:
    return {name: number for name, number in dataclasses.asdict(loaded.special).items() if number is not None}


def write_documents(path: Path) -> Path:
    words = [f"{a}{b}{c}" for a in "abcd" for b in "aeiou" for c in "mnrst"]
    path.write_text(
        "".join(json.dumps({"id": word, "title": word, "text": " ".join([word] * 9 + words)}) + "\n" for word in words)
    )
    return path


@pytest.mark.parametrize("kind", ["byte_level_bpe", "wordpiece", "characters"])
def test_a_trained_tokenizer_has_the_special_tokens_that_were_expected(kind: str, tmp_path: Path) -> None:
    size = {"byte_level_bpe": 280, "wordpiece": 60, "characters": None}[kind]
    train_tokenizer(kind, [write_documents(tmp_path / "a.jsonl")], size, 10**6, tmp_path / "tokenizer.json")
    assert special_of(load_tokenizer(tmp_path / "tokenizer.json")) == KINDS[kind].special


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_published_tokenizer_is_what_was_expected(kind: str, tmp_path: Path, shared_data: Path) -> None:
    files = {name: shared_data / "tokenizers" / source for name, source in PUBLISHED[kind].items()}
    import_tokenizer(kind, files, tmp_path / "tokenizer.json")
    found = load_tokenizer(tmp_path / "tokenizer.json")
    assert special_of(found) == KINDS[kind].special
    assert KINDS[kind].vocabulary_size in (None, found.vocabulary_size)


@pytest.fixture
def plan(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    return Project().plan("tiny")


def test_the_file_is_read_first_and_then_the_recipe(plan: Plan, tmp_path: Path) -> None:
    facts, words = tokenizer_of(plan)
    assert (facts.vocabulary_size, facts.end_of_text_id) == (400, 0)
    assert words == "400 tokens, taken from tokenizer.vocabulary_size; it is not made yet"

    train_tokenizer("byte_level_bpe", [write_documents(tmp_path / "a.jsonl")], 280, 10**6, plan.tokenizer)
    facts, words = tokenizer_of(plan)
    assert (facts.vocabulary_size, facts.sha256) == (280, load_tokenizer(plan.tokenizer).sha256)
    assert words == f"280 tokens, of {plan.tokenizer}"


def test_a_size_that_nothing_states_is_requested(plan: Plan) -> None:
    choice = plan.recipe.tokenizer.model_copy(update={"train": "characters", "vocabulary_size": None})
    unknown = dataclasses.replace(plan, recipe=plan.recipe.model_copy(update={"tokenizer": choice}))
    with pytest.raises(RelmError, match="the size of its characters tokenizer is unknown; make the tokenizer first"):
        tokenizer_of(unknown)
