"""Tokenizers as users meet them that do not suit a text or a model: the right figure, or a refusal by name."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from choice_files import HELLASWAG, write_lines
from llama_form import llama_folder
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from harness_tasks import PROSE, passages, small_model, small_tokenizer
from relm.artifact import read_json
from relm.errors import RelmError
from relm.evaluation.beginning import added_tokens, prefix_token
from relm.evaluation.choices.multiple_choice import evaluate_multiple_choice
from relm.evaluation.evaluated_text import encode_texts, lacking_characters
from relm.evaluation.execution import Execution
from relm.evaluation.lambada import evaluate_lambada
from relm.evaluation.text_perplexity import evaluate_text
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.recipes.evaluation.protocol_options import Lambada, MultipleChoice, TextPerplexity

ONE_THREAD = Execution(threads=1)


def written(tokenizer: Tokenizer, folder: Path, special: Sequence[str] = (), template: str | None = None) -> LoadedTokenizer:
    """Write and load a tokenizer with special tokens, and a template that puts some of them around a text."""
    tokenizer.add_special_tokens(list(special))
    if template is not None:
        named = [(name, tokenizer.token_to_id(name)) for name in special]
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=named)
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder / "tokenizer.json")


def words(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


LETTERS = {"b": 0, "c": 1}
# Tokenizers that know two letters, and no unknown token.
WITHOUT_UNKNOWN: dict[str, Callable[[], Tokenizer]] = {
    "bpe": lambda: words(models.BPE(LETTERS, [])),
    "wordpiece": lambda: words(models.WordPiece(LETTERS, unk_token="[UNK]")),
    "words": lambda: words(models.WordLevel(LETTERS)),
    "unigram": lambda: words(models.Unigram([("b", -1.0), ("c", -1.0)], unk_id=None)),
}


@pytest.mark.parametrize("kind", WITHOUT_UNKNOWN)
def test_a_character_without_a_token_is_refused_and_never_left_out(kind: str, tmp_path: Path) -> None:
    loaded = written(WITHOUT_UNKNOWN[kind](), tmp_path)
    assert encode_texts(loaded, ["b c\nb"]).tokens.tolist() == [0, 1, 0]
    with pytest.raises(RelmError, match=r"tokenizer\.json: (has no token for 'z'|cannot encode the text: )"):
        encode_texts(loaded, ["b c zb"])


def test_a_byte_without_a_token_is_noticed_and_all_others_are_not(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    for left_out, lacking in (("", []), ("©", ["é"])):  # the second byte of é
        tokenizer = Tokenizer(models.BPE({each: n for n, each in enumerate(alphabet) if each != left_out}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        assert lacking_characters(tokenizer, set("a é\n漢")) == lacking


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_a_tokenizer_that_lacks_the_letter_a_puts_its_own_tokens_before_a_text_and_no_others(kind: str, tmp_path: Path) -> None:
    loaded = written(WITHOUT_UNKNOWN[kind](), tmp_path, ["<s>", "</s>"], "<s> $A </s>")
    assert added_tokens(loaded) == (2,)


def test_dropout_of_merges_is_only_for_training(tmp_path: Path) -> None:
    path = small_tokenizer(tmp_path)
    text = PROSE.read_text(encoding="utf-8")[:2000]
    expected = load_tokenizer(path).tokenizer.encode(text).ids
    content = json.loads(path.read_text())
    content["model"]["dropout"] = 0.5
    (tmp_path / "dropout.json").write_text(json.dumps(content))
    loaded = load_tokenizer(tmp_path / "dropout.json")
    assert loaded.tokenizer.encode(text).ids == expected
    assert encode_texts(loaded, [text]).tokens.tolist() == expected


@pytest.fixture(scope="module")
def without_ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose tokenizer has no special token."""
    folder = tmp_path_factory.mktemp("without_ends")
    content = json.loads(small_tokenizer(folder).read_text())
    content["added_tokens"] = []
    (folder / "bare.json").write_text(json.dumps(content))
    return small_model(folder / "model", folder / "bare.json", positions=200)


def test_what_needs_no_end_of_text_is_scored_without_one(without_ends: Path, tmp_path: Path) -> None:
    tokenizer, output = without_ends / "tokenizer.json", tmp_path / "e.json"
    questions = write_lines(tmp_path / "q.jsonl", HELLASWAG)
    evaluate_multiple_choice(without_ends, tokenizer, questions, MultipleChoice(format="hellaswag"), output=output)
    assert read_json(output)["figures"]["examples"] == len(HELLASWAG)
    lines = write_lines(tmp_path / "l.jsonl", [{"text": text} for text in passages()[:3]])
    evaluate_lambada(without_ends, tokenizer, lines, Lambada(), output=output, execution=ONE_THREAD)
    assert read_json(output)["protocol"]["begin_tokens"] == []


def test_what_needs_one_is_refused_with_the_way_out(without_ends: Path) -> None:
    with pytest.raises(
        RelmError, match=r"tokenizer\.json: has no token that begins \(bos\) or ends \(eos\) a text.+Name bos_token"
    ):
        prefix_token(load_tokenizer(without_ends / "tokenizer.json"), without_ends)


def test_a_tokenizer_with_other_ids_than_the_model_s_own_is_refused(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "model", True)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    last = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[last[0]], vocabulary[last[1]] = vocabulary[last[1]], vocabulary[last[0]]
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(content))
    (tmp_path / "a.txt").write_text(PROSE.read_text(encoding="utf-8")[:500], encoding="utf-8")
    options, output = TextPerplexity(context=8), tmp_path / "e.json"
    with pytest.raises(RelmError, match=r"has id 39[89], but 39[89] in .+/model/tokenizer\.json, and 1 more tokens differ"):
        evaluate_text(folder, other, tmp_path / "a.txt", options, output=output, execution=ONE_THREAD)
    vocabulary[last[0]], vocabulary[last[1]] = vocabulary[last[1]], vocabulary[last[0]]
    other.write_text(json.dumps(content, indent=4))  # other bytes, the same ids
    evaluate_text(folder, other, tmp_path / "a.txt", options, output=output, execution=ONE_THREAD)
    assert output.exists()
