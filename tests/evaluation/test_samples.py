import json
from pathlib import Path
from typing import Any

from relm.artifact import read_json, sha256_of
from relm.evaluation.execution import Execution
from relm.evaluation.generation.samples import write_samples
from relm.recipes.evaluation.evaluations import Samples

ONE_THREAD = Execution(threads=1)


def written(evaluated: Any, output: Path, length: int = 8, tokenizer: Path | None = None, **options: Any) -> dict[str, Any]:
    write_samples(evaluated.model, tokenizer or evaluated.tokenizer, Samples(**options), ONE_THREAD, length, output=output)
    return read_json(output)


def test_published_samples_are_written_again_byte_for_byte(tmp_path, checkout) -> None:
    folder = checkout / "results" / "shakespeare_char"
    output = tmp_path / "samples.json"
    write_samples(folder, folder / "tokenizer.json", Samples(), ONE_THREAD, output=output)
    assert output.read_bytes() == (folder / "eval" / "samples.json").read_bytes()


def test_samples_are_written_with_all_that_decided_them(tmp_path, evaluated) -> None:
    result = written(evaluated, tmp_path / "own.json", 7, prompt=["The ", ""], seed=4)
    assert list(result) == ["task", "protocol", "figures", "model_sha256", "samples"]
    assert (result["task"], result["figures"]) == ("own", {})
    assert result["model_sha256"] == sha256_of(evaluated.model / "model.safetensors")
    assert result["protocol"] == {
        "in_words": "What the model wrote at the first attempt, each text after an end of text, up to 7 tokens: each token is "
        "drawn at temperature 0.8, among the 50 likeliest, within the nucleus of 0.95. Nothing was selected.",
        "tokenizer_sha256": sha256_of(evaluated.tokenizer),
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "repetition_penalty": 1.0,
        "uniform_top_k": None,
        "seed": 4,
        "length": 7,
        "begins_with": "an end of text",
        "selected": "none",
    }
    assert [sample["prompt"] for sample in result["samples"]] == ["The ", ""]
    assert all(sample["text"].startswith(sample["prompt"]) for sample in result["samples"])
    assert any(sample["text"] != sample["prompt"] for sample in result["samples"])


def test_without_an_end_of_text_a_text_begins_after_a_line_end(tmp_path, evaluated) -> None:
    tokenizer = json.loads(evaluated.tokenizer.read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, "added_tokens": []}))
    found = written(evaluated, tmp_path / "a.json", tokenizer=tmp_path / "tokenizer.json", prompt=[""])
    assert found["protocol"]["begins_with"] == "a line end"
    assert "each text after a line end, up to 8 tokens: " in found["protocol"]["in_words"]
    assert len(found["samples"][0]["text"]) > 0
