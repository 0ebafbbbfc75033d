"""Options of published tests, which belong to the protocol that scores them."""

from pathlib import Path
from typing import get_args

import pytest

from relm.errors import RelmError
from relm.examples.fine_tuning.glue import TASKS
from relm.recipes.evaluation.fine_tuning import Glue
from relm.recipes.evaluation.protocol_options import TextPerplexity
from relm.recipes.evaluation.published_tests import PublishedTest, load_test

FILE = {"a.txt": {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org/a.txt"}]}}
TWO = FILE | {"b.txt": FILE["a.txt"]}
THREE = TWO | {"c.txt": FILE["a.txt"]}
MNLI = {"protocol": "glue", "glue": {"task": "mnli"}, "training_file": "a.txt", "mismatched_file": "b.txt", "files": THREE}
TEST = {"title": "A text", "licence": "CC0-1.0", "protocol": "perplexity", "files": FILE}


def test_options_of_another_protocol_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="perplexity: read with protocol: perplexity only"):
        PublishedTest.model_validate(TEST | {"protocol": "lambada", "perplexity": {"stride": 3}})
    path = tmp_path / "a.yaml"
    path.write_text("title: x\nlicense: MIT\nprotocol: perplexty\nfiles: {}\n")
    with pytest.raises(RelmError) as fault:
        load_test(path)
    assert "license: unknown key; did you mean licence?" in str(fault.value)
    assert "protocol: " in str(fault.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"training_file": "a.txt"}, "training_file: perplexity fine-tunes no model; remove it"),
        ({"files": FILE | {"b.txt": FILE["a.txt"]}}, "files: perplexity scores one file, found a.txt, b.txt"),
        ({"protocol": "squad"}, "training_file: squad fine-tunes a model; name the one of a.txt for that"),
        ({"protocol": "squad", "training_file": "b.txt"}, "files: squad scores one file besides b.txt, found a.txt; list"),
        ({"protocol": "squad", "training_file": "a.txt"}, "files: squad scores one file besides a.txt, found a.txt; list"),
        ({"protocol": "squad", "training_file": "a.txt", "files": THREE}, "files: squad scores one file besides a.txt, found"),
        (MNLI | {"glue": {"task": "rte"}}, "mismatched_file: only task mnli of the protocol glue has a second file; remove it"),
        ({"mismatched_file": "a.txt"}, "mismatched_file: only task mnli of the protocol glue has a second file"),
        (MNLI | {"mismatched_file": "d.txt"}, "files: glue scores one file besides a.txt and d.txt, found a.txt, b.txt"),
        (MNLI | {"mismatched_file": "a.txt"}, "files: glue scores one file besides a.txt and a.txt, found a.txt, b.txt"),
        (MNLI | {"files": TWO}, "files: glue scores one file besides a.txt and b.txt, found a.txt, b.txt; list"),
        (MNLI | {"protocol": "squad", "glue": {}}, "mismatched_file: only task mnli of the protocol glue has a second file"),
    ],
)
def test_the_files_are_those_that_the_protocol_reads(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PublishedTest.model_validate(TEST | keys)


def test_the_file_that_is_scored_is_the_one_that_is_not_named() -> None:
    test = PublishedTest.model_validate(TEST | MNLI)
    assert test.inputs == {"file": "c.txt", "training_file": "a.txt", "mismatched_file": "b.txt"}
    assert test.tuning == test.glue
    assert PublishedTest.model_validate(TEST).tuning is None


def test_the_tasks_of_glue_are_those_that_can_be_read() -> None:
    assert get_args(Glue.model_fields["task"].annotation) == tuple(TASKS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"windows": "rolling", "stride": 32}, "stride: rolling windows have none"),
        ({"context": 32, "stride": 33}, "stride .33. exceeds context .32."),
    ],
)
def test_windows_that_leave_tokens_out_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TextPerplexity.model_validate(options)
