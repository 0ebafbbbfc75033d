"""Writing text from text, by our T5 and by other models of transformers, one source at a time and in batches."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    T5ForConditionalGeneration,
)
from transformers import T5Config as TheirT5Config

from relm.errors import RelmError
from relm.evaluation.diacritics.text_to_text import (
    TextToTextModel,
    load_text_to_text,
    require_lengths,
    write_texts,
)
from relm.evaluation.execution import Execution
from relm.examples.columns import Ragged
from relm.models.t5 import T5, T5Config

VOCABULARY, END, MOST = 23, 3, 12
EXECUTION = Execution(threads=1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a T5 of ours, and a BART whose folder configures beam search and other options that are not greedy; return both."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("t5", "bart")}
    ours = T5(T5Config(2, 2, 8, 16, 24, VOCABULARY, dropout=0.3))
    generator = torch.Generator().manual_seed(2)
    for parameter in ours.parameters():
        parameter.data.normal_(0.0, 1.3, generator=generator)
    ours.save_folder(made["t5"], {"eos_token_id": END})
    torch.manual_seed(4)
    bart = BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY, init_std=0.3, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=20,
            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
        )
    )  # fmt: skip
    bart.generation_config = GenerationConfig(
        num_beams=3, no_repeat_ngram_size=2, early_stopping=True, max_length=7, min_length=5, length_penalty=2.0,
        decoder_start_token_id=2, bos_token_id=0, eos_token_id=2, pad_token_id=1, forced_eos_token_id=2,
    )  # fmt: skip
    bart.save_pretrained(made["bart"])
    return made


def ragged(count: int = 24, longest: int = 15) -> Ragged:
    """Return sources of 1 to 15 tokens, each with an end of text."""
    generator = np.random.default_rng(4)
    sizes = generator.integers(1, longest + 1, count)
    values = generator.integers(4, VOCABULARY, sizes.sum())
    values[np.cumsum(sizes) - 1] = END
    return Ragged(values, sizes)


def rows_of(sources: Ragged) -> list[list[int]]:
    return [row.tolist() for row in np.split(sources.values, np.cumsum(sources.sizes)[:-1])]


def written(model: TextToTextModel, sources: Ragged, batch_tokens: int, length: int = 15) -> list[tuple[list[int], bool]]:
    texts, ended = write_texts(model, sources, length, MOST, END, batch_tokens)
    return [(text.tolist(), bool(end)) for text, end in zip(texts, ended, strict=True)]


def greedily(model: torch.nn.Module, start: int, source: list[int]) -> tuple[list[int], bool]:
    """Decode greedily without a cache: a whole pass for each token."""
    target = [start]
    for _ in range(MOST):
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target])).logits
        target.append(int(logits[0, -1].argmax()))
        if target[-1] == END:
            return target[1:-1], True
    return target[1:], False


@pytest.mark.parametrize(
    ("name", "kind", "start"), [("t5", T5ForConditionalGeneration, 0), ("bart", BartForConditionalGeneration, 2)]
)
def test_batches_of_any_size_give_the_text_of_each_source_by_itself(folders, name: str, kind: type, start: int) -> None:
    model = load_text_to_text(folders[name], VOCABULARY, EXECUTION)
    sources = ragged()
    reference = kind.from_pretrained(folders[name]).eval()
    with torch.inference_mode():
        expected = [greedily(reference, start, source) for source in rows_of(sources)]
    assert {end for _, end in expected} == {True, False}
    assert len({len(text) for text, _ in expected}) > 3
    for batch_tokens in (40, 10_000):
        assert written(model, sources, batch_tokens) == expected


def test_a_source_that_is_too_long_is_cut_and_keeps_its_end(folders) -> None:
    model = load_text_to_text(folders["t5"], VOCABULARY, EXECUTION)
    sources = ragged()
    cut = [[*row[:5], END] if len(row) > 6 else row for row in rows_of(sources)]
    shorter = Ragged(np.concatenate(cut), np.array(list(map(len, cut))))
    assert written(model, sources, 100, length=6) == written(model, shorter, 100)


def test_memory_is_bounded_by_the_tokens_of_a_batch(folders) -> None:
    model = load_text_to_text(folders["t5"], VOCABULARY, EXECUTION)
    shapes = []
    inner = model.write
    model.write = lambda ids, mask, end, most: (shapes.append((*ids.shape, most)), inner(ids, mask, end, most))[1]
    reported = []
    write_texts(model, ragged(), 15, MOST, END, 90, reported.append)
    assert all(rows * (width + most) <= 90 for rows, width, most in shapes)
    assert [width for _, width, _ in shapes] == sorted((width for _, width, _ in shapes), reverse=True)
    assert reported == [rows for rows, _, _ in shapes]
    assert sum(reported) == 24


def test_lower_precision_computes_otherwise_and_writes_as_much(folders) -> None:
    exact = written(load_text_to_text(folders["t5"], VOCABULARY, EXECUTION), ragged(), 1000)
    rough = written(load_text_to_text(folders["t5"], VOCABULARY, Execution(precision="bfloat16", threads=1)), ragged(), 1000)
    same = sum(a == b for a, b in zip(exact, rough, strict=True))
    assert len(exact) // 2 < same


def test_a_t5_with_other_switches_is_read_by_transformers(tmp_path: Path) -> None:
    config = TheirT5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, feed_forward_proj="silu"
    )
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    model = load_text_to_text(tmp_path, VOCABULARY, EXECUTION)
    assert model.positions is None
    assert len(written(model, ragged(3), 100)) == 3


def test_other_folders_are_refused_with_a_message(folders, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"cannot be read as a model from text to text: .*; give a folder with"):
        load_text_to_text(tmp_path / "absent", VOCABULARY)
    gpt2 = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=1, n_head=1)).save_pretrained(gpt2)
    with pytest.raises(RelmError, match=r"gpt2: cannot be read as a model from text to text: "):
        load_text_to_text(gpt2, VOCABULARY)
    broken = tmp_path / "broken"
    shutil.copytree(folders["t5"], broken)
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(RelmError, match="broken: cannot be read as a model from text to text: "):
        load_text_to_text(broken, VOCABULARY)
    with pytest.raises(RelmError, match="the model has 23 tokens, the tokenizer 24; give the tokenizer it was trained with"):
        load_text_to_text(folders["t5"], VOCABULARY + 1)


def test_lengths_beyond_the_positions_are_refused(folders) -> None:
    model = load_text_to_text(folders["bart"], VOCABULARY, EXECUTION)
    require_lengths(model, 20, 20)
    with pytest.raises(RelmError, match="has 20 positions; 21 tokens do not fit"):
        require_lengths(model, 8, 21)
    require_lengths(load_text_to_text(folders["t5"], VOCABULARY, EXECUTION), 10_000, 10_000)


def test_a_weight_that_is_not_finite_is_named(folders, tmp_path: Path) -> None:
    for name in folders:
        folder = shutil.copytree(folders[name], tmp_path / name)
        weights = load_file(folder / "model.safetensors")
        spoiled = next(key for key in weights if key.endswith("norm.weight"))
        weights[spoiled][-1] = torch.nan
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(
            RelmError, match=f"{name}: the weight {spoiled} has nan, expected finite numbers: training diverged"
        ):
            load_text_to_text(folder, VOCABULARY)
