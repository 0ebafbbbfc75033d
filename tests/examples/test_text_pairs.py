"""Sequences of texts and pairs are those of transformers' tokenizers, truncated alike."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf

from glue_files import EXAMPLES
from question_files import SAMPLE
from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.text_pairs import PairSequences, encode_pairs, share_room
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, import_tokenizer, load_tokenizer, train_tokenizer
from small_tokenizers import save_words

VOCABULARY = SAMPLE.with_name("prose-vocabulary.txt")
WORDS = [word for word in VOCABULARY.read_text().split("\n") if word.isalpha()]
TEXTS = [
    *(text for task in ("cola", "mrpc", "qqp") for row in EXAMPLES[task] for text in row[:-1]),
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    " Ångström's constant is 3,14 % of Straße 5; 東京\u200b city,\tnaïvely so… C'est l'été — d'accord?!\n",
    " ".join(WORDS[:150]),
    " ".join(WORDS[30:171]),
]
Made = tuple[LoadedTokenizer, Any]


def bert(folder: Path) -> Made:
    """Return the tokenizer of the prose's vocabulary, and transformers' own."""
    import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": VOCABULARY}, folder / "tokenizer.json")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "vocab.txt").write_text(VOCABULARY.read_text())
    return load_tokenizer(folder / "tokenizer.json"), hf.BertTokenizer.from_pretrained(folder / "theirs")


def roberta(folder: Path) -> Made:
    """Return a byte-level BPE with RoBERTa's special tokens, trained on some texts, and transformers' own."""
    documents = folder / "documents.jsonl"
    documents.write_text("".join(json.dumps({"id": text[:9], "title": "", "text": text}) + "\n" for text in TEXTS))
    write_sidecar(documents, documents=len(TEXTS))
    train_tokenizer("roberta_byte_level_bpe", [documents], 300, 10**6, folder / "tokenizer.json")
    (folder / "theirs").mkdir()
    loaded = load_tokenizer(folder / "tokenizer.json")
    loaded.tokenizer.model.save(str(folder / "theirs"))
    # The library writes the ids of its model alone; those of special tokens are in the whole vocabulary.
    (folder / "theirs" / "vocab.json").write_text(json.dumps(loaded.tokenizer.get_vocab()))
    return loaded, hf.RobertaTokenizer.from_pretrained(folder / "theirs")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A function that returns the two tokenizers of a family."""
    families = {"bert": bert, "roberta": roberta}
    found = {name: make(tmp_path_factory.mktemp(name)) for name, make in families.items()}
    return found.__getitem__


def require_same(found: PairSequences, theirs: Any, family: str) -> None:
    """Compare all inputs of a model."""
    inputs = found.inputs()
    np.testing.assert_array_equal(inputs["input_ids"], theirs["input_ids"])
    np.testing.assert_array_equal(inputs["attention_mask"], theirs["attention_mask"])
    if family == "bert":  # RoBERTa has one kind of segment
        np.testing.assert_array_equal(inputs["token_type_ids"], theirs["token_type_ids"])


@pytest.mark.parametrize("length", [128, 64, 21, 20])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_sequences_are_those_of_transformers(family: str, length: int, made: Callable[[str], Made]) -> None:
    loaded, theirs = made(family)
    pairs = list(itertools.product(TEXTS, TEXTS))
    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    options = {"padding": "max_length", "truncation": "longest_first", "max_length": length, "return_tensors": "np"}
    require_same(encode_pairs(loaded, TEXTS, None, length), theirs(TEXTS, **options), family)
    require_same(encode_pairs(loaded, first, second, length), theirs(first, second, **options), family)


def test_texts_lose_tokens_as_in_the_original_but_for_one() -> None:
    def original(first: int, second: int, room: int) -> tuple[int, int]:
        while first + second > room:
            first, second = (first - 1, second) if first > second else (first, second - 1)
        return first, second

    for first, second, room in itertools.product(range(30), range(30), range(2, 40)):
        wanted, found = original(first, second, room), share_room(first, second, room)
        differs = room % 2 == 1 and room < 2 * first and first <= second
        assert found == ((wanted[0] - 1, wanted[1] + 1) if differs else wanted), (first, second, room)


def test_a_sequence_by_hand(made: Callable[[str], Made]) -> None:
    loaded, _ = made("bert")
    found = encode_pairs(loaded, ["it was the", "of"], ["best", ""], 8)
    tokens = [loaded.tokenizer.id_to_token(token) for token in found.input_ids[0]]
    assert tokens[:5] == ["[CLS]", "it", "was", "the", "[SEP]"]
    assert tokens[-1] == "[SEP]"
    assert (found.lengths.tolist(), found.second_starts.tolist()) == ([8, 4], [5, 3])
    assert found.inputs()["token_type_ids"].tolist() == [[0] * 5 + [1] * 3, [0, 0, 0, 1, 0, 0, 0, 0]]


def test_a_tokenizer_with_another_template_is_refused(tmp_path: Path) -> None:
    path = save_words(tmp_path / "tokenizer.json", ["[UNK]", "[CLS]", "[SEP]", "a"], ["[UNK]", "[CLS]", "[SEP]"], "[UNK]")
    with pytest.raises(RelmError, match=r"adds 0 tokens to two texts, expected 3 as BERT or 4 as RoBERTa"):
        encode_pairs(load_tokenizer(path), ["a"], ["a"], 8)
