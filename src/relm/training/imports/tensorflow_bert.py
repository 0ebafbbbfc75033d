"""Convert a BERT that was trained in TensorFlow 1 to a folder that `relm.models.bert.Bert.from_folder` and `transformers` read.

Two layouts of variables are known: Google's (github.com/google-research/bert), and that of Graphcore's BERT for TensorFlow 1
(examples v3.0.0, modeling.py and convert_ckpt.py), whose attention ends in `projection`, whose queries, keys and values may be
one matrix, whose embedding may lie in several parts, and which may lack biases, the layer before the vocabulary, or its bias.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from relm.errors import RelmError
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.training.imports.imported_folder import write_imported
from relm.training.imports.tensor_bundle import TensorBundle, checkpoint_prefix

Array = npt.NDArray[Any]

# Optimizers' moments and counters, and accuracies that Graphcore's model keeps as variables.
IGNORED = re.compile(
    r"(.*/)?(lamb_m|lamb_v|adam_m|adam_v|Adam|Adam_1|Momentum|LAMB|LAMB_1|global_step|\w+_step_counter|beta[12]_power"
    r"|mlm_acc|nsp_acc)"
)
GROUPBERT = re.compile(r"/convolution/|/feed_forward_\d|GroupNorm|/prenorm/|/postnorm/")
WORDS, SPLIT_WORDS = "bert/embeddings/word_embeddings", re.compile(r"bert/embeddings/s(\d+)/word_embeddings")
LAYER = re.compile(r"bert/encoder/layer_(\d+)/")
# Graphcore's devices compute the tanh form of GELU; Google's weights are used with the exact one, as in `transformers`.
GRAPHCORE: Mapping[str, Any] = {"layer_norm_epsilon": 1e-3, "activation": "gelu_tanh", "initialisation": "truncated_normal"}
# Keys of the model's JSON configuration that must agree with the variables' shapes -> field.
SIZES = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "layers",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "positions",
    "type_vocab_size": "type_vocabulary_size",
}
# Keys that are in no variable -> field and default.
SHARES = {
    "hidden_dropout_prob": ("hidden_dropout", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout", 0.1),
    "initializer_range": ("initializer_range", 0.02),
}
# Fields that say which variables there are -> words for a model without them.
SWITCHES = {
    "query_key_value_bias": "biases of queries, keys and values",
    "attention_projection_bias": "the bias after attention",
    "transform_layer": "the layer before the vocabulary",
    "prediction_bias": "the bias of predictions",
    "next_sentence": "the head for sentence pairs",
}
NAMED = 5


class TensorflowVariables:
    """The variables of a checkpoint by the names of our parameters, and a record of those that were used."""

    def __init__(self, bundle: TensorBundle) -> None:
        self.bundle = bundle
        self.names = {name for name in bundle.variables if not IGNORED.fullmatch(name)}
        self.is_graphcore = any("/attention/projection/" in name for name in self.names)
        self.used: set[str] = set()

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return a variable's shape.

        Raises:
            RelmError: the variable is absent, or has another number of dimensions.
        """
        self._require(name)
        shape = self.bundle.variables[name].shape
        if len(shape) != dimensions:
            raise RelmError(f"{self.bundle.index}: {name} has shape {shape}, expected {dimensions} dimensions: another model")
        return shape

    def words(self) -> list[str]:
        """Return the names of the parts of the token embedding, in order."""
        parts = sorted((int(match[1]), name) for name in self.names if (match := SPLIT_WORDS.fullmatch(name)))
        if [number for number, _ in parts] != list(range(len(parts))):
            found = ", ".join(f"s{number}" for number, _ in parts)
            raise RelmError(f"{self.bundle.index}: word_embeddings is saved in the parts {found}; expected all from s0 on")
        return [name for _, name in parts] or [WORDS]

    def read(self, own: str, shape: Sequence[int]) -> Array:
        """Return the value for a parameter, float32.

        Raises:
            RelmError: a variable is absent, has another shape, or cannot be read.
        """
        if own == "bert.embeddings.word_embeddings.weight":
            value = np.concatenate([self._value(name) for name in self.words()])
        elif match := re.fullmatch(r"(.+\.attention\.self)\.(query|key|value)\.(weight|bias)", own):
            prefix = match[1].replace("encoder.layer.", "encoder/layer_").replace(".", "/")
            value = self._attention(prefix, match[2], match[3], shape)
        else:
            name = published_name(own, self.is_graphcore)
            value = self._value(name)
            value = value.T if name.endswith("/kernel") else value
        if value.shape != tuple(shape):
            raise RelmError(
                f"{self.bundle.index}: the variable for {own} has shape {value.shape}, expected {tuple(shape)}: another model, "
                "or damaged"
            )
        return value

    def unused(self) -> set[str]:
        """Return the names that no parameter was read from; a pooler without the head that reads it does not count."""
        return {name for name in self.names - self.used if not name.startswith("bert/pooler/")}

    def _attention(self, prefix: str, part: str, kind: str, shape: Sequence[int]) -> Array:
        """Return weight or bias of queries, keys or values, from a variable of their own or a third of a common one."""
        own = f"{prefix}/{part}/{'kernel' if kind == 'weight' else 'bias'}"
        common = f"{prefix}/kernel/qkv_weight" if kind == "weight" else f"{prefix}/qkv_bias"
        if own not in self.names and common in self.names:
            start = ("query", "key", "value").index(part) * shape[0]
            whole = self._value(common)
            whole_shape = (*shape[:-1], 3 * shape[-1])
            if whole.shape != whole_shape:
                raise RelmError(f"{self.bundle.index}: {common} has shape {whole.shape}, expected {whole_shape}: another model")
            return whole[..., start : start + shape[0]].T
        if own not in self.names and part == "key" and kind == "bias" and self.is_graphcore:
            # Graphcore's model does not train it, so that a checkpoint without optimizer lacks it; it stays zero.
            return np.zeros(shape, dtype=np.float32)
        return self._value(own).T

    def _value(self, name: str) -> Array:
        self._require(name)
        self.used.add(name)
        return self.bundle.read(name).astype(np.float32)

    def _require(self, name: str) -> None:
        if name not in self.names:
            raise RelmError(
                f"{self.bundle.index}: has no variable {name}; expected the layout of Google's or of Graphcore's BERT: is the "
                "checkpoint whole, and that of a pretrained BERT?"
            )


def published_name(own: str, is_graphcore: bool) -> str:
    """Return the variable's name for a parameter other than the token embedding and those within attention.

    >>> published_name("bert.encoder.layer.3.attention.output.LayerNorm.weight", is_graphcore=True)
    'bert/encoder/layer_3/attention/projection/LayerNorm/gamma'
    """
    named = {
        "cls.predictions.bias": "cls/predictions/output_bias",
        "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    }
    if own in named:
        return named[own]
    module, _, kind = own.rpartition(".")
    path = module.replace("encoder.layer.", "encoder/layer_").replace(".", "/")
    if is_graphcore:
        path = path.replace("/attention/output/", "/attention/projection/")
    if module.endswith("_embeddings"):
        return path
    if module.endswith("LayerNorm"):
        return f"{path}/{'gamma' if kind == 'weight' else 'beta'}"
    if module.endswith("seq_relationship"):
        return f"{path}/output_bias"
    return f"{path}/{'kernel' if kind == 'weight' else 'bias'}"


def import_tensorflow_bert(files: Sequence[Path], configuration: Path, output: Path) -> str:
    """Convert a checkpoint to `config.json` and `model.safetensors` (float32), with their sidecars.

    Args:
        files: files of one checkpoint, or the name that they share.
        configuration: the model's JSON: Google's `bert_config.json`, or that of Graphcore's run, such as `arguments.json`.
        output: the folder, which may exist.

    Returns:
        A sentence with the model's size, what it lacks, and what was ignored.

    Raises:
        RelmError: a file is absent or damaged, or variables are missing, unknown or of another shape.
    """
    prefixes = {checkpoint_prefix(path) for path in files}
    if len(prefixes) != 1:
        raise RelmError(f"--files: expected the files of one checkpoint, found {', '.join(sorted(map(str, prefixes)))}")
    variables = TensorflowVariables(TensorBundle(prefixes.pop()))
    config = _read_configuration(variables, _read_json(configuration), configuration)
    model = Bert(config)
    weights = {name: torch.from_numpy(variables.read(name, value.shape).copy()) for name, value in model.state_dict().items()}
    _require_none(variables.unused(), variables.bundle.index)
    model.load_state_dict(weights)
    write_imported(model, output)
    lacks = [words for name, words in SWITCHES.items() if not getattr(config, name)]
    ignored = len(variables.bundle.variables) - len(variables.names)
    return (
        f"{output}: a BERT of {'Graphcore' if variables.is_graphcore else 'Google'}'s layout with {model.parameter_count():,} "
        f"parameters, {config.layers} layers, vocabulary {config.vocabulary_size:,}, "
        f"LayerNorm epsilon {config.layer_norm_epsilon:g}"
        + (f"; without {', '.join(lacks)}" if lacks else "")
        + (f"; {ignored:,} variables of the optimizer and counters were ignored" if ignored else "")
    )


def _read_configuration(variables: TensorflowVariables, given: Mapping[str, Any], path: Path) -> BertConfig:
    """Return the architecture: sizes and switches from the variables, heads and dropout from the configuration."""
    index, names = variables.bundle.index, variables.names
    if given.get("groupbert") or any(map(GROUPBERT.search, names)):
        raise RelmError(f"{index}: a GroupBERT, which is not supported; give the checkpoint of a BERT")
    rows, hidden = zip(*(variables.shape(name, 2) for name in variables.words()), strict=True)
    found = {
        "vocabulary_size": sum(rows),
        "hidden_size": hidden[0],
        "layers": _count_layers(names, index),
        "intermediate_size": variables.shape("bert/encoder/layer_0/intermediate/dense/kernel", 2)[1],
        "positions": variables.shape("bert/embeddings/position_embeddings", 2)[0],
        "type_vocabulary_size": variables.shape("bert/embeddings/token_type_embeddings", 2)[0],
    }
    for key, field in SIZES.items():
        if given.get(key, found[field]) != found[field]:
            raise RelmError(f"{path}: {key} is {given[key]!r}, but the variables of {index} have {found[field]}; give its own")
    heads = given.get("num_attention_heads")
    if not isinstance(heads, int) or isinstance(heads, bool):
        raise RelmError(f"{path}: num_attention_heads is {heads!r}, expected a whole number: it is in no variable")
    if given.get("hidden_act", "gelu") != "gelu":
        raise RelmError(f"{path}: hidden_act is {given['hidden_act']!r}, expected gelu: another model")
    layout = GRAPHCORE if variables.is_graphcore else {}
    try:
        fields: dict[str, Any] = {**found, **_read_shares(given), **_switches(names), **layout}
        return BertConfig(heads=heads, **fields)
    except ValueError as error:
        raise RelmError(f"{path}: {error}; give the configuration of {index}") from None


def _read_shares(given: Mapping[str, Any]) -> dict[str, float]:
    """Return dropout and the spread of initial weights."""
    shares = {}
    for key, (field, default) in SHARES.items():
        value = given.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{key} is {value!r}, expected a number")  # noqa: TRY004
        shares[field] = value
    return shares


def _switches(names: Collection[str]) -> dict[str, bool]:
    """Return which optional parts a checkpoint has; of a part that is there in part, what lacks is missed later."""
    return {
        "query_key_value_bias": any(
            re.search(r"/attention/self/(query/bias|key/bias|value/bias|qkv_bias)$", name) for name in names
        ),
        "attention_projection_bias": any(re.search("/attention/(output|projection)/dense/bias$", name) for name in names),
        "transform_layer": any(name.startswith("cls/predictions/transform/") for name in names),
        "prediction_bias": "cls/predictions/output_bias" in names,
        "next_sentence": any(name.startswith("cls/seq_relationship/") for name in names),
    }


def _count_layers(names: Collection[str], index: Path) -> int:
    numbers = {int(match[1]) for name in names if (match := LAYER.match(name))}
    for number in range(len(numbers)):
        if number not in numbers:
            raise RelmError(f"{index}: has layer_{max(numbers)}, but no layer_{number}; expected all: is the checkpoint whole?")
    return len(numbers)


def _require_none(names: Collection[str], index: Path) -> None:
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise RelmError(
            f"{index}: the variables {', '.join(sorted(names)[:NAMED])}{more} are unknown; expected those of a pretrained BERT "
            "alone: is it a fine-tuned or another model?"
        )


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RelmError(f"{path}: cannot be read as JSON: {error}; give the model's bert_config.json") from None
    if not isinstance(content, dict):
        raise RelmError(f"{path}: holds no JSON object; give the model's bert_config.json")
    return content
