"""Files of test texts with a byte order mark and CR LF: perplexity scores them as text and says so, JSON has neither."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from choice_files import ROWS, write_lines

from harness_tasks import small_model, small_tokenizer
from question_files import made_file
from relm.artifact import read_json
from relm.evaluation.choices.choice_formats import read_questions
from relm.evaluation.evaluated_items import read_items
from relm.evaluation.evaluated_text import read_passages
from relm.evaluation.execution import Execution
from relm.evaluation.text_perplexity import evaluate_text
from relm.examples.fine_tuning.squad import parse_squad
from relm.recipes.evaluation.protocol_options import TextPerplexity

MARK = b"\xef\xbb\xbf"
TEXT = b"The cat sat on the mat.\nIt was late.\nA dog looked at it.\n"


def marked(content: bytes) -> bytes:
    """Return a file's content as some editors save it."""
    return MARK + content.replace(b"\n", b"\r\n")


READERS: dict[str, tuple[list[dict[str, Any]], Callable[[Path], Any]]] = {
    "lambada": ([{"text": "a passage of words"}] * 2, lambda file: read_passages(file, None, "text", None)[0]),
    **{
        form: (ROWS[form], lambda file, form=form: [(q.prompts, q.answer) for q in read_questions(file, None, form, None)[0]])  # type: ignore[misc]
        for form in ROWS
    },
    "squad": ([made_file()], lambda file: parse_squad(file.read_bytes(), "f")),
    "squad's items": ([made_file()], lambda file: read_items(file, "squad", "")[0]),
}


@pytest.mark.parametrize("kind", READERS)
def test_lines_of_json_are_the_same_with_a_byte_order_mark_and_cr_lf(kind: str, tmp_path: Path) -> None:
    rows, read = READERS[kind]
    file = write_lines(tmp_path / "f.jsonl", rows)
    plain = read(file)
    file.write_bytes(marked(file.read_bytes()))
    assert read(file) == plain


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ends")
    return small_model(folder / "model", small_tokenizer(folder), positions=60)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (TEXT, None),
        (MARK + TEXT, {"byte_order_mark": 1}),
        (TEXT.replace(b"\n", b"\r\n"), {"cr_lf": 3}),
        (marked(TEXT), {"byte_order_mark": 1, "cr_lf": 3}),
    ],
)
def test_perplexity_says_that_it_scores_them(
    content: bytes, found: dict[str, int] | None, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "f.txt").write_bytes(content)
    given = {"tokenizer": model / "tokenizer.json", "file": tmp_path / "f.txt", "output": tmp_path / "e.json", "task": "e"}
    with caplog.at_level(logging.WARNING):
        evaluate_text(model, **given, options=TextPerplexity(), execution=Execution(threads=1))  # type: ignore[arg-type]
    result = read_json(tmp_path / "e.json")
    assert result["protocol"].get("scored_as_text") == found
    assert result["figures"]["bytes"] == len(content)
    assert ("relm extract removes both" in caplog.text) == (found is not None)
    assert json.dumps(result)
