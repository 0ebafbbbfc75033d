"""A trained model whose configuration or tokenizer was changed gives no figure, no text, and nothing to publish."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from masked_cases import bert

from harness_tasks import small_model, small_tokenizer
from relm.artifact import companions, read_json, sidecar_of, write_json, write_sidecar
from relm.errors import RelmError
from relm.evaluation.diacritics.text_to_text import load_text_to_text
from relm.evaluation.execution import Execution
from relm.evaluation.generation.samples import write_samples
from relm.evaluation.generation.texts import Writer
from relm.evaluation.harness.tasks import evaluate_harness
from relm.evaluation.masked_models import load_masked
from relm.evaluation.models import load_causal
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.models.t5 import T5, T5Config
from relm.recipes.evaluation.evaluations import Samples
from relm.training.export import write_model

ONE_THREAD = Execution(threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write models of each kind as training does; return their folders."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = small_tokenizer(folder)
    loaded = load_tokenizer(tokenizer)
    t5 = T5(T5Config(1, 2, 8, 16, 24, loaded.vocabulary_size))
    t5.initialise(torch.Generator().manual_seed(0))
    write_model(t5, folder / "t5", tokenizer, asdict(loaded.special), {})
    bert(folder / "bert")
    write_sidecar(folder / "bert" / "model.safetensors", files=companions([folder / "bert" / "config.json"]))
    return {"gpt2": small_model(folder / "gpt2", tokenizer), "t5": folder / "t5", "bert": folder / "bert"}


# Reader of a model -> the kind of model and the call.
READERS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "evaluations of causal models": ("gpt2", lambda folder, _: load_causal(folder, 5, ONE_THREAD)),
    "evaluations of masked models": ("bert", lambda folder, _: load_masked(folder, 5, ONE_THREAD)),
    "evaluations of encoder-decoders": ("t5", lambda folder, _: load_text_to_text(folder, 5, ONE_THREAD)),
    "generate": ("gpt2", lambda folder, _: Writer(folder, folder / "tokenizer.json", ONE_THREAD)),
    "samples": (
        "gpt2",
        lambda folder, out: write_samples(folder, folder / "tokenizer.json", Samples(), output=out),
    ),
    "harness": (
        "gpt2",
        lambda folder, out: evaluate_harness(folder, "x", Path(sys.executable), output=out, execution=ONE_THREAD),
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_a_model_refuses_a_changed_configuration(models: dict[str, Path], reader: str, tmp_path: Path) -> None:
    kind, read = READERS[reader]
    folder = Path(shutil.copytree(models[kind], tmp_path / "model"))
    config = folder / "config.json"
    write_json(config, read_json(config) | {"layer_norm_epsilon": 10, "layer_norm_eps": 10})
    with pytest.raises(RelmError, match=r"model/config\.json: has \d+ bytes, model\.safetensors\.json says \d+; put back"):
        read(folder, tmp_path / "figures.json")
    assert not (tmp_path / "figures.json").exists()


def test_an_adapter_in_a_folder_of_any_origin_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(models["gpt2"], tmp_path / "model"))
    sidecar_of(folder / "model.safetensors").unlink()
    load_causal(folder, 5, ONE_THREAD)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "another", "peft_type": "LORA"}')
    with pytest.raises(RelmError, match=r"adapter_config\.json names an adapter, which is not applied here: merge it into"):
        load_causal(folder, 5, ONE_THREAD)
