"""The files that the record of an evaluation names."""

from pathlib import Path

from relm.steps import list_steps
from relm.steps.parser import parser


def test_a_text_with_an_expected_sha256_is_recorded_once(tmp_path: Path):
    text, model = tmp_path / "wiki.txt", tmp_path / "model"
    model.mkdir()
    for file in (text, model / "config.json", model / "tokenizer.json"):
        file.write_text("{}")
    options = f"--file {text} --sha256 wiki.txt={'0' * 64} --model {model} --output {tmp_path / 'x.json'}"
    arguments = parser(list_steps()).parse_args(["perplexity", *options.split()])

    assert list(list_steps()["perplexity"].job(arguments).inputs).count(text) == 1
