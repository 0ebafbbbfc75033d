"""Options of published tests, which belong to the protocol that scores them."""

from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.protocol_options import TextPerplexity
from relm.recipes.published_tests import PublishedTest, load_test

FILE = {"a.txt": {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org/a.txt"}]}}
TEST = {"title": "A text", "licence": "CC0-1.0", "protocol": "perplexity", "files": FILE}


def test_options_of_another_protocol_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="perplexity: options of another protocol than lambada; leave them out"):
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
        ({"training_file": "a.txt"}, "training_file: perplexity fine-tunes no model; leave it out"),
        ({"files": FILE | {"b.txt": FILE["a.txt"]}}, "files: perplexity scores one file, found a.txt, b.txt"),
        ({"protocol": "squad"}, "training_file: squad fine-tunes a model; name the one of a.txt for that"),
        ({"protocol": "squad", "training_file": "b.txt"}, "training_file: b.txt is not one of files, which has a.txt"),
        ({"protocol": "squad", "training_file": "a.txt"}, "files: squad scores a second one beside a.txt; add it"),
    ],
)
def test_the_files_are_those_that_the_protocol_reads(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PublishedTest.model_validate(TEST | keys)


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
