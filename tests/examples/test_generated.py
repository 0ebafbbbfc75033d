from pathlib import Path

import numpy as np
import pytest
from token_streams import write_stream

from relm.errors import RelmError
from relm.examples.causal import CausalExamples
from relm.examples.contract import IGNORED, Batch
from relm.examples.generated import GeneratedExamples
from relm.examples.manifest import write_manifest
from relm.examples.masked import MaskedExamples, pregenerate_masked
from relm.examples.masking import prediction_capacity
from relm.examples.seq2seq import Seq2SeqExamples, pregenerate_seq2seq
from relm.examples.sharded_tables import ExampleTables
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.objectives import Objective
from small_tokenizers import save_words

NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>", *(f"w{number}" for number in range(50))]
SPECIAL = SpecialIds(end_of_text=5, pad=0, unk=1, cls=2, sep=3, mask=4)
ROWS = np.array([0, 1, 0])


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Write a tokenizer of words with all special tokens."""
    return save_words(tmp_path / "words.json", NAMES, special=NAMES[:6], unknown="[UNK]")


@pytest.fixture
def documents(write_documents) -> Path:
    """Write twelve documents of ten lines of five words."""
    generator = np.random.default_rng(2)
    lines = [" ".join(np.array(NAMES)[generator.integers(6, 56, 5)]) for _ in range(120)]
    return write_documents("a.jsonl", ["\n".join(lines[start : start + 10]) for start in range(0, 120, 10)])


def objective(name: str, length: int = 16, **options: object) -> Objective:
    return Objective.model_validate({"objective": name, "sequence_length": length, **({name: options} if options else {})})


def layout(batch: Batch) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, array.dtype.name) for name, array in batch.items()}


def generated(wanted: Objective, vocabulary_size: int = 56, size: int = 5, seed: int = 0) -> GeneratedExamples:
    return GeneratedExamples(wanted, vocabulary_size, SPECIAL, size, seed)


def batch_of(examples: GeneratedExamples) -> Batch:
    return examples.batch(ROWS, np.zeros(3, dtype=np.int64))


@pytest.mark.parametrize("options", [{}, {"document_attention": True}, {"stride": 4}])
def test_causal_batches_are_laid_out_like_real_ones(tmp_path, options) -> None:
    wanted = objective("causal", **options)
    manifest = write_stream(tmp_path, {"train": {"a": list(range(99))}})
    real = CausalExamples(manifest, "train", 16, wanted.causal).batch(ROWS, ROWS)
    assert layout(batch_of(generated(wanted))) == layout(real)


@pytest.mark.parametrize("options", [{}, {"target_length": 9}])
def test_seq2seq_batches_are_laid_out_like_real_ones(tmp_path, words, documents, options) -> None:
    wanted = objective("seq2seq", **options)
    pregenerate_seq2seq(documents, words, tmp_path / "a.arrow", wanted, "ro", workers=1)
    write_manifest({"train": [tmp_path / "a.arrow"]}, tmp_path / "manifest.json")
    real = Seq2SeqExamples(ExampleTables(tmp_path / "manifest.json", "train"), wanted, SPECIAL).batch(ROWS, ROWS)
    assert layout(batch_of(generated(wanted))) == layout(real)


@pytest.mark.parametrize(
    "options",
    [
        {"sentences": "lines"},
        {"sentences": "lines", "packing": "sentence_pairs", "whole_words": True},
        {"sentences": "lines", "masks": "static", "max_predictions": 3},
        {"sentences": "lines", "selection": "bernoulli"},
        {"sentences": "lines", "packing": "document_sentences", "selection": "bernoulli", "max_predictions": 5},
    ],
)
def test_masked_batches_are_laid_out_like_real_ones(tmp_path, words, documents, options) -> None:
    wanted = objective("masked", 32, **options)
    pregenerate_masked(documents, words, tmp_path / "a.arrow", wanted, "ro", workers=1)
    write_manifest({"train": [tmp_path / "a.arrow"]}, tmp_path / "manifest.json")
    tables = ExampleTables(tmp_path / "manifest.json", "train")
    real = MaskedExamples(tables, wanted, 0, SPECIAL, len(NAMES)).batch(ROWS, ROWS)
    assert layout(batch_of(generated(wanted))) == layout(real)


def test_originals_leave_room_for_all_predictions() -> None:
    options = {"masks": "static", "max_predictions": 20}
    plain = objective("masked", 128, **options)
    published = plain.model_copy(update={"as_published": Objective.model_fields["as_published"].annotation})
    assert prediction_capacity(plain) == 19
    assert prediction_capacity(published) == 20


@pytest.mark.parametrize("name", ["causal", "masked", "seq2seq"])
def test_an_example_is_the_same_in_every_batch_and_new_in_every_epoch(name) -> None:
    examples = generated(objective(name), vocabulary_size=5000)
    together = examples.batch(np.array([3, 0, 3]), np.array([1, 0, 0]))
    alone = examples.batch(np.array([3]), np.array([1]))
    for key, array in alone.items():
        assert array[0].tolist() == together[key][0].tolist()
    assert together["input_ids"][0].tolist() != together["input_ids"][2].tolist()
    other = generated(objective(name), vocabulary_size=5000, seed=1).batch(np.array([3]), np.array([1]))
    assert other["input_ids"].tolist() != alone["input_ids"].tolist()


def test_tokens_are_of_the_vocabulary_and_labels_match_the_inputs() -> None:
    batch = generated(objective("causal", 50), vocabulary_size=7, size=100).batch(np.arange(100), np.zeros(100, dtype=int))
    assert set(batch["input_ids"].ravel().tolist()) == set(range(7))
    assert np.array_equal(batch["input_ids"][:, 1:], batch["labels"][:, :-1])
    masked = generated(objective("masked", 50), vocabulary_size=999).batch(ROWS, ROWS)
    assert masked["input_ids"][:, [0, -1]].tolist() == [[2, 3]] * 3
    assert (masked["masked_labels"] != IGNORED).all()
    assert (np.diff(masked["masked_positions"], axis=1) > 0).all()
    some = generated(objective("masked", 512, selection="bernoulli"), vocabulary_size=999).batch(ROWS, ROWS)
    unused = some["masked_labels"] == IGNORED
    assert unused.any(axis=1).all()
    assert (unused == (some["masked_positions"] == 0)).all()


def test_an_example_that_does_not_exist_is_refused() -> None:
    examples = generated(objective("causal"), size=4)
    assert len(examples) == 4
    with pytest.raises(IndexError, match="examples are 0 to 3, requested 4"):
        examples.batch(np.array([4]), np.array([0]))


def test_options_that_fit_no_examples_are_refused_at_once() -> None:
    with pytest.raises(RelmError, match="the tokenizer lacks a mask token"):
        GeneratedExamples(objective("masked"), 56, SpecialIds(), 5, 0)
