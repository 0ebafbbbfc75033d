"""Windows, labels, answers and figures are those of the original's own code, whose golden tests/oracles/make_squad.py makes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from question_files import FILES, PARAGRAPHS, made_file, sample_file
from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.evaluation.fine_tuning.answer_choice import SearchLimits, rank_answers
from relm.evaluation.fine_tuning.answer_text import answer_text
from relm.evaluation.fine_tuning.squad_scoring import score_answers
from relm.examples.fine_tuning.answer_windows import (
    AnswerWindows,
    Windowed,
    WindowLengths,
    window_questions,
    window_with_most_context,
)
from relm.examples.fine_tuning.squad import MarkedAnswer, Paragraph, SpanQuestion, parse_squad
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, import_tokenizer, load_tokenizer, train_tokenizer

DATA = Path(__file__).resolve().parents[1] / "data"
GOLDEN: dict[str, Any] = json.loads((DATA.parent / "oracles" / "goldens" / "squad.json").read_text(encoding="utf-8"))
LENGTHS = {
    "long": WindowLengths(),
    "short": WindowLengths(40, 12, 7),
    "tiny": WindowLengths(24, 30, 4),
    "wide": WindowLengths(160, 50, 10),
}
SEED = 1106


def bert(folder: Path, vocabulary: Path) -> LoadedTokenizer:
    """Return the tokenizer of a vocabulary of BERT's."""
    import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, folder / "tokenizer.json")
    return load_tokenizer(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    return bert(tmp_path_factory.mktemp("small"), DATA / "prose-vocabulary.txt")


def paragraphs_of(content: dict[str, Any]) -> list[Paragraph]:
    return parse_squad(json.dumps(content).encode(), "made.json")


def describe(windowed: Windowed, labelled: bool) -> dict[str, Any]:
    """Return the digest and the labels as the golden has them."""
    windows, batch = windowed.windows, windowed.windows.inputs()
    labels = np.stack([windows.starts, windows.ends], 1).tolist() if labelled else [[None, None]] * len(windows.lengths)
    rows = [
        [
            int(windows.questions[n]),
            windows.input_ids[n].tolist(),
            batch["attention_mask"][n].astype(int).tolist(),
            batch["token_type_ids"][n].tolist(),
            np.flatnonzero(windows.has_most_context[n]).tolist(),
            labels[n],
        ]
        for n in range(len(windows.lengths))
    ]
    return {"sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest(), "labels": labels}


def drawn_logits(windows: AnswerWindows) -> tuple[Any, Any]:
    """Return the logits that the golden's answers were chosen by."""
    draws = np.random.RandomState(SEED)
    each = [draws.standard_normal((2, windows.input_ids.shape[1])).astype(np.float32) for _ in windows.lengths]
    starts, ends = np.stack(each, 1)
    return starts, ends


def require_same(tokenizer: LoadedTokenizer, name: str, file: str, size: str) -> None:
    """Compare everything with a case of the golden."""
    golden, paragraphs = GOLDEN[f"{name}: {file}, {size}"], paragraphs_of(FILES[file]())
    for key in ("training", "prediction"):
        windowed = window_questions(paragraphs, tokenizer, LENGTHS[size], labelled=key == "training")
        assert describe(windowed, key == "training") == golden[key], key
    ranked = rank_answers(tokenizer, windowed.questions, windowed.windows, drawn_logits(windowed.windows), SearchLimits())
    ids = [asked.question.id for asked in windowed.questions]
    chosen = {name: found[0].text for name, found in zip(ids, ranked, strict=True)}
    assert chosen == golden["chosen"]
    for name, found in zip(ids, ranked, strict=True):
        assert [one.probability for one in found[:3]] == pytest.approx(golden["probabilities"][name], abs=1e-6), name
    figures = score_answers([asked.question for asked in windowed.questions], chosen)
    assert {key: 100 * value for key, value in figures.items()} == pytest.approx(golden["figures"], abs=1e-12)


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("file", FILES)
def test_windows_answers_and_figures_are_the_originals(small: LoadedTokenizer, file: str, size: str) -> None:
    require_same(small, "prose-vocabulary.txt", file, size)


def test_they_are_with_the_published_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    tokenizer = bert(tmp_path, shared_data / "tokenizers" / "bert-base-uncased" / "vocab.txt")
    for file in FILES:
        for size in LENGTHS:
            require_same(tokenizer, "bert-base-uncased", file, size)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    """A byte-level BPE with RoBERTa's special tokens, trained on the paragraphs."""
    folder = tmp_path_factory.mktemp("roberta")
    documents = folder / "documents.jsonl"
    texts = [context for context, _ in PARAGRAPHS]
    documents.write_text("".join(json.dumps({"id": text[:9], "title": "", "text": text}) + "\n" for text in texts))
    write_sidecar(documents, documents=len(texts))
    train_tokenizer("roberta_byte_level_bpe", [documents], 300, 10**6, folder / "tokenizer.json")
    return load_tokenizer(folder / "tokenizer.json")


def test_a_longer_window_counts_a_hundredth_of_its_length_more() -> None:
    # Token 275 has 24 tokens after it in the first window, 25 before it in the second: 24 + 3 > 25 + 1.5.
    assert window_with_most_context(400, [(0, 300), (250, 150)])[274:278].tolist() == [0, 0, 1, 1]


def test_with_another_tokenizer_a_label_covers_the_answer_and_little_else(roberta: LoadedTokenizer) -> None:
    paragraphs = paragraphs_of(made_file())
    windowed = window_questions(paragraphs, roberta, WindowLengths(384, 128, 64), labelled=True)
    windows, covered = windowed.windows, []
    for number, asked in enumerate(windowed.questions):
        shift = windows.first_tokens[number] - windows.context_starts[number]
        text = answer_text(roberta, asked.paragraph, *(int(at[number] + shift) for at in (windows.starts, windows.ends)))
        assert asked.question.answers[0].text in text
        covered.append(text == asked.question.answers[0].text)
    assert covered.count(False) == 1, "a part of a word alone"
    assert "ohn Smit" in windowed.questions[3].question.answers[0].text


@pytest.mark.parametrize("end", ["", " ", "  ", "\n", " \u00a0", "\t \n"])
def test_white_space_at_the_end_of_a_paragraph_moves_no_label(roberta: LoadedTokenizer, end: str) -> None:
    question = SpanQuestion("1", "Who sat?", (MarkedAnswer("cat", 4),))
    paragraph = Paragraph(f"The cat sat on the mat. {end}", (question,))
    windows = window_questions([paragraph], roberta, WindowLengths(90, 30, 20), labelled=True).windows
    alone = window_questions([Paragraph(paragraph.context.rstrip(), (question,))], roberta, WindowLengths(90, 30, 20), True)
    assert (windows.starts.tolist(), windows.ends.tolist()) == (alone.windows.starts.tolist(), alone.windows.ends.tolist())
    assert windows.starts[0] > 0


def test_a_window_is_the_tokenizers_pair_of_texts(roberta: LoadedTokenizer, small: LoadedTokenizer) -> None:
    paragraphs = paragraphs_of(sample_file())
    for tokenizer in (roberta, small):
        windows = window_questions(paragraphs, tokenizer, WindowLengths(900, 128, 200), labelled=False).windows
        pairs = [(question.text, paragraph.context) for paragraph in paragraphs for question in paragraph.questions]
        for number, encoding in enumerate(tokenizer.tokenizer.encode_batch(pairs)):
            assert windows.input_ids[number, : windows.lengths[number]].tolist() == encoding.ids
            types = windows.inputs()["token_type_ids"][number, : windows.lengths[number]]
            assert types.tolist() == encoding.type_ids or tokenizer is roberta


def test_an_answer_that_is_not_where_the_file_says_is_left_out_of_training(small: LoadedTokenizer) -> None:
    paragraphs = paragraphs_of(FILES["misplaced"]())
    found = {labelled: window_questions(paragraphs, small, LENGTHS["long"], labelled) for labelled in (True, False)}
    assert [found[labelled].skipped for labelled in (True, False)] == [1, 0]
    assert len(found[True].questions) == len(found[False].questions) - 1


def test_a_question_that_fills_the_window_is_refused(small: LoadedTokenizer) -> None:
    with pytest.raises(RelmError, match="sequence_length: 20 tokens are too few for 17 tokens of a question"):
        window_questions(paragraphs_of(made_file()), small, WindowLengths(20, 8, 17), labelled=False)


def test_a_tokenizer_without_a_template_for_pairs_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(RelmError, match=r"lacks the special token \[CLS\] or <s>"):
        window_questions(paragraphs_of(made_file()), load_tokenizer(tmp_path / "tokenizer.json"), WindowLengths(), False)
