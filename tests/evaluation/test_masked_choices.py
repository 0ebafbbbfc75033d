"""Masked models choose among sentences by pseudo-log-likelihood; sums are those of a loop over transformers."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from choice_files import HELLASWAG, write_lines
from masked_cases import CLS, LENGTH, MASK, SEP, TINY, TOKENS, bert
from tokenizers import Tokenizer, models, pre_tokenizers

from harness_tasks import small_model, small_tokenizer
from relm.artifact import read_json
from relm.errors import RelmError
from relm.evaluation.choices.choice_formats import read_questions
from relm.evaluation.choices.masked_choices import sentence_scores
from relm.evaluation.choices.multiple_choice import evaluate_multiple_choice
from relm.evaluation.execution import Execution
from relm.evaluation.masked_models import OwnMaskedModel, is_masked, load_masked
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.examples.tokenization.tokenizer_models import wordpiece
from relm.recipes.evaluation.protocol_options import MultipleChoice

# The third pair has equal sentences; "é" has no token, so that an unknown one is scored, and "." is one token.
PAIRS = [("abc de.", "abc ed."), ("fgh", "f gh ijk."), ("kk k.", "kk k."), ("a é b", "a b é"), ("abc de.", "m")]
ROWS = [{"sentence_good": good, "sentence_bad": bad, "UID": f"p{n % 2}"} for n, (good, bad) in enumerate(PAIRS)]


def save_tokenizer(path: Path, adds_special: bool = True, mask: bool = True) -> None:
    tokens = [token if mask or token != "[MASK]" else "[NONE]" for token in TOKENS]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if adds_special and mask:
        wordpiece(vocabulary, lower_case=False).save(str(path))
        return
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(tokens[:5])
    tokenizer.save(str(path))


def own(folder: Path) -> Path:
    return bert(folder, next_sentence=False)


def own_with_pairs(folder: Path) -> Path:
    return bert(folder)


def foreign(folder: Path) -> Path:
    """Write a BERT with options that relm has not, which transformers reads."""
    config = hf.BertConfig(
        vocab_size=TINY.vocabulary_size, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=LENGTH, hidden_act="relu",
    )  # fmt: skip
    model = hf.BertForMaskedLM(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.4, generator=generator)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a model of relm's own with its tokenizer."""
    model = own(tmp_path / "model")
    save_tokenizer(model / "tokenizer.json")
    return model


def expected_sums(folder: Path, sentences: list[str]) -> list[float]:
    """Return the sums of a loop over transformers' model: one token masked, one sentence, no padding."""
    reference = hf.BertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sums = []
    for sentence in sentences:
        ids = [CLS, *tokenizer.encode(sentence, add_special_tokens=False).ids, SEP]
        total = 0.0
        for position in range(1, len(ids) - 1):
            masked = torch.tensor([[*ids[:position], MASK, *ids[position + 1 :]]])
            with torch.no_grad():
                logits = reference(input_ids=masked).logits[0, position]
            total += float(torch.log_softmax(logits.float(), -1)[ids[position]])
        sums.append(total)
    return sums


def scores(folder: Path, file: Path, batch_tokens: int) -> tuple[Any, Any]:
    loaded = load_tokenizer(folder / "tokenizer.json")
    questions = read_questions(file, None, "blimp", None)[0]
    model = load_masked(folder, loaded.vocabulary_size, Execution(threads=1))
    return sentence_scores(model, loaded, questions, batch_tokens)


def evaluate(folder: Path, file: Path, form: str = "blimp", **more: Any) -> dict[str, Any]:
    options = MultipleChoice.model_validate({"format": form})
    output, execution = file.parent / "e.json", Execution(threads=1, batch_tokens=more.pop("batch_tokens", 64))
    evaluate_multiple_choice(folder, folder / "tokenizer.json", file, options, output=output, execution=execution, **more)
    return read_json(output)


@pytest.mark.parametrize("build", [own, own_with_pairs, foreign])
@pytest.mark.parametrize("adds_special", [True, False])
def test_sums_are_those_of_a_loop_over_transformers(build: Any, adds_special: bool, tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    save_tokenizer(folder / "tokenizer.json", adds_special)
    file = write_lines(tmp_path / "pairs.jsonl", ROWS)
    expected = expected_sums(folder, [sentence for pair in PAIRS for sentence in pair])
    for batch_tokens in (1, 40, 10_000):
        sums, tokens = scores(folder, file, batch_tokens)
        assert sums.tolist() == pytest.approx(expected, rel=0, abs=1e-4)
        assert tokens.tolist() == [6, 6, 3, 7, 4, 4, 3, 3, 6, 1]
        assert sums[4] == sums[5], "equal sentences tie exactly, however batches are made"


def test_figures_take_the_first_maximum_and_weigh_paradigms_alike(folder: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "pairs.jsonl", ROWS)
    expected = np.array(expected_sums(folder, [sentence for pair in PAIRS for sentence in pair])).reshape(-1, 2)
    expected[2] = -1.0  # equal sentences
    right = expected[:, 0] >= expected[:, 1]
    by_paradigm = [right[0::2].mean(), right[1::2].mean()]
    results = [evaluate(folder, file, batch_tokens=tokens) for tokens in (1, 30, 10_000)]
    assert results[0]["figures"] == results[1]["figures"] == results[2]["figures"]
    figures = results[0]["figures"]
    assert figures["pseudo_log_likelihood_accuracy"] == pytest.approx(np.mean(by_paradigm))
    assert by_paradigm[0] != by_paradigm[1], "else the mean over pairs might pass"
    assert (figures["p0_examples"], figures["p1_examples"], figures["paradigms"], figures["ties"]) == (3, 2, 2, 1)
    assert figures["p0_pseudo_log_likelihood_correct"] == right[0::2].sum()
    assert not any(name.startswith(("babylm", "lm_eval")) for name in figures)
    assert "masked alone" in results[0]["protocol"]["in_words"]


def test_files_of_the_supplement_are_paradigms_by_their_names(folder: Path, tmp_path: Path) -> None:
    plain = [{key: row[key] for key in ("sentence_good", "sentence_bad")} for row in ROWS]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("blimp/a.jsonl", json.dumps(ROWS[0]))
        archive.writestr("supplement/hypernym.jsonl", "\n".join(map(json.dumps, plain[1:3])))
        archive.writestr("supplement/turn_taking.jsonl", json.dumps(plain[4]))
    figures = evaluate(folder, tmp_path / "all.zip")["figures"]
    assert {name: figures[f"{name}_examples"] for name in ("p0", "hypernym", "turn_taking")} == {
        "p0": 1, "hypernym": 2, "turn_taking": 1,
    }  # fmt: skip
    correct = [figures[f"{name}_pseudo_log_likelihood_correct"] for name in ("p0", "hypernym", "turn_taking")]
    assert figures["pseudo_log_likelihood_accuracy"] == pytest.approx((correct[0] + correct[1] / 2 + correct[2]) / 3)


def test_the_vocabulary_projection_is_made_at_the_masked_positions_alone(folder: Path, tmp_path: Path) -> None:
    loaded = load_tokenizer(folder / "tokenizer.json")
    file = write_lines(tmp_path / "pairs.jsonl", ROWS)
    model = load_masked(folder, loaded.vocabulary_size, Execution(threads=1))
    assert isinstance(model, OwnMaskedModel)
    shapes: list[tuple[int, ...]] = []
    head = model.model.head

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(hidden.shape))
        return head(hidden)

    model.model.head = counted  # type: ignore[method-assign,assignment]
    questions = read_questions(file, None, "blimp", None)[0]
    sentence_scores(model, loaded, questions, 10_000)
    assert {shape[1] for shape in shapes} == {1}
    assert sum(shape[0] for shape in shapes) == 33, "43 tokens, of which 10 are of sentences that occur before"


def test_a_tokenizer_without_a_mask_token_is_refused(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(folder / "tokenizer.json", mask=False)
    with pytest.raises(RelmError, match=r"tokenizer\.json: the tokenizer has no mask token \[MASK\] or <mask>, so nothing"):
        evaluate(folder, write_lines(tmp_path / "pairs.jsonl", ROWS))


def test_other_formats_are_refused_for_masked_models(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"masked language model, .*expected multiple_choice\.format blimp, found hellaswag"):
        evaluate(folder, write_lines(tmp_path / "h.jsonl", HELLASWAG), "hellaswag")


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("a " * LENGTH, rf"line 2: a sentence has {LENGTH + 2} tokens with its special ones, .* has {LENGTH} positions"),
        ("\u200b", r"line 2: .*tokenizer\.json has no token for a sentence; correct the line"),
    ],
)
def test_a_sentence_that_cannot_be_scored_is_named(sentence: str, message: str, folder: Path, tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "sentence_bad": sentence}]
    with pytest.raises(RelmError, match=message):
        evaluate(folder, write_lines(tmp_path / "pairs.jsonl", rows))


def test_a_folder_is_told_masked_from_causal_by_its_configuration(tmp_path: Path) -> None:
    assert is_masked(own(tmp_path / "bert"))
    assert is_masked(foreign(tmp_path / "foreign"))
    assert not is_masked(small_model(tmp_path / "gpt2", small_tokenizer(tmp_path), positions=60))
    for names, more, masked in [
        (["BertLMHeadModel"], {}, False),
        (["BertForMaskedLM"], {"is_decoder": True}, False),
        (["DistilBertForMaskedLM"], {"model_type": "distilbert"}, True),
        ([], {}, True),
    ]:
        (tmp_path / "any").mkdir(exist_ok=True)
        (tmp_path / "any" / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": names, **more}))
        assert is_masked(tmp_path / "any") is masked, (names, more)
