"""BERT in its three forms, tiny, and a batch with padding for them."""

from dataclasses import replace
from pathlib import Path

import torch
from random_weights import randomised
from torch import Tensor
from transformers import BertForMaskedLM, BertForPreTraining, PreTrainedModel, RobertaForMaskedLM

from relm.models.bert import Bert, BertConfig

TINY = BertConfig(
    layers=2, heads=2, hidden_size=8, intermediate_size=12, positions=10, vocabulary_size=23,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
FORMS = {
    "masked": (TINY, BertForMaskedLM),
    "pairs": (replace(TINY, next_sentence=True), BertForPreTraining),
    "tanh": (replace(TINY, activation="gelu_tanh", layer_norm_epsilon=1e-3), BertForMaskedLM),
    "roberta": (
        replace(TINY, family="roberta", padding_id=1, type_vocabulary_size=1, layer_norm_epsilon=1e-5),
        RobertaForMaskedLM,
    ),
}
# As in Graphcore's recipe: no biases around attention, no transform layer, no bias of predictions.
GRAPHCORE = replace(
    TINY, next_sentence=True, query_key_value_bias=False, attention_projection_bias=False, transform_layer=False,
    prediction_bias=False, initialisation="truncated_normal", layer_norm_epsilon=1e-3, padding_id=None,
)  # fmt: skip


def batch_for(config: BertConfig, length: int = 10, capacity: int = 4) -> dict[str, Tensor]:
    """Return three sequences, two padded at their end, the third with an unused position; none masks the first token."""
    draw = torch.Generator().manual_seed(7)
    lengths = torch.tensor([[length], [length - 3], [length // 2]])
    attention = (torch.arange(length) < lengths).long()
    ids = torch.randint(2, config.vocabulary_size, (3, length), generator=draw)
    kinds = torch.randint(0, config.type_vocabulary_size, (3, length), generator=draw)
    positions = torch.stack([1 + torch.randperm(int(n) - 1, generator=draw)[:capacity].sort().values for n in lengths])
    labels = torch.randint(2, config.vocabulary_size, (3, capacity), generator=draw)
    positions[2, -1], labels[2, -1] = 0, -100
    return {
        "input_ids": torch.where(attention.bool(), ids, config.padding_id or 0),
        "attention_mask": attention,
        "token_type_ids": kinds,
        "masked_positions": positions,
        "masked_labels": labels,
        "next_sentence_labels": torch.tensor([1, 0, 1]),
    }


def dense_labels(batch: dict[str, Tensor]) -> Tensor:
    """Return (batch, sequence): the label of each scored position, -100 elsewhere."""
    dense = torch.full_like(batch["input_ids"], -100)
    for row, (positions, labels) in enumerate(zip(batch["masked_positions"], batch["masked_labels"], strict=True)):
        for position, label in zip(positions.tolist(), labels.tolist(), strict=True):
            if label != -100:
                dense[row, position] = label
    return dense


def pair(form: str, folder: Path, config: BertConfig | None = None, spread: float = 0.5) -> tuple[Bert, PreTrainedModel]:
    """Return our model, and the one that transformers reads from its folder with every weight found and none left over."""
    tiny, kind = FORMS[form]
    ours = randomised(Bert(config or tiny), spread)
    ours.save_folder(folder, {})
    theirs, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return ours, theirs.train()
