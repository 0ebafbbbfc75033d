"""Every architecture in its forms, tiny, with a batch for each and the class of transformers that computes the same."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from relm.models.bert import Bert, BertConfig
from relm.models.bert_classification import BertForClassification
from relm.models.bert_span import BertForSpans
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig
from relm.models.t5 import T5, T5Config

Model = TypeVar("Model", bound=nn.Module)

GPT2 = Gpt2Config(layers=2, heads=2, hidden_size=8, positions=6, vocabulary_size=11, dropout=0.0)
LLAMA = LlamaConfig(
    layers=2, heads=8, hidden_size=32, intermediate_size=44, positions=6, vocabulary_size=11, key_value_heads=4, tied_head=True
)
BERT = BertConfig(
    layers=2, heads=2, hidden_size=8, intermediate_size=12, positions=10, vocabulary_size=23,
    hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
PAIRS = replace(BERT, next_sentence=True)
ROBERTA = replace(BERT, family="roberta", padding_id=1, type_vocabulary_size=1, layer_norm_epsilon=1e-5)
# As in Graphcore's recipe: no biases around attention, no transform layer, no bias of predictions.
GRAPHCORE = replace(
    PAIRS, query_key_value_bias=False, attention_projection_bias=False, transform_layer=False, prediction_bias=False,
    initialisation="truncated_normal", layer_norm_epsilon=1e-3, padding_id=None,
)  # fmt: skip
# Three heads of five are not as wide as eight; twelve distances are fewer than the longest sequence has.
T5_11 = T5Config(
    layers=2, heads=3, head_size=5, hidden_size=8, intermediate_size=12, vocabulary_size=23,
    relative_attention_buckets=8, relative_attention_distance=12, dropout=0.0,
)  # fmt: skip
T5_10 = replace(T5_11, tied_head=True, feed_forward="relu")
MT5 = replace(T5_11, family="mt5")
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 10, 0]])
DECODER_BATCH = {"input_ids": IDS, "labels": torch.cat([IDS[:, 1:], torch.full((2, 1), -100)], dim=1)}
DOCUMENTS = {"document_ids": torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]])}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Count of outputs -> labels of three sequences.
CLASS_LABELS: dict[int, Tensor] = {1: torch.tensor([0.0, 2.25, 5.0]), 2: torch.tensor([1, 0, 1]), 3: torch.tensor([2, 0, 1])}


def bert_batch(config: BertConfig, length: int = 10, capacity: int = 4) -> dict[str, Tensor]:
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


def tuning_batch(config: BertConfig, **labels: Tensor) -> dict[str, Tensor]:
    """Return three sequences with labels."""
    batch = {key: bert_batch(config)[key] for key in INPUTS}
    if config.family == "roberta":  # transformers gives its padding another position
        batch |= {"attention_mask": torch.ones_like(batch["input_ids"]), "input_ids": batch["input_ids"].clamp(min=2)}
    return {**batch, **labels}


def t5_batch(config: T5Config, source: int = 16, target: int = 14) -> dict[str, Tensor]:
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


def dense_labels(batch: dict[str, Tensor]) -> Tensor:
    """Return (batch, sequence): the label of each scored position, -100 elsewhere."""
    dense = torch.full_like(batch["input_ids"], -100)
    for row, (positions, labels) in enumerate(zip(batch["masked_positions"], batch["masked_labels"], strict=True)):
        for position, label in zip(positions.tolist(), labels.tolist(), strict=True):
            if label != -100:
                dense[row, position] = label
    return dense


@dataclass(frozen=True)
class Form:
    """A configuration, our class, that of transformers, and a batch."""

    config: Any
    ours: Any
    theirs: Any
    make_batch: Callable[[], dict[str, Tensor]]
    labels: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    """The labels of a batch as transformers takes them."""
    answers: Callable[[dict[str, Tensor]], Tensor]
    """The labels that the likeliest are compared with."""

    def build(self) -> Any:
        """Return our model with random weights."""
        return randomised(self.ours(self.config), 0.3 if self.ours is Llama else 0.5)

    def pair(self, folder: Path, spread: float | None = None) -> tuple[Any, Any]:
        """Return our model, and the one that transformers reads from its folder with every weight found and none left over."""
        ours = randomised(self.ours(self.config), spread) if spread else self.build()
        ours.save_folder(folder, {"eos_token_id": 1})
        theirs, report = self.theirs.from_pretrained(folder, output_loading_info=True)
        assert not any(report.values()), report
        return ours, theirs.train()


def masked_labels(config: BertConfig) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    if config.next_sentence:
        return lambda batch: {"labels": dense_labels(batch), "next_sentence_label": batch["next_sentence_labels"]}
    return lambda batch: {"labels": dense_labels(batch)}


def form(config: Any) -> Form:
    """Return the form of a configuration's language model."""
    if isinstance(config, Gpt2Config | LlamaConfig):
        gpt2 = isinstance(config, Gpt2Config)
        kinds = (Gpt2, transformers.GPT2LMHeadModel) if gpt2 else (Llama, transformers.LlamaForCausalLM)
        return Form(config, *kinds, lambda: dict(DECODER_BATCH), unshifted_labels, lambda batch: batch["labels"])
    if isinstance(config, T5Config):
        mt5 = config.family == "mt5"
        kind = transformers.MT5ForConditionalGeneration if mt5 else transformers.T5ForConditionalGeneration
        return Form(config, T5, kind, lambda: t5_batch(config), lambda b: {"labels": b["labels"]}, lambda b: b["labels"])
    bert = transformers.BertForPreTraining if config.next_sentence else transformers.BertForMaskedLM
    kind = transformers.RobertaForMaskedLM if config.family == "roberta" else bert
    return Form(config, Bert, kind, lambda: bert_batch(config), masked_labels(config), dense_labels)


def unshifted_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return labels that transformers shifts by one."""
    return {"labels": torch.cat([batch["input_ids"][:, :1], batch["labels"][:, :-1]], dim=1)}


def split_answers(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    starts, ends = batch["answer_positions"].T
    return {"start_positions": starts, "end_positions": ends}


def classifier(config: BertConfig, labels: int) -> Form:
    """Return the form of a classifier, or for one label of a model of scores."""
    roberta, name = config.family == "roberta", "scores" if labels == 1 else "class_labels"
    theirs = transformers.RobertaForSequenceClassification if roberta else transformers.BertForSequenceClassification
    batch = {name: CLASS_LABELS[labels]}
    return Form(
        replace(config, head="classes", labels=labels), BertForClassification, theirs, lambda: tuning_batch(config, **batch),
        lambda batch: {"labels": batch[name]}, lambda batch: batch[name],
    )  # fmt: skip


def spans(config: BertConfig) -> Form:
    """Return the form of a model that finds answers; the last sequence has none."""
    theirs = transformers.RobertaForQuestionAnswering if config.family == "roberta" else transformers.BertForQuestionAnswering
    positions = torch.tensor([[2, 6], [1, 1], [0, 0]])
    return Form(
        replace(config, head="spans"), BertForSpans, theirs, lambda: tuning_batch(config, answer_positions=positions),
        split_answers, lambda batch: batch["answer_positions"],
    )  # fmt: skip


TANH = replace(BERT, activation="gelu_tanh", layer_norm_epsilon=1e-3)
BERTS = {"masked": form(BERT), "pairs": form(PAIRS), "tanh": form(TANH), "roberta": form(ROBERTA)}
DECODERS = {
    "gpt2": form(GPT2),
    "gpt2-erf": form(replace(GPT2, activation="gelu_erf")),
    "gpt2-no-biases": form(replace(GPT2, biases=False)),
    "gpt2-erf-no-biases": form(replace(GPT2, biases=False, activation="gelu_erf")),
    "llama-8/4": form(LLAMA),
    "llama-8/1": form(replace(LLAMA, key_value_heads=1)),
    "llama-8/8-untied": form(replace(LLAMA, key_value_heads=8, tied_head=False, rotary_base=500.0)),
    "llama-8/2-untied": form(
        replace(LLAMA, key_value_heads=2, tied_head=False, rms_norm_epsilon=0.1, hidden_size=48)
    ),
}  # fmt: skip
T5S = {
    "t5-1.0": form(T5_10),
    "t5-1.1": form(T5_11),
    "t5-uneven": form(replace(T5_11, decoder_layers=1, layer_norm_epsilon=1e-2)),
    "mt5": form(MT5),
    "mt5-tied": form(replace(MT5, tied_head=True)),
}
TUNED = {
    **{f"{name}-answers": spans(BERTS[name].config) for name in ("masked", "tanh", "roberta")},
    **{f"{name}-{n}": classifier(BERTS[name].config, n) for name in ("masked", "tanh", "roberta") for n in CLASS_LABELS},
}
FORMS = {**DECODERS, **BERTS, **T5S, **TUNED}


def randomised(model: Model, spread: float = 0.5) -> Model:
    """Return the model with every parameter random and large, biases and normalisation too, so that none can be ignored."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, spread, generator=generator)
    return model


def initialised(model: LanguageModel, seed: int = 0) -> Any:
    """Return the model with its own initial weights."""
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of each parameter that has one."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float = 1e-6) -> None:
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_weights(found: nn.Module, expected: nn.Module) -> None:
    states = found.state_dict(), expected.state_dict()
    assert set(states[0]) == set(states[1])
    assert [name for name, tensor in states[1].items() if not torch.equal(tensor, states[0][name])] == []


def change_config(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights) or weights, folder / "model.safetensors")
