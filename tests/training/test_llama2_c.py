"""A released model of llama2.c, converted, is the one of an independent conversion, and writes the published text."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from relm.artifact import checked_sidecar
from relm.errors import RelmError
from relm.models.llama import Llama
from relm.steps import list_steps
from relm.steps.parser import parser
from relm.training.imports.llama2_c import import_llama2_c
from trained_llama import BEGIN, pieces, stories

# Of the text at temperature 0 in doc/stories260K.md of karpathy/llama2.c at 350e04fe, without its last line end.
PUBLISHED_TEXT = "30b2ffb07967932a88bfdf5e23b517a6f4cfcf7231db9e537360d3c12a4e4d10"
WIDTH, INNER, LAYERS, HEADS, SHARED, VOCABULARY, POSITIONS = 8, 12, 2, 2, 1, 11, 6


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """Return the folder of the released model, as the command writes it."""
    source = shared_data / "models" / "stories260K" / "stories260K.bin"
    if not source.exists():
        pytest.skip("stories260K is not among the real data of ../shared/data")
    folder = tmp_path_factory.mktemp("released")
    words = ["import", "--format", "llama2_c", "--files", str(source), "--output", str(folder)]
    arguments = parser(list_steps()).parse_args(words)
    assert list_steps()["import"].job(arguments).run() == (
        f"{folder}: a Llama of llama2.c with 260,032 parameters, 5 layers, 8 heads (4 of keys and values), width 64, "
        "512 positions, vocabulary 512"
    )
    return folder


def test_a_released_model_is_that_of_an_independent_conversion(released: Path, shared_data: Path, tmp_path: Path) -> None:
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 512, (2, 40)))
    theirs = LlamaForCausalLM.from_pretrained(stories(shared_data, tmp_path))
    torch.testing.assert_close(Llama.from_folder(released).logits(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    again = LlamaForCausalLM.from_pretrained(released)
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=0, atol=0)
    assert checked_sidecar(released / "model.safetensors")


def test_a_released_model_writes_the_published_text(released: Path, shared_data: Path) -> None:
    model, texts, ids = Llama.from_folder(released).eval(), pieces(shared_data), [BEGIN]
    with torch.inference_mode():
        while len(ids) < 257:
            ids.append(int(model.logits(torch.tensor([ids]))[0, -1].argmax()))
    text = b"".join(bytes([int(texts[n][3:5], 16)]) if 3 <= n < 259 else texts[n] for n in ids[1:]).decode().strip()
    assert text.startswith("Once upon a time, there was a little girl named Lily. She loved to play outside in the park.")
    assert hashlib.sha256(text.encode()).hexdigest() == PUBLISHED_TEXT, text


def write_model(path: Path, model: Llama) -> None:
    """Write a model in llama2.c's format by the description of its export.py, all in numpy."""
    weights = {name: value.detach().numpy() for name, value in model.huggingface_weights().items()}
    config = model.config

    def side_by_side(weight: np.ndarray, heads: int) -> np.ndarray:
        return np.stack(np.split(weight.reshape(heads, -1, WIDTH), 2, axis=1), axis=2).reshape(-1, WIDTH)

    vocabulary = config.vocabulary_size if config.tied_head else -config.vocabulary_size
    header = [WIDTH, INNER, LAYERS, HEADS, SHARED, vocabulary, POSITIONS]
    arrays = [weights["model.embed_tokens.weight"]]
    for part, heads in (
        ("input_layernorm", 0), ("self_attn.q_proj", HEADS), ("self_attn.k_proj", SHARED), ("self_attn.v_proj", 0),
        ("self_attn.o_proj", 0), ("post_attention_layernorm", 0),
        ("mlp.gate_proj", 0), ("mlp.down_proj", 0), ("mlp.up_proj", 0),
    ):  # fmt: skip
        each = [weights[f"model.layers.{layer}.{part}.weight"] for layer in range(LAYERS)]
        arrays += [side_by_side(weight, heads) if heads else weight for weight in each]
    arrays += [weights["model.norm.weight"], np.full(POSITIONS * WIDTH // HEADS, np.nan)]
    arrays += [] if config.tied_head else [weights["lm_head.weight"]]
    numbers = b"".join(array.astype("<f4").tobytes() for array in arrays)
    path.write_bytes(np.array(header, "<i4").tobytes() + numbers)


def small_model(tied_head: bool) -> Llama:
    from relm.models.llama_configuration import LlamaConfig

    model = Llama(
        LlamaConfig(LAYERS, HEADS, WIDTH, INNER, POSITIONS, VOCABULARY, SHARED, tied_head=tied_head, rms_norm_epsilon=1e-5)
    )
    model.initialise(torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("tied_head", [True, False])
def test_a_model_with_or_without_a_head_of_its_own_is_read(tied_head: bool, tmp_path: Path) -> None:
    model = small_model(tied_head)
    write_model(tmp_path / "model.bin", model)
    import_llama2_c(tmp_path / "model.bin", tmp_path / "folder")
    found = Llama.from_folder(tmp_path / "folder", expected=model.config)
    for name, value in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:20], "has 20 bytes, expected at least the 28 of a header"),
        (lambda content: content[:-4], r"has [\d,]+ bytes, but a model with its header has [\d,]+: is it whole"),
        (lambda content: content + b"\0\0\0\0", "but a model with its header has"),
        (lambda content: b"ak42" + content[4:], r"dim is 842296161 in its header, .*--version 0\?"),
        (
            lambda content: content[:12] + b"\3\0\0\0" + content[16:],
            "its header describes no Llama: heads is 3",
        ),
        # Models of these sizes fit into no memory.
        (lambda content: b"\0\0\x40\0" + content[4:], r"but a model with its header has [\d,]{18,}: is it whole"),
        (lambda content: content[:8] + b"\0\0\x40\0" + content[12:], "but a model with its header has"),
        (lambda content: content[:32] + b"\0\0\xc0\x7f" + content[36:], "embed_tokens.weight has a number that is not finite"),
    ],
    ids=["no header", "cut", "longer", "another version", "heads", "giant width", "giant depth", "not finite"],
)
def test_what_is_no_such_model_is_refused(change, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    write_model(path, small_model(tied_head=True))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RelmError, match=message):
        import_llama2_c(path, tmp_path / "folder")


def test_an_absent_file_and_flags_of_another_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="cannot be read: No such file or directory; give a file such as"):
        import_llama2_c(tmp_path / "none.bin", tmp_path / "folder")
    for words, message in (
        (["a", "b"], "import: llama2_c is one file, with no --tokenizer"),
        (["a", "--first-tokens", "3"], "import: --first-tokens goes with llm_c and nanogpt only, and llama2_c is a model"),
    ):
        arguments = parser(list_steps()).parse_args(["import", "--format", "llama2_c", "--output", "c", "--files", *words])
        with pytest.raises(RelmError, match=message):
            list_steps()["import"].job(arguments)
