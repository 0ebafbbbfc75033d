"""Folders of models that are damaged or made to harm: each is rejected in a sentence, quickly and with little memory."""

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from relm.corpus.pickled_weights import convert_weights
from relm.errors import RelmError
from relm.evaluation.diacritics.text_to_text import load_text_to_text
from relm.evaluation.masked_models import load_masked
from relm.evaluation.models import load_causal
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.t5 import T5
from relm.models.t5_configuration import T5Config

SURFACE = "model folders"
SECONDS, MEMORY = 10, 500 << 20
VOCABULARY = 40


def write_model(folder: Path, kind: str) -> None:
    """A small model of relm's own or, as `llama`, one that only `transformers` evaluates."""
    folder.mkdir()
    own = {
        "gpt2": lambda: Gpt2(Gpt2Config(2, 2, 8, 16, VOCABULARY)),
        "bert": lambda: Bert(BertConfig(2, 2, 8, 16, 16, VOCABULARY)),
        "t5": lambda: T5(T5Config(2, 2, 4, 8, 16, VOCABULARY)),
    }
    if kind in own:
        model: Any = own[kind]()
        model.initialise(torch.Generator().manual_seed(0))
        model.save_folder(folder, {})
    else:
        import transformers

        sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **sizes)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)


LOADERS: dict[str, Callable[[Path, int], object]] = {
    "gpt2": load_causal,
    "llama": load_causal,
    "bert": load_masked,
    "t5": load_text_to_text,
}
Change = Callable[[Path], object]


def config(**keys: Any) -> Change:
    """Change keys of config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))

    return change


def replace(name: str, make: Callable[[Path], object]) -> Change:
    """Put something else in a file's place."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def long_header(path: Path) -> None:
    with open(path, "wb") as file:
        file.write((100 << 30).to_bytes(8, "little") + b"{}")
        file.truncate(101 << 30)  # without blocks on the disk


def nan_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in sorted(weights) if weights[name].is_floating_point())
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(100 << 30)


HEADS = {"gpt2": "n_head", "llama": "num_attention_heads", "bert": "num_attention_heads", "t5": "num_heads"}
LAYERS = {"gpt2": "n_layer", "llama": "num_hidden_layers", "bert": "num_hidden_layers", "t5": "num_layers"}
WIDTHS = {"gpt2": "n_embd", "llama": "hidden_size", "bert": "hidden_size", "t5": "d_model"}
CHANGES: dict[str, Callable[[str], Change]] = {
    "no heads": lambda kind: config(**{HEADS[kind]: 0}),
    "negative heads": lambda kind: config(**{HEADS[kind]: -2}),
    "10 million layers": lambda kind: config(**{LAYERS[kind]: 10_000_000}),
    "negative layers": lambda kind: config(**{LAYERS[kind]: -1}),
    "layers are true": lambda kind: config(**{LAYERS[kind]: True}),
    "width of 10^9": lambda kind: config(**{WIDTHS[kind]: 10**9}),
    "width is text": lambda kind: config(**{WIDTHS[kind]: "8"}),
    "vocabulary of 10^9": lambda kind: config(vocab_size=10**9),
    "vocabulary is true": lambda kind: config(vocab_size=True),
    "vocabulary of 10^400": lambda kind: config(vocab_size=10**400),
    "config is a pipe": lambda kind: replace("config.json", os.mkfifo),
    "config is an endless device": lambda kind: replace("config.json", lambda path: path.symlink_to("/dev/zero")),
    "config of 100 GB": lambda kind: replace("config.json", sparse),
    "config is nested": lambda kind: replace("config.json", lambda path: path.write_text("[" * 100_000)),
    "config is a list": lambda kind: replace("config.json", lambda path: path.write_text("[]")),
    "weights are a pipe": lambda kind: replace("model.safetensors", os.mkfifo),
    "weights are an endless device": lambda kind: replace("model.safetensors", lambda path: path.symlink_to("/dev/zero")),
    "weights are a folder": lambda kind: replace("model.safetensors", Path.mkdir),
    "weights are a link to a folder": lambda kind: replace("model.safetensors", lambda path: path.symlink_to("/tmp")),
    "header of 100 GB": lambda kind: replace("model.safetensors", long_header),
    "header is not JSON": lambda kind: replace("model.safetensors", lambda path: path.write_bytes(b"\2" + bytes(7) + b"[[")),
    "weights are empty": lambda kind: replace("model.safetensors", Path.touch),
    "weights are NaN": lambda kind: nan_weights,
    "index is a pipe": lambda kind: replace("model.safetensors.index.json", os.mkfifo),
    "settings are a pipe": lambda kind: replace("generation_config.json", os.mkfifo),
    "attention of the hub": lambda kind: config(attn_implementation="somebody/kernels"),
    "own attention of the hub": lambda kind: config(_attn_implementation="somebody/kernels"),
}
CASES = {f"{kind}: {name}": (kind, change(kind)) for kind in LOADERS for name, change in CHANGES.items()}
PROGRAM = {"AutoConfig": "program.Config", "AutoModelForCausalLM": "program.Model"}
# A folder that is read, and without what the key asks for.
SURVIVED = {
    **{
        f"{kind}: attention {name}": (kind, config(**{key: name}))
        for kind in ("llama", "gpt2")
        for key, name in (("attn_implementation", "flash_attention_2"), ("_attn_implementation", "flex_attention"))
    },
    **{f"{kind}: program of its own": (kind, config(auto_map=PROGRAM)) for kind in ("llama", "gpt2")},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    for kind in LOADERS:
        write_model(folder / kind, kind)
        LOADERS[kind](folder / kind, VOCABULARY)
    return {kind: folder / kind for kind in LOADERS}


def copied(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.mark.parametrize(("kind", "change"), CASES.values(), ids=CASES)
def test_a_hostile_folder_is_refused_quickly(kind: str, change: Change, models: dict[str, Path], tmp_path: Path) -> None:
    change(folder := copied(models[kind], tmp_path / "model"))
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RelmError) as refused:
        LOADERS[kind](folder, VOCABULARY)
    assert str(folder) in str(refused.value)
    assert len(str(refused.value)) < 1000
    assert "\n" not in str(refused.value)
    assert time.process_time() - started < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY


@pytest.mark.parametrize(("kind", "change"), SURVIVED.values(), ids=SURVIVED)
def test_attention_is_relms_choice_and_no_program_runs(
    kind: str, change: Change, models: dict[str, Path], tmp_path: Path
) -> None:
    change(folder := copied(models[kind], tmp_path / "model"))
    (folder / "program.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    loaded: Any = load_causal(folder, VOCABULARY)
    assert not (tmp_path / "ran").exists()
    if kind == "llama":
        assert loaded.model.config._attn_implementation == "sdpa"


TENSORS: dict[str, Callable[[], dict[str, Any]]] = {
    "expanded": lambda: {"a": torch.zeros(1).expand(1 << 40)},
    "expanded matrix": lambda: {"a": torch.zeros(4, 1).expand(4, 1 << 38)},
    "overlapping": lambda: {"a": torch.zeros(1 << 12).as_strided((1 << 11, 1 << 11), (1, 1))},
    "views of one storage": lambda: {f"a{n}": torch.zeros(1 << 10)[: 1 << 9] for n in range(3)} | shifted(),
    "sparse": lambda: {"a": torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (1 << 40,))},
    "no tensors": dict,
    "text": lambda: {"a": "text"},
}


def shifted() -> dict[str, Any]:
    """Many tensors that share their numbers, each from another one on."""
    storage = torch.zeros(1 << 10)
    return {f"b{n}": storage[n : n + 512] for n in range(400)}


REFUSED = [*CASES, *TENSORS]


@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_tensors_that_repeat_the_numbers_of_a_file_are_refused(make: Callable[[], dict[str, Any]], tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "pytorch_model.bin")
    with pytest.raises(RelmError, match=r"pytorch_model\.bin: "):
        convert_weights(tmp_path / "pytorch_model.bin", {}, tmp_path / "out" / "model.safetensors")
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True
