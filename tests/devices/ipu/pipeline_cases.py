"""Tiny models on tiny pipelines, calls for them, and the same updates of a whole model by relm's own optimizers."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from relm.devices.ipu.backend import UpdateCall, WorkerSpec
from relm.devices.ipu.partition import build_model
from relm.models.bert import BertConfig
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2Config
from relm.models.llama_configuration import LlamaConfig
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer, optimizer_tensors

GPT2 = Gpt2Config(layers=3, heads=2, hidden_size=8, positions=6, vocabulary_size=12, dropout=0.0)
LLAMA = LlamaConfig(3, 2, 8, 20, positions=6, vocabulary_size=12, key_value_heads=1, tied_head=True)
BERT = BertConfig(
    layers=3, heads=2, hidden_size=8, intermediate_size=12, positions=8, vocabulary_size=20, next_sentence=True,
    hidden_dropout=0.0, attention_dropout=0.0, query_key_value_bias=False, attention_projection_bias=False,
    transform_layer=False, prediction_bias=False, layer_norm_epsilon=1e-3, padding_id=None,
)  # fmt: skip
ADAMW = {"name": "adamw", "learning_rate": 1e-3, "epsilon": 1e-6, "weight_decay": 0.1}
LAMB = {
    "name": "lamb", "learning_rate": 1e-2, "epsilon": 1e-6, "weight_decay": 0.01, "bias_correction": False,
    "decayed": "all_but_biases",
}  # fmt: skip
NEXT_TOKEN = {"next_token": "labels"}
TERMS = {
    "gpt2": NEXT_TOKEN,
    "llama": NEXT_TOKEN,
    "bert": {"masked_token": "masked_labels", "next_sentence": "next_sentence_labels"},
}
Config = Gpt2Config | LlamaConfig | BertConfig


def spec(
    config: Config, optimizer: dict[str, Any], precision: str = "float32", half_weights: bool = False, **pipeline: Any
) -> WorkerSpec:
    built = Pipeline.model_validate({**pipeline, "precision": "float16" if half_weights else "float32"})
    return WorkerSpec(
        backend="simulator",
        architecture=config.architecture,
        configuration=dataclasses.asdict(config),
        pipeline={**built.model_dump(mode="json"), "placement": [list(pair) for pair in built.placement]},
        optimizer=Optimizer.model_validate(optimizer).model_dump(mode="json"),
        precision=precision,
        seed=1,
        threads=0,
        executable_cache="",
    )


def random_weights(config: Config) -> dict[str, Tensor]:
    """Return large random weights, biases and normalisation too, so that none can be ignored."""
    generator = torch.Generator().manual_seed(1)
    shapes = {name: parameter.shape for name, parameter in whole_model(config).named_parameters()}
    return {name: torch.empty(shape).normal_(0.0, 0.3, generator=generator) for name, shape in shapes.items()}


def no_state(config: Config) -> dict[str, Tensor]:
    """Return an optimizer's state before its first update."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in random_weights(config).items()}
    moments = {f"{name}.{moment}": zero for name, zero in zeros.items() for moment in ("exp_avg", "exp_avg_sq")}
    return {**moments, "updates": torch.tensor(0.0)}


def whole_model(config: Config) -> LanguageModel:
    return build_model(config.architecture, dataclasses.asdict(config))


def examples(config: Config, sequences: int, seed: int = 7) -> dict[str, np.ndarray]:
    """Return a random batch, some of whose labels are not scored."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, config.vocabulary_size, (sequences, config.positions))
    if not isinstance(config, BertConfig):
        return {"input_ids": ids, "labels": np.where(draw.random(ids.shape) < 0.2, -100, np.roll(ids, -1, 1))}
    lengths = draw.integers(config.positions // 2, config.positions + 1, (sequences, 1))
    labels = draw.integers(0, config.vocabulary_size, (sequences, 3))
    return {
        "input_ids": ids,
        "attention_mask": (np.arange(config.positions) < lengths).astype(np.int64),
        "token_type_ids": draw.integers(0, 2, ids.shape),
        "masked_positions": draw.integers(0, config.positions // 2, (sequences, 3)),
        "masked_labels": np.where(draw.random(labels.shape) < 0.3, -100, labels),
        "next_sentence_labels": draw.integers(0, 2, sequences),
    }


def scored(config: Config, batch: dict[str, np.ndarray]) -> dict[str, int]:
    return {term: int((batch[name] != -100).sum()) for term, name in TERMS[config.architecture].items()}


def call(
    config: Config, built: WorkerSpec, updates: int = 1, loss_scale: float = 1.0, learning_rate: float = 1e-3, seed: int = 7
) -> UpdateCall:
    """Return a call whose loss is the mean over all labels of each update's batch."""
    shape = (updates, built.pipeline["replicas"], built.pipeline["gradient_accumulation"])
    each = shape[1] * shape[2] * built.pipeline["micro_batch_size"]
    batch = examples(config, updates * each, seed)
    divisors: dict[str, list[float]] = {}
    for first in range(0, updates * each, each):
        some = {name: array[first : first + each] for name, array in batch.items()}
        for term, count in scored(config, some).items():
            divisors.setdefault(f"divisor.{term}", []).extend([float(count)] * each)
    arrays = {**batch, **{name: np.array(values, dtype=np.float32) for name, values in divisors.items()}}
    seeds = np.arange(np.prod(shape)).reshape(shape).astype(np.int64)
    return UpdateCall(arrays, seeds, learning_rate, loss_scale)


class Trained(NamedTuple):
    """A whole model after some updates."""

    losses: list[float]
    terms: dict[str, tuple[float, float]]
    gradients: dict[str, Tensor]
    """Those of the last update."""
    weights: dict[str, Tensor]
    state: dict[str, Tensor]


def train_whole(config: Config, optimizer: dict[str, Any], given: UpdateCall) -> Trained:
    """Take the updates of a call by one forward and backward pass over each update's whole batch, without a pipeline."""
    model = whole_model(config)
    model.load_state_dict(random_weights(config))
    # Traced, so that AdamW is relm's own, whose state has the names that checkpoints have.
    rule = build_optimizer(model, Optimizer.model_validate({**optimizer, "learning_rate": given.learning_rate}), traced=True)
    clipping = optimizer.get("gradient_clipping")
    losses, sums = [], {}
    each = len(given.batch["input_ids"]) // len(given.seeds)
    for first in range(0, each * len(given.seeds), each):
        some = {name: torch.from_numpy(array[first : first + each].copy()) for name, array in given.batch.items()}
        terms = model.terms(some)
        loss = sum(term.nats / some[f"divisor.{name}"][0] for name, term in terms.items())
        rule.zero_grad(set_to_none=False)
        loss.backward()
        if clipping is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clipping)
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        rule.step()
        losses.append(loss.item())
        sums = {name: (term.nats.item(), float(term.correct.item())) for name, term in terms.items()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Trained(losses, sums, gradients, weights, optimizer_tensors(rule, model))


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-6, rtol: float = 1e-5) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
