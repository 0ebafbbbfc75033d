"""The evaluation of restored diacritics from tables and a model's folder to the result's file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import T5ForConditionalGeneration

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation.diacritics import diacritics_baselines
from relm.evaluation.diacritics.diacritics_baselines import Training, count_training_forms
from relm.evaluation.diacritics.diacritics_scoring import RestorationCounts, compare_texts
from relm.evaluation.diacritics.restoration import halves
from relm.evaluation.diacritics.restored_texts import WORKED_EXAMPLES, evaluate_diacritics
from relm.evaluation.diacritics.table_texts import BLOCK
from relm.evaluation.execution import Execution
from relm.evaluation.result import Result
from relm.examples.diacritics import without_diacritics
from relm.examples.manifest import write_manifest
from relm.examples.seq2seq import pregenerate_seq2seq
from relm.examples.tokenization.tokenizer_files import load_tokenizer, train_tokenizer
from relm.models.t5 import T5, T5Config
from relm.recipes.evaluation.evaluations import Diacritics
from relm.recipes.objectives import Objective, Seq2Seq
from small_documents import write_texts
from small_tokenizers import save_words

END = 1
WORDS = ["<pad>", "</s>", "<unk>", "să", "sa", "și", "si", "în", "in", "casă", "casa", "tot", "un"]
EXECUTION = Execution(threads=1, batch_tokens=128)


def phase(sequence_length: int = 10, **options: object) -> Objective:
    return Objective(objective="seq2seq", sequence_length=sequence_length, seq2seq=Seq2Seq(**options))


def sentences(count: int, seed: int) -> list[str]:
    """Return sentences of a rule: a word is "să" after "si" or at the beginning, and "sa" otherwise."""
    generator = np.random.default_rng(seed)
    texts = []
    for size in generator.integers(3, 8, count):
        words = generator.choice(["sa", "și", "în", "casă", "tot", "un"], size).tolist()
        texts.append(
            " ".join("să" if word == "sa" and (not n or words[n - 1] == "și") else word for n, word in enumerate(words))
        )
    return texts


def word_tokenizer(path: Path) -> Path:
    """Write a tokenizer of thirteen words."""
    return save_words(path, WORDS, special=WORDS[:3], unknown="<unk>")


def write_tables(folder: Path, tokenizer: Path, held_out: list[str], train: list[str], **options: object) -> Path:
    shards = {}
    for split, texts in {"train": train, "held_out": held_out}.items():
        documents = write_texts(folder / f"{split}.jsonl", texts)
        shards[split] = [folder / f"a.{split}.arrow"]
        pregenerate_seq2seq(documents, tokenizer, shards[split][0], phase(**options), "ro", workers=1)
    write_manifest(shards, folder / "manifest.json")
    return folder / "manifest.json"


@dataclass(frozen=True)
class Restoring:
    """A model, a tokenizer, and tables that are built in a new folder each time."""

    model: Path
    tokenizer: Path
    folder: Path

    def tables(self, held_out: list[str], train: list[str] | None = None, **options: object) -> Path:
        return write_tables(self.folder, self.tokenizer, held_out, sentences(60, 1) if train is None else train, **options)

    def evaluated(self, manifest: Path, given: Objective | None = None, **arguments: object) -> Result:
        output = self.folder / "diacritics.json"
        summary = evaluate_diacritics(
            self.model, manifest, self.tokenizer, given or phase(), output=output, **{"execution": EXECUTION, **arguments}
        )
        assert summary.startswith("restored ")
        return Result(**read_json(output))


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    model = T5(T5Config(1, 2, 8, 16, 24, len(WORDS), family="mt5"))
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 1.0, generator=generator)
    model.save_folder(folder, {"eos_token_id": END})
    return folder


@pytest.fixture
def restoring(random_model: Path, tmp_path: Path) -> Restoring:
    return Restoring(random_model, word_tokenizer(tmp_path / "words.json"), tmp_path)


def expected_counts(
    model: Path, tokenizer: Path, texts: list[str], ambiguous: set[str], most: int
) -> tuple[RestorationCounts, int]:
    """Return counts by transformers' own generation, one text at a time, and the count of texts without an end."""
    theirs = T5ForConditionalGeneration.from_pretrained(model).eval()
    loaded, counts, truncated = load_tokenizer(tokenizer), RestorationCounts(), 0
    for text in texts:
        ids = [*loaded.tokenizer.encode(without_diacritics(text)).ids, END]
        written = theirs.generate(input_ids=torch.tensor([ids]), max_new_tokens=most, num_beams=1, do_sample=False)[
            0, 1:
        ].tolist()
        truncated += END not in written
        counts += compare_texts(text, loaded.tokenizer.decode(written), ambiguous)
    return counts, truncated


def test_figures_are_those_of_one_text_at_a_time_with_transformers(restoring: Restoring) -> None:
    texts = sentences(40, seed=2)
    manifest = restoring.tables(texts)
    result = restoring.evaluated(manifest)
    expected, truncated = expected_counts(restoring.model, restoring.tokenizer, texts, {"sa"}, most=10)
    assert 0 < expected.right_words < expected.words
    assert 0 < truncated < 40
    figures = result.figures
    assert {name: figures[name] for name in expected.accuracies()} == expected.accuracies()
    counted = ("words", "ambiguous_words", "characters", "diacritics", "extra_words")
    assert {name: figures[name] for name in counted} == {name: getattr(expected, name) for name in counted}
    assert (figures["texts"], figures["truncated_texts"], figures["texts_in_parts"]) == (40, truncated, 0)
    assert (figures["unseen_words"], figures["unknown_tokens"]) == (0, 0)
    assert figures["training_words"] == sum(len(text.split()) for text in sentences(60, 1))


def test_baselines_are_by_the_training_text(restoring: Restoring) -> None:
    manifest = restoring.tables(["să și casă un", "sa tot nou"], train=["să sa să", "casa și", "un"])
    figures = restoring.evaluated(manifest).figures
    names = ("word_accuracy", "ambiguous_word_accuracy", "diacritic_accuracy")
    # The word "nou" is none of the tokenizer's; "casă" is "casa" in training, "tot" does not occur there.
    assert [figures[f"no_diacritics_{name}"] for name in names] == [3 / 6, 1 / 2, 0.0]
    assert [figures[f"most_frequent_form_{name}"] for name in names] == [4 / 6, 1 / 2, 2 / 3]
    assert (figures["words"], figures["ambiguous_words"], figures["unseen_words"]) == (6, 2, 1)
    assert (figures["unknown_tokens"], figures["training_words"]) == (1, 6)


def test_workers_change_no_form(restoring: Restoring, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = restoring.tables(["să"], sentences(3 * BLOCK, 7))
    training = Training(manifest, sha256_of(manifest), restoring.tokenizer, sha256_of(restoring.tokenizer), "ro")
    monkeypatch.setattr(diacritics_baselines, "BLOCKS_A_WORKER", 1)
    one, two = (count_training_forms(training, {"sa", "si", "casa"}, workers) for workers in (1, 2))
    assert one == two
    assert one.words == sum(len(text.split()) for text in sentences(3 * BLOCK, 7))


def test_the_result_records_the_protocol(restoring: Restoring) -> None:
    manifest = restoring.tables(["să casă"])
    result = restoring.evaluated(manifest, phase(10, target_length=9))
    protocol = result.protocol
    assert protocol["tokenizer_sha256"] == sha256_of(restoring.tokenizer)
    assert protocol["manifest_sha256"] == sha256_of(manifest)
    assert result.model_sha256 == sha256_of(restoring.model / "model.safetensors")
    assert (protocol["source_length"], protocol["target_length"], protocol["language"]) == (10, 9, "ro")
    assert protocol["in_words"].startswith("Each held-out line loses its diacritics")
    assert {"limit", "examples"}.isdisjoint(protocol)
    assert result.samples[0].prompt == without_diacritics(WORKED_EXAMPLES["ro"])
    worked = compare_texts(WORKED_EXAMPLES["ro"], result.samples[0].text, ()).accuracies()["word_accuracy"]
    assert result.figures["worked_example_word_accuracy"] == worked


def test_only_the_first_texts_are_restored_if_requested(restoring: Restoring) -> None:
    texts = sentences(9, seed=3)
    manifest = restoring.tables(texts)
    five = restoring.evaluated(manifest, options=Diacritics(examples=5))
    assert five.figures["words"] == sum(len(text.split()) for text in texts[:5])
    assert five.protocol["examples"] == 5
    two = restoring.evaluated(manifest, options=Diacritics(examples=5), limit=2)
    assert two.figures["texts"] == 2
    assert (two.protocol["examples"], two.protocol["limit"]) == (5, 2)
    assert restoring.evaluated(manifest, limit=100).figures["texts"] == 9


def test_a_text_that_is_too_long_is_given_in_parts_and_counts_whole(restoring: Restoring) -> None:
    texts = ["să și în casă tot un", "sa sa sa", "în"]
    manifest = restoring.tables(texts)
    parts = ["să și în", "casă tot un", "sa sa sa", "în"]
    for given in (phase(4), phase(20, target_length=4)):
        result = restoring.evaluated(manifest, given)
        expected, _ = expected_counts(restoring.model, restoring.tokenizer, parts, {"sa"}, most=4)
        assert {name: result.figures[name] for name in expected.accuracies()} == expected.accuracies()
        assert (result.figures["texts"], result.figures["texts_in_parts"], result.figures["words"]) == (3, 1, 10)


def test_texts_are_halved_between_words_and_end_where_nothing_is_left_to_halve() -> None:
    assert halves("un\u00a0 doi") == ["un", "doi"]
    assert halves("unul doi") == ["unul", "doi"]
    assert halves("a bcdefgh") == ["a", "bcdefgh"]
    assert halves("abcdefg") == ["abc", "defg"]
    assert halves("ab") == ["a", "b"]
    assert halves("a") == ["a"]


def test_a_word_that_cannot_be_short_enough_is_cut_by_the_model_and_ends_nothing(tmp_path: Path, random_model: Path) -> None:
    """Divide a text until one letter is left: each is two tokens, and a text may have one."""
    training = write_texts(tmp_path / "training.jsonl", ["ă â î " * 30])
    tokenizer = tmp_path / "tokenizer.json"
    train_tokenizer("byte_level_bpe", [training], 258, 10**6, tokenizer)
    model = T5(T5Config(1, 2, 8, 16, 24, 300))
    model.initialise(torch.Generator().manual_seed(0))
    (tmp_path / "model").mkdir()
    model.save_folder(tmp_path / "model", {})
    given = Restoring(tmp_path / "model", tokenizer, tmp_path)
    figures = given.evaluated(given.tables(["țț"]), phase(2)).figures
    assert (figures["words"], figures["characters"]) == (2, 2)


def test_another_language_has_its_own_letters_and_no_worked_example(restoring: Restoring) -> None:
    result = restoring.evaluated(restoring.tables(["să casă"]), language="tr")
    assert result.samples is None
    assert "worked_example_word_accuracy" not in result.figures


def test_a_tokenizer_that_the_examples_were_not_made_with_is_refused(restoring: Restoring) -> None:
    manifest = restoring.tables(["să"])
    restoring.tokenizer.write_text(restoring.tokenizer.read_text() + "\n")
    with pytest.raises(RelmError, match=r"words\.json: has sha256 .* was made with .*; give that tokenizer"):
        restoring.evaluated(manifest)


def test_phases_that_do_not_fit_are_refused(restoring: Restoring) -> None:
    manifest = restoring.tables(["să"])
    with pytest.raises(RelmError, match="objective: masked restores no diacritics; give the settings of a phase"):
        restoring.evaluated(manifest, Objective(objective="masked", sequence_length=8))
    with pytest.raises(RelmError, match=r"manifest\.json: expected examples with .*documents.*, found "):
        restoring.evaluated(manifest, phase(texts="documents"))


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (["12 , 3"], "1 held-out texts have no words; use more documents"),
        (
            ["un tot", "casa"],
            "2 held-out texts have no diacritics to restore; use text that has some, and a tokenizer that keeps",
        ),
    ],
)
def test_held_out_texts_with_nothing_to_restore_are_refused(restoring: Restoring, held_out: list[str], message: str) -> None:
    with pytest.raises(RelmError, match=message):
        restoring.evaluated(restoring.tables(held_out))
    assert not (restoring.folder / "diacritics.json").exists()


def test_a_manifest_without_held_out_or_training_texts_is_refused(restoring: Restoring) -> None:
    restoring.tables(["să"])
    for kept, absent in (("train", "held_out"), ("held_out", "train")):
        write_manifest({kept: [restoring.folder / f"a.{kept}.arrow"]}, restoring.folder / "half.json")
        with pytest.raises(RelmError, match=f"half.json: unknown split '{absent}'"):
            restoring.evaluated(restoring.folder / "half.json")
