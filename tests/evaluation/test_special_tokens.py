"""Special tokens that a folder names: in tokenizer_config.json, special_tokens_map.json or the model's configuration."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from uncached_texts import GREEDY, uncached

from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.generation.texts import Writer, Writing
from relm.evaluation.special_tokens import SpecialTokens, special_tokens
from relm.examples.tokenization.tokenizer_files import load_tokenizer

ONE_THREAD = Execution(threads=1)
BEGIN, END, TURN = 11, 12, 13
NAMES = {BEGIN: "<|begin|>", END: "<|end|>", TURN: "<|turn|>"}


@pytest.fixture
def folder(tmp_path: Path, evaluated) -> Path:
    """Return a folder with a model and a tokenizer whose three special tokens, of unusual names, replace `<|endoftext|>`."""
    copy = shutil.copytree(evaluated.model, tmp_path / "model")
    content = json.loads(evaluated.tokenizer.read_text())
    vocabulary = {number: token for token, number in content["model"]["vocab"].items()} | NAMES
    content["model"]["vocab"] = {token: number for number, token in vocabulary.items()}
    content["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in NAMES.values()])
    tokenizer.save(str(copy / "tokenizer.json"))
    return copy


def found(folder: Path, tokenizer: Path | None = None) -> SpecialTokens:
    return special_tokens(load_tokenizer(tokenizer or folder / "tokenizer.json"), folder)


def write(folder: Path, name: str, **content: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **content}))


def detailed(name: str) -> dict[str, Any]:
    return {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize("form", [str, detailed], ids=["text", "mapping"])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_the_files_next_to_a_tokenizer_name_its_special_tokens(folder: Path, file: str, form: Any) -> None:
    assert found(folder) == SpecialTokens(None, None, frozenset())
    write(folder, file, bos_token=form("<|begin|>"), eos_token=form("<|end|>"))
    assert found(folder) == SpecialTokens(BEGIN, END, frozenset([END]))


def test_files_of_another_tokenizer_are_ignored(folder: Path, evaluated) -> None:
    write(folder, "tokenizer_config.json", eos_token="<|end|>")
    assert found(folder, evaluated.tokenizer) == SpecialTokens(0, 0, frozenset([0]))  # by config.json and its own name


def test_the_models_configuration_may_list_several_ends(folder: Path) -> None:
    write(folder, "config.json", bos_token_id=BEGIN, eos_token_id=[END, TURN])
    assert found(folder) == SpecialTokens(BEGIN, END, frozenset([END, TURN]))
    write(folder, "tokenizer_config.json", eos_token="<|turn|>")
    assert found(folder).eos == TURN
    write(folder, "generation_config.json", eos_token_id=TURN)
    write(folder, "config.json", eos_token_id=END)
    assert found(folder).ends == {END, TURN}


def test_an_end_that_is_no_special_token_of_the_tokenizer_is_left_out_with_a_warning(folder: Path, caplog) -> None:
    write(folder, "config.json", eos_token_id=[50256, 70, END])
    (folder / "generation_config.json").unlink()
    with caplog.at_level(logging.WARNING):
        assert found(folder).ends == {END}
    assert [record.getMessage().split(": ")[1] for record in caplog.records if " eos_token_id " in record.getMessage()] == [
        "eos_token_id 50256 is not the id of a special token of the tokenizer, and is ignored",
        "eos_token_id 70 is not the id of a special token of the tokenizer, and is ignored",
    ]


@pytest.mark.parametrize("name", ["<|stop|>", 7, ["<|end|>"]])
def test_a_name_that_the_tokenizer_does_not_know_is_refused(folder: Path, name: Any) -> None:
    write(folder, "tokenizer_config.json", eos_token=name)
    with pytest.raises(RelmError, match=r"model/tokenizer_config\.json: eos_token is .*, which is not a token of .*tokenizer"):
        found(folder)


def test_a_text_begins_and_ends_with_the_tokens_that_the_folder_names(folder: Path) -> None:
    writer = Writer(folder, folder / "tokenizer.json", ONE_THREAD)
    (spoken,) = uncached(writer.model, [writer.prompt("The ").ids], 8)
    (text,) = writer.texts([writer.prompt("The ")], Writing(8, GREEDY))
    assert (text.ended, text.tokens) == ("length", 8)
    end = spoken[3]
    write(folder, "tokenizer_config.json", eos_token=writer.loaded.tokenizer.id_to_token(end), bos_token="<|begin|>")
    writer = Writer(folder, folder / "tokenizer.json", ONE_THREAD)
    (text,) = writer.texts([writer.prompt("The ")], Writing(8, GREEDY))
    assert (text.ended, text.tokens) == ("end_of_text", spoken.index(end))
    assert writer.prompt("").ids == [BEGIN]
