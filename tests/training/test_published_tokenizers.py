"""The tokenizer of a published folder gives transformers' classes the training's token ids, for texts and for pairs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from relm.examples.tokenization import tokenizer_models as build
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.t5 import T5, T5Config
from relm.training.export import write_model

POSITIONS = 12
FIRST, SECOND = "a b c", "d e"
LONG = "a b c d e f g h"


def wordpiece(_folder: Path) -> Tokenizer:
    return build.wordpiece({token: number for number, token in enumerate([*build.BERT_SPECIAL, *"abcdefgh"])}, lower_case=True)


def byte_level(folder: Path, special: tuple[str, ...]) -> tuple[Path, Path]:
    """Write a `vocab.json` of special tokens and bytes, and a `merges.txt` without merges."""
    alphabet = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(alphabet)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return folder / "vocab.json", folder / "merges.txt"


def unigram(_folder: Path) -> Tokenizer:
    """Return a tokenizer built as T5's, with letters for pieces."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((f"{build.SPACE}{letter}", -1.0) for letter in "abcdefgh")]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=build.SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


BERT = BertConfig(
    layers=1, heads=2, hidden_size=8, intermediate_size=12, positions=POSITIONS, vocabulary_size=13, next_sentence=True
)
ROBERTA = replace(
    BERT, family="roberta", vocabulary_size=261, type_vocabulary_size=1, padding_id=1, next_sentence=False,
    layer_norm_epsilon=1e-5,
)  # fmt: skip
# Architecture -> model, tokenizer, transformers' own class, and the special tokens around and between texts and pairs.
PUBLISHED: dict[str, tuple[LanguageModel, Any, Any, str, str]] = {
    "bert": (Bert(BERT), wordpiece, hf.BertTokenizer, "[CLS] {} [SEP]", "[CLS] {} [SEP] {} [SEP]"),
    "roberta": (
        Bert(ROBERTA),
        lambda folder: build.roberta_bpe(*byte_level(folder, build.ROBERTA_SPECIAL)),
        hf.RobertaTokenizer,
        "<s> {} </s>",
        "<s> {} </s> </s> {} </s>",
    ),
    "gpt2": (
        Gpt2(Gpt2Config(layers=1, heads=2, hidden_size=8, positions=POSITIONS, vocabulary_size=257)),
        lambda folder: build.gpt2_bpe(*byte_level(folder, (build.END_OF_TEXT,))),
        hf.GPT2Tokenizer,
        "{}",
        "{} {}",
    ),
    "t5": (T5(T5Config(1, 2, 4, 8, 12, 11)), unigram, hf.T5Tokenizer, "{} </s>", "{} </s> {} </s>"),
}


def published(folder: Path, model: LanguageModel, tokenizer: Tokenizer) -> Path:
    """Return the folder that training writes of a model whose parameters are all random."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.5, generator=generator)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = asdict(load_tokenizer(folder / "tokenizer.json").special)
    write_model(model, folder / "model", folder / "tokenizer.json", special, {})
    return folder / "model"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_tokenizer_gives_the_ids_of_the_architectures_own_class(name: str, tmp_path: Path) -> None:
    model, made, own, around, between = PUBLISHED[name]
    tokenizer = hf.AutoTokenizer.from_pretrained(published(tmp_path, model, made(tmp_path)))
    assert tokenizer.model_input_names == own.model_input_names
    assert (tokenizer.padding_side, tokenizer.truncation_side) == (own.padding_side, own.truncation_side) == ("right", "right")
    assert tokenizer.model_max_length == (POSITIONS if name != "t5" else hf.tokenization_utils_base.VERY_LARGE_INTEGER)
    for pattern, texts in ((around, [FIRST]), (between, [FIRST, SECOND])):
        pieces = [" ".join(tokenizer.tokenize(text)) for text in texts]
        encoded = tokenizer(*texts)
        assert list(encoded) == own.model_input_names
        assert tokenizer.convert_ids_to_tokens(encoded["input_ids"]) == pattern.format(*pieces).split()
    if "token_type_ids" in own.model_input_names:
        assert encoded["token_type_ids"] == [0] * 5 + [1] * 3


def test_a_pair_truncated_to_the_models_length_keeps_its_segments(tmp_path: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(published(tmp_path, Bert(BERT), wordpiece(tmp_path)))
    encoded = tokenizer([LONG, "a"], [LONG, "b"], truncation=True, padding=True)
    assert [len(row) for row in encoded["input_ids"]] == [POSITIONS, POSITIONS]
    words = [tokenizer.convert_ids_to_tokens(row) for row in encoded["input_ids"]]
    assert words[0] == ["[CLS]", "a", "b", "c", "d", "[SEP]", "a", "b", "c", "d", "e", "[SEP]"]
    assert words[1] == ["[CLS]", "a", "[SEP]", "b", "[SEP]", *["[PAD]"] * 7]
    assert encoded["token_type_ids"] == [[0] * 6 + [1] * 6, [0, 0, 0, 1, 1, *[0] * 7]]
    assert encoded["attention_mask"] == [[1] * POSITIONS, [1] * 5 + [0] * 7]


@pytest.mark.parametrize("auto_class", ["AutoModelForPreTraining", "AutoModelForNextSentencePrediction"])
def test_next_sentence_logits_through_the_published_folder_are_ours(auto_class: str, tmp_path: Path) -> None:
    folder = published(tmp_path, Bert(BERT), wordpiece(tmp_path))
    theirs = getattr(hf, auto_class).from_pretrained(folder)
    encoded = hf.AutoTokenizer.from_pretrained(folder)(FIRST, SECOND, return_tensors="pt")
    with torch.inference_mode():
        answer = theirs(**encoded)
        logits = answer.get("seq_relationship_logits", answer.get("logits"))
        ids = torch.tensor([[2, 5, 6, 7, 3, 8, 9, 3]])  # [CLS] a b c [SEP] d e [SEP], as a pair lies in a table of examples
        segments = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
        ours = Bert.from_folder(folder).eval()
        expected, as_one = (ours._related(ours.encoded(ids, token_type_ids=given)[:, 0]) for given in (segments, 0 * segments))
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected, as_one, atol=1e-2), "the model does not look at segments"


def test_a_bert_with_one_segment_type_gets_no_segments(tmp_path: Path) -> None:
    folder = published(tmp_path, Bert(replace(BERT, type_vocabulary_size=1)), wordpiece(tmp_path))
    encoded = hf.AutoTokenizer.from_pretrained(folder)(FIRST, SECOND, return_tensors="pt")
    assert set(encoded) == {"input_ids", "attention_mask"}
    assert hf.AutoModelForPreTraining.from_pretrained(folder)(**encoded).prediction_logits.shape == (1, 8, 13)
