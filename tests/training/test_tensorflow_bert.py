"""BERTs of TensorFlow 1 become folders that compute the same, and a checkpoint that is not one is refused in one sentence."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_bundles import write_bundle
from transformers import BertForPreTraining

from relm.artifact import checked_sidecar
from relm.cli import run_step
from relm.errors import RelmError
from relm.models.bert import Bert
from relm.steps import list_steps
from relm.steps.parser import parser
from relm.training.imports.tensorflow_bert import import_tensorflow_bert
from tensorflow_formula import TensorflowBert
from tensorflow_variables import HIDDEN, LAYERS, POSITIONS, WORDS, Array, draw, variables

DATA = Path(__file__).parents[1] / "data" / "tensorflow_bert"
GIVEN = {"num_attention_heads": 2, "hidden_size": HIDDEN, "vocab_size": WORDS, "hidden_act": "gelu"}
Q = "bert/encoder/layer_{}/attention/self"


def converted(prefix: Path, folder: Path, **given: Any) -> tuple[Bert, str]:
    """Return the model in the folder of an import, and the sentence."""
    configuration = folder.with_suffix(".json")
    configuration.write_text(json.dumps(GIVEN | given))
    sentence = import_tensorflow_bert([prefix], configuration, folder)
    return Bert.from_folder(folder).eval(), sentence


def write_and_convert(values: dict[str, Any], folder: Path, **given: Any) -> tuple[Bert, str]:
    return converted(write_bundle(folder / "ckpt-7", values), folder / "model", **given)


def make_inputs() -> dict[str, torch.Tensor]:
    draws, shape = torch.Generator().manual_seed(3), (2, POSITIONS)
    return {
        "ids": torch.randint(0, WORDS, shape, generator=draws),
        "positions": torch.arange(POSITIONS).expand(shape),
        "segments": torch.randint(0, 2, shape, generator=draws),
        "attended": torch.arange(POSITIONS) < torch.tensor([[POSITIONS], [6]]),
    }


def assert_same_outputs(model: Bert, original: TensorflowBert) -> None:
    given = make_inputs()
    ids, segments, attended = given["ids"], given["segments"], given["attended"]
    with torch.no_grad():
        hidden = original.encode(**given)
        found = model.logits(ids, attended.long(), segments)[attended]
        pairs = model.next_sentence_logits(ids, attended.long(), segments)
        torch.testing.assert_close(found, original.logits(hidden)[attended].float(), rtol=2e-5, atol=2e-4)
        torch.testing.assert_close(pairs, original.pair_logits(hidden[:, 0]).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("kind", ["google", "graphcore"])
def test_a_flipped_bit_is_an_error_or_lies_in_no_variable_that_is_read(kind: str, part: str, tmp_path: Path) -> None:
    for path in DATA.glob(f"{kind}.*"):
        shutil.copy(path, tmp_path)
    content = (tmp_path / f"{kind}{part}").read_bytes()
    whole, _ = converted(tmp_path / kind, tmp_path / "whole")
    places = np.random.default_rng(0).integers(0, 8 * len(content), 15)
    refused = []
    for place in places.tolist():
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        (tmp_path / f"{kind}{part}").write_bytes(flipped)
        try:
            found, _ = converted(tmp_path / kind, tmp_path / f"model_{place}")
        except RelmError as error:
            refused.append(str(error))
        else:
            for name, weight in whole.state_dict().items():
                assert torch.equal(found.state_dict()[name], weight), (place, name)
    assert refused
    assert all(re.search("damaged|truncated|not supported", message) for message in refused), refused


@pytest.mark.parametrize("layout", ["google", "graphcore"])
def test_a_checkpoint_written_by_tensorflow_computes_what_the_original_does(layout: str, tmp_path: Path) -> None:
    values = variables(layout, biases=layout == "google", transform=layout == "google")
    model, _ = converted(DATA / layout, tmp_path / "model")
    assert_same_outputs(model, TensorflowBert(values, heads=2))


def test_the_sentence_says_what_the_model_lacks_and_what_was_ignored(tmp_path: Path) -> None:
    model, sentence = converted(DATA / "graphcore", tmp_path / "model")
    assert sentence == (
        f"{tmp_path}/model: a BERT of Graphcore's layout with 1,346 parameters, 2 layers, vocabulary 18, "
        "LayerNorm epsilon 0.001; without biases of queries, keys and values, the bias after attention, the layer before the "
        "vocabulary, the bias of predictions; 9 variables of the optimizer and counters were ignored"
    )
    assert model.config.activation == "gelu_tanh"
    for name in ("model.safetensors", "config.json"):
        checked_sidecar(tmp_path / "model" / name)


def test_googles_folder_is_one_of_transformers(tmp_path: Path) -> None:
    model, sentence = converted(DATA / "google", tmp_path / "model")
    assert "Google's layout" in sentence
    assert "ignored" not in sentence
    theirs, report = BertForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(report.values()), report
    ids = make_inputs()["ids"]
    torch.testing.assert_close(model.logits(ids), theirs.eval()(ids).prediction_logits, rtol=1e-5, atol=1e-4)


def fused(values: dict[str, Array], biases: bool = True) -> dict[str, Array]:
    """Put queries, keys and values into one variable, as Graphcore's model does without `use_qkv_split`."""
    values = dict(values)
    for number in range(LAYERS):
        layer = Q.format(number)
        kernels = [values.pop(f"{layer}/{part}/kernel") for part in ("query", "key", "value")]
        values[f"{layer}/kernel/qkv_weight"] = np.concatenate(kernels, axis=-1)
        if biases:
            parts = [values.pop(f"{layer}/{part}/bias") for part in ("query", "key", "value")]
            values[f"{layer}/qkv_bias"] = np.concatenate(parts)
    return values


def split(values: dict[str, Array], parts: int) -> dict[str, Array]:
    """Put the embedding into several variables, as for `num_embeddings_splits`."""
    values = dict(values)
    words = values.pop("bert/embeddings/word_embeddings")
    return values | {f"bert/embeddings/s{n}/word_embeddings": part for n, part in enumerate(np.array_split(words, parts))}


@pytest.mark.parametrize(
    ("biases", "transform"), [(True, True), (True, False), (False, True)], ids=["all", "no transform", "no biases"]
)
def test_fused_and_split_variables_give_the_same_model(biases: bool, transform: bool, tmp_path: Path) -> None:
    values = variables("graphcore", biases, transform)
    original = TensorflowBert(values, heads=2)
    for name, changed in {
        "plain": values,
        "fused": fused(values, biases),
        "split": split(values, 2),
        "many": split(values, 12),
    }.items():
        (tmp_path / name).mkdir()
        model, _ = write_and_convert(changed, tmp_path / name)
        assert_same_outputs(model, original)


def test_half_precision_gives_the_same_weights(tmp_path: Path) -> None:
    found = []
    for dtype in ("<f2", "<f4"):
        (tmp_path / dtype).mkdir()
        model, _ = write_and_convert({n: v.astype(dtype) for n, v in variables("graphcore").items()}, tmp_path / dtype)
        found.append(model.state_dict())
    assert all(value.dtype == torch.float32 and torch.equal(value, found[0][name]) for name, value in found[1].items())


def test_the_bias_of_keys_which_graphcores_model_does_not_train_may_be_absent(tmp_path: Path) -> None:
    values = variables("graphcore")
    for number in range(LAYERS):
        del values[f"{Q.format(number)}/key/bias"]
    model, _ = write_and_convert(values, tmp_path)
    assert not model.state_dict()["bert.encoder.layer.1.attention.self.key.bias"].any()
    assert_same_outputs(model, TensorflowBert(values, heads=2))


def test_a_model_without_a_head_for_pairs_needs_no_pooler(tmp_path: Path) -> None:
    values = {name: value for name, value in variables("google").items() if "seq_relationship" not in name}
    model, sentence = write_and_convert(values, tmp_path)
    assert sentence.endswith("without the head for sentence pairs")
    assert model.bert.pooler is None


def without(*names: str) -> dict[str, Array]:
    return {name: value for name, value in variables("google").items() if name not in names}


def changed(name: str, shape: tuple[int, ...]) -> dict[str, Array]:
    return variables("google") | {name: draw(name, shape)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed("cls/squad/output_weights", (2, 8)), "ckpt-7.index: the variables cls/squad/output_weights are unknown"),
        (
            without("bert/encoder/layer_1/output/dense/bias"),
            "ckpt-7.index: has no variable bert/encoder/layer_1/output/dense/bias;",
        ),
        (without("bert/embeddings/word_embeddings"), "ckpt-7.index: has no variable bert/embeddings/word_embeddings; expected"),
        (
            without(*(n for n in variables("google") if "layer_0" in n)),
            "ckpt-7.index: has layer_1, but no layer_0; expected all",
        ),
        (
            changed("bert/pooler/dense/kernel", (8, 7)),
            "the variable for bert.pooler.dense.weight has shape (7, 8), expected (8, 8): another model, or damaged",
        ),
        (
            changed("bert/embeddings/word_embeddings", (18,)),
            "word_embeddings has shape (18,), expected 2 dimensions: another model",
        ),
        (changed("bert/embeddings/word_embeddings", (20, 8)), "model.json: vocab_size is 18, but the variables of"),
        (
            changed("bert/encoder/layer_0/convolution/pre/glu/values/kernel", (8, 8)),
            "ckpt-7.index: a GroupBERT, which is not supported; give the checkpoint of a BERT",
        ),
        (
            split(variables("graphcore"), 3) | {"bert/embeddings/s7/word_embeddings": draw("s7", (6, 8))},
            "ckpt-7.index: word_embeddings is saved in the parts s0, s1, s2, s7; expected all from s0 on",
        ),
        (
            fused(variables("graphcore")) | {"bert/encoder/layer_1/attention/self/kernel/qkv_weight": draw("fused", (8, 23))},
            "layer_1/attention/self/kernel/qkv_weight has shape (8, 23), expected (8, 24): another model",
        ),
    ],
    ids=["unknown", "missing", "no words", "no layer", "shape", "dimensions", "size", "groupbert", "parts", "thirds"],
)
def test_variables_of_another_model_are_refused(values: dict[str, Array], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError) as caught:
        write_and_convert(values, tmp_path)
    assert message in str(caught.value)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_attention_heads": None}, "num_attention_heads is None, expected a whole number: it is in no variable"),
        ({"num_attention_heads": 3}, "heads is 3, expected a divisor of hidden_size, 8; give the configuration of"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', expected gelu: another model"),
        ({"hidden_dropout_prob": "high"}, "hidden_dropout_prob is 'high', expected a number"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, but the variables of"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError) as caught:
        converted(DATA / "google", tmp_path / "model", **given)
    assert str(caught.value).startswith(f"{tmp_path}/model.json: {message}")


@pytest.mark.parametrize("content", ["[]", "{", None])
def test_a_configuration_that_is_no_json_object_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "bert_config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RelmError, match=r"bert_config\.json: .*; give the model's bert_config\.json"):
        import_tensorflow_bert([DATA / "google"], path, tmp_path / "model")


def run_command(*words: str) -> str:
    """Return the sentence of a command, or its error."""
    arguments = parser(list_steps()).parse_args(list(words))
    step = list_steps()[arguments.step]
    try:
        return run_step(arguments.step, step, arguments, words)
    except RelmError as error:
        return str(error)


def test_the_command_takes_the_name_or_any_file_of_a_checkpoint(tmp_path: Path) -> None:
    configuration = tmp_path / "bert_config.json"
    configuration.write_text(json.dumps(GIVEN))
    given = (
        "import",
        "--format",
        "tf_bert",
        "--configuration",
        str(configuration),
        "--output",
        str(tmp_path / "model"),
        "--files",
    )
    for files in (["google"], ["google.index", "google.data-00000-of-00001"]):
        sentence = run_command(*given, *(str(DATA / name) for name in files))
        assert sentence.startswith(f"{tmp_path}/model: a BERT of Google's layout"), sentence
    record = json.loads((tmp_path / "model" / "model.safetensors.record.json").read_text())
    inputs = [Path(file["path"]).name for file in record["inputs"]]
    assert inputs == ["google.index", "google.data-00000-of-00001", "bert_config.json"]
    assert run_command(*given, str(tmp_path / "none")).startswith(f"no such file: {tmp_path}/none.index; ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--format", "tf_bert"],
            "import: tf_bert needs --configuration, the model's bert_config.json, and no --tokenizer; `relm",
        ),
        (
            ["--format", "megatron"],
            "import: --tokenizer is missing; give the tokenizer.json that the examples of megatron were",
        ),
        (
            ["--format", "megatron", "--tokenizer", "t.json", "--configuration", "c.json"],
            "import: --configuration goes with tf_bert only; leave it out",
        ),
    ],
)
def test_flags_of_examples_and_of_models_do_not_mix(words: list[str], message: str, tmp_path: Path) -> None:
    assert run_command("import", *words, "--files", "x", "--output", str(tmp_path / "y")).startswith(message)


def test_files_of_two_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"--files: expected the files of one checkpoint, found .*google, .*graphcore"):
        import_tensorflow_bert(sorted(DATA.glob("*.index")), tmp_path / "c.json", tmp_path / "model")
