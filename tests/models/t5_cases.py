"""T5 in its forms, tiny, and a batch with padding for them."""

from dataclasses import replace
from pathlib import Path

import torch
from random_weights import randomised
from torch import Tensor
from transformers import MT5ForConditionalGeneration, PreTrainedModel, T5ForConditionalGeneration

from relm.models.t5 import T5, T5Config

# Three heads of five are not as wide as eight; twelve distances are fewer than the longest sequence has.
TINY = T5Config(
    layers=2, heads=3, head_size=5, hidden_size=8, intermediate_size=12, vocabulary_size=23,
    relative_attention_buckets=8, relative_attention_distance=12, dropout=0.0,
)  # fmt: skip
FORMS = {
    "1.0": (replace(TINY, tied_head=True, feed_forward="relu"), T5ForConditionalGeneration),
    "1.1": (TINY, T5ForConditionalGeneration),
    "uneven": (replace(TINY, decoder_layers=1, layer_norm_epsilon=1e-2), T5ForConditionalGeneration),
    "mt5": (replace(TINY, family="mt5"), MT5ForConditionalGeneration),
    "mt5-tied": (replace(TINY, family="mt5", tied_head=True), MT5ForConditionalGeneration),
}


def batch_for(config: T5Config, source: int = 16, target: int = 14) -> dict[str, Tensor]:
    """Return three pairs, the second and third with padding at the ends of source and target."""
    draw = torch.Generator().manual_seed(7)
    attention = torch.arange(source) < torch.tensor([[source], [source - 3], [source // 2]])
    scored = torch.arange(target) < torch.tensor([[target], [target - 5], [target // 2]])
    ids = torch.randint(2, config.vocabulary_size, (3, source), generator=draw)
    labels = torch.randint(2, config.vocabulary_size, (3, target), generator=draw)
    return {
        "input_ids": torch.where(attention, ids, config.pad_token_id),
        "attention_mask": attention,
        "labels": torch.where(scored, labels, -100),
    }


def pair(form: str, folder: Path, config: T5Config | None = None, spread: float = 0.5) -> tuple[T5, PreTrainedModel]:
    """Return our model, and the one that transformers reads from its folder with every weight found and none left over."""
    tiny, kind = FORMS[form]
    ours = randomised(T5(config or tiny), spread)
    ours.save_folder(folder, {"eos_token_id": 1})
    theirs, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert (theirs.lm_head.weight is theirs.shared.weight) == ours.config.tied_head
    return ours, theirs.train()
