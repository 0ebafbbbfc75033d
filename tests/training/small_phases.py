"""Small models of each architecture with a phase that trains them, and batches for them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from relm.examples.generated import GeneratedExamples
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.models.bert_configuration import BertConfig
from relm.models.configuration import Configuration
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2Config
from relm.models.llama_configuration import LlamaConfig
from relm.models.t5_configuration import T5Config
from relm.recipes.phase import Phase
from relm.training.architecture import unset_model

BATCH, LENGTH, VOCABULARY = 3, 48, 120


def phase(objective: str, **changes: Any) -> Phase:
    """Return a phase of a few steps of three sequences."""
    settings = {"sequence_length": LENGTH, "global_batch_size": BATCH, "steps": 5, "optimizer": {"learning_rate": 0.1}}
    return Phase.model_validate({"objective": objective, **settings, **changes})


def cases(dropout: float = 0.1, **changes: Any) -> dict[str, tuple[Configuration, Phase]]:
    """Return each architecture, with the options that change its shapes."""
    pairs = {"masked": {"packing": "sentence_pairs"}}
    dropouts = {"hidden_dropout": dropout, "attention_dropout": dropout}
    return {
        "gpt2": (Gpt2Config(3, 4, 32, 64, VOCABULARY, dropout=dropout), phase("causal", **changes)),
        "gpt2, within documents": (
            Gpt2Config(2, 4, 32, 64, VOCABULARY, dropout=dropout, biases=False),
            phase("causal", causal={"document_attention": True}, **changes),
        ),
        "llama": (
            LlamaConfig(3, 4, 32, 88, 64, VOCABULARY, key_value_heads=2, dropout=dropout, tied_head=True),
            phase("causal", **changes),
        ),
        "bert, sentence pairs": (
            BertConfig(3, 4, 32, 80, 64, VOCABULARY, next_sentence=True, **dropouts),
            phase("masked", **pairs, **changes),
        ),
        "bert, one layer, no transform": (
            BertConfig(1, 4, 32, 80, 64, VOCABULARY, transform_layer=False, **dropouts),
            phase("masked", **changes),
        ),
        "bert, answers": (BertConfig(3, 4, 32, 80, 64, VOCABULARY, head="spans", **dropouts), phase("spans", **changes)),
        "bert, three classes": (
            BertConfig(3, 4, 32, 80, 64, VOCABULARY, head="classes", labels=3, **dropouts),
            phase("three_classes", **changes),
        ),
        "roberta, a score": (
            BertConfig(2, 4, 32, 80, 64, VOCABULARY, family="roberta", padding_id=1, head="classes", labels=1, **dropouts),
            phase("score", **changes),
        ),
        "t5, gated, deeper decoder": (
            T5Config(2, 4, 12, 32, 48, VOCABULARY, decoder_layers=3, dropout=dropout),
            phase("seq2seq", seq2seq={"target_length": 12}, **changes),
        ),
        "t5, tied, short targets": (
            T5Config(2, 4, 12, 32, 48, VOCABULARY, tied_head=True, feed_forward="relu", dropout=dropout),
            phase("seq2seq", seq2seq={"target_length": 20}, **changes),
        ),
    }


CASES = list(cases())


def model_and_batch(config: Configuration, settings: Phase) -> tuple[LanguageModel, dict[str, Tensor]]:
    """Return a model with random weights in training mode, and a global batch."""
    model = unset_model(config)
    model.initialise(torch.Generator().manual_seed(0))
    examples = GeneratedExamples(settings, config.vocabulary_size, SpecialIds(0, 0, 1, 2, 3, 4), BATCH, 0)
    numbers = np.arange(BATCH)
    batch = examples.batch(numbers, np.zeros_like(numbers))
    model.train()
    return model, {name: torch.from_numpy(array) for name, array in batch.items()}
