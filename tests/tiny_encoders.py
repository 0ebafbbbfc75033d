"""Folders of tiny masked language models with random weights and a tokenizer, to be fine-tuned."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from relm.artifact import write_sidecar
from relm.examples.tokenization.tokenizer_files import import_tokenizer, train_tokenizer
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig

DATA = Path(__file__).resolve().parent / "data"
TINY = BertConfig(layers=2, heads=2, hidden_size=32, intermediate_size=64, positions=128, vocabulary_size=318)
TINY_ROBERTA = replace(
    TINY, family="roberta", padding_id=1, type_vocabulary_size=1, layer_norm_epsilon=1e-5, vocabulary_size=320
)


def write_model(folder: Path, config: BertConfig) -> Path:
    """Write a model and its tokenizer, WordPiece for a BERT and bytes for a RoBERTa, into an existing folder; return it."""
    bert = Bert(config)
    bert.initialise(torch.Generator().manual_seed(0))
    bert.save_folder(folder, {})
    if config.family == "bert":
        import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": DATA / "prose-vocabulary.txt"}, folder / "tokenizer.json")
        return folder
    text = (DATA / "prose-sample.txt").read_text(encoding="utf-8")
    documents = folder / "documents.jsonl"
    documents.write_text(json.dumps({"id": "1", "title": "", "text": text}) + "\n")
    write_sidecar(documents, documents=1)
    train_tokenizer("roberta_byte_level_bpe", [documents], config.vocabulary_size, 10**6, folder / "tokenizer.json")
    return folder
