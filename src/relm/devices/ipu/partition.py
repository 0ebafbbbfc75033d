"""A model's partition over IPUs: the IPU of each parameter."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from relm.models.bert import Bert
from relm.models.bert_classification import BertForClassification
from relm.models.bert_configuration import BertConfig
from relm.models.bert_span import BertForSpans
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig
from relm.models.segments import ModelSegment

# Head of a BERT's configuration -> its model.
_BERTS: Mapping[str, Callable[[BertConfig], LanguageModel]] = {
    "vocabulary": Bert,
    "spans": BertForSpans,
    "classes": BertForClassification,
}
_MODELS: Mapping[str, Callable[..., LanguageModel]] = {
    "gpt2": lambda **fields: Gpt2(Gpt2Config(**fields)),
    "llama": lambda **fields: Llama(LlamaConfig(**fields)),
    "bert": lambda **fields: _build_bert(BertConfig(**fields)),
    "roberta": lambda **fields: _build_bert(BertConfig(**fields)),
}


def build_model(architecture: str, configuration: Mapping[str, Any]) -> LanguageModel:
    """Return a model with unset weights, from the fields of its configuration."""
    if architecture not in _MODELS:
        raise ValueError(
            f"architecture {architecture!r} is not divided into segments; a pipeline trains {' or '.join(_MODELS)}"
        )
    return _MODELS[architecture](**configuration)


def _build_bert(config: BertConfig) -> LanguageModel:
    """Return the BERT with the head of its configuration."""
    return _BERTS[config.head](config)


def require_placed(segments: Sequence[ModelSegment], placement: Sequence[tuple[str, int]]) -> None:
    """Raise unless the placement lists exactly the model's segments, in order."""
    expected, found = [segment.name for segment in segments], [name for name, _ in placement]
    if expected == found:
        return
    number = next(
        (n for n, (ours, theirs) in enumerate(zip(expected, found)) if ours != theirs), min(len(expected), len(found))
    )
    own = expected[number] if number < len(expected) else "nothing more"
    placed = found[number] if number < len(found) else "nothing more"
    raise ValueError(
        f"the pipeline places {placed} where the model has {own}; layers_per_ipu must sum to the model's "
        f"{sum(name.startswith('layers.') for name in expected)} layers"
    )


def ipus_of_parameters(segments: Sequence[ModelSegment], placement: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the IPU of each parameter; raise if segments on different IPUs read it."""
    require_placed(segments, placement)
    ipus = dict(placement)
    first: dict[str, str] = {}
    for segment in segments:
        for name in segment.parameters:
            reader = first.setdefault(name, segment.name)
            if ipus[reader] != ipus[segment.name]:
                raise ValueError(
                    f"{name} is read by {reader} on IPU {ipus[reader]} and by {segment.name} on IPU {ipus[segment.name]}; "
                    "place both segments on the same IPU"
                )
    return {name: ipus[reader] for name, reader in first.items()}
