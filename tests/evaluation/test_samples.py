import json

import pytest
import torch

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.samples import PROMPTS, write_samples
from relm.evaluation.sampling import GREEDY, Sampling, random_stream
from relm.examples.tokenizers import load_tokenizer
from relm.models.gpt2 import Gpt2

ONE_THREAD = Execution(threads=1)


def uncached(model: Gpt2, ids: list[int], length: int, stream: torch.Generator) -> list[int]:
    """Sample with the defaults and without a cache: each token from the whole window, by a full sort."""
    new: list[int] = []
    with torch.inference_mode():
        for _ in range(length):
            window = torch.tensor([[*ids, *new][-model.config.positions :]])
            ordered, tokens = (model.logits(window)[0, -1] / 0.8).sort(descending=True, stable=True)
            ordered[50:] = -torch.inf
            shares = ordered.softmax(-1)
            ordered[1:][(shares.cumsum(-1) - shares)[1:] >= 0.95] = -torch.inf
            kept = torch.empty_like(ordered).scatter_(0, tokens, ordered)
            token = int(torch.multinomial(kept.softmax(-1), 1, generator=stream))
            if token == 0:
                break
            new.append(token)
    return new


def test_texts_are_those_that_a_model_without_a_cache_writes(tmp_path, evaluated) -> None:
    """Compare within the model's 16 positions and far beyond."""
    write_samples(evaluated.model, evaluated.tokenizer, tmp_path / "samples.json", seed=7, length=30, execution=ONE_THREAD)
    model, tokenizer = Gpt2.from_folder(evaluated.model).eval(), load_tokenizer(evaluated.tokenizer).tokenizer
    expected = []
    for position, prompt in enumerate(PROMPTS):
        new = uncached(model, [0, *tokenizer.encode(prompt).ids], 30, random_stream(7, position))
        expected.append(prompt + tokenizer.decode(new, skip_special_tokens=False))
    assert [sample["text"] for sample in read_json(tmp_path / "samples.json")["samples"]] == expected
    assert len(set(map(len, expected))) > 1


def test_the_random_stream_of_a_text_is_the_one_it_always_had() -> None:
    assert torch.rand(2, generator=random_stream(7, 3)).tolist() == pytest.approx([0.6781391501, 0.2575281858])


def test_samples_are_written_with_all_that_decided_them(tmp_path, evaluated) -> None:
    output = tmp_path / "samples.json"
    summary = write_samples(evaluated.model, evaluated.tokenizer, output, ["The ", ""], seed=4, length=7, execution=ONE_THREAD)
    result = read_json(output)
    assert summary.startswith("wrote 2 texts of ")
    assert list(result) == ["task", "protocol", "figures", "model_sha256", "samples"]
    assert result["task"] == "samples"
    assert result["figures"] == {}
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


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path, evaluated) -> None:
    files = []
    for number, seed in enumerate((1, 1, 2)):
        files.append(tmp_path / f"{number}.json")
        write_samples(evaluated.model, evaluated.tokenizer, files[-1], seed=seed, length=12, execution=ONE_THREAD)
    texts = [[sample["text"] for sample in read_json(file)["samples"]] for file in files]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert texts[0] != texts[2]
    assert [sample["prompt"] for sample in read_json(files[0])["samples"]] == list(PROMPTS)
    assert texts[0][0] != texts[0][1]  # two empty prompts, each with a random stream of its own


def test_another_prompt_changes_no_other_text(tmp_path, evaluated) -> None:
    for name, prompts in (("a", ["x", "The "]), ("b", ["another", "The "])):
        write_samples(evaluated.model, evaluated.tokenizer, tmp_path / name, prompts, length=8, execution=ONE_THREAD)
    assert read_json(tmp_path / "a")["samples"][1] == read_json(tmp_path / "b")["samples"][1]


def test_without_an_end_of_text_a_text_begins_after_a_line_end(tmp_path, evaluated) -> None:
    without = tmp_path / "tokenizer.json"
    tokenizer = json.loads(evaluated.tokenizer.read_text())
    without.write_text(json.dumps({**tokenizer, "added_tokens": []}))
    results = []
    for path in (without, evaluated.tokenizer):
        write_samples(evaluated.model, path, tmp_path / "samples.json", ["", "The "], length=8, sampling=GREEDY)
        results.append(read_json(tmp_path / "samples.json"))
    ours, others = results
    assert (ours["protocol"]["begins_with"], others["protocol"]["begins_with"]) == ("a line end", "an end of text")
    assert "each text after a line end, up to 8 tokens: each token is the likeliest." in ours["protocol"]["in_words"]
    assert len(ours["samples"][0]["text"]) > 0
    assert [sample["text"] for sample in ours["samples"]] != [sample["text"] for sample in others["samples"]]


def test_a_text_may_be_drawn_otherwise_and_the_task_named_otherwise(tmp_path, evaluated) -> None:
    sampling = Sampling(uniform_top_k=4)
    write_samples(
        evaluated.model, evaluated.tokenizer, tmp_path / "a.json", ["x"], length=3, sampling=sampling, task="uniform_samples"
    )
    result = read_json(tmp_path / "a.json")
    assert (result["task"], result["protocol"]["uniform_top_k"]) == ("uniform_samples", 4)
    assert "each token is any of the 4 likeliest, all alike." in result["protocol"]["in_words"]


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path, evaluated) -> None:
    larger = tmp_path / "tokenizer.json"
    content = evaluated.tokenizer.read_text().replace('"added_tokens": [', '"added_tokens": [' + ADDED + ",")
    larger.write_text(content)
    with pytest.raises(RelmError, match="the model has 257 tokens, the tokenizer 258"):
        write_samples(evaluated.model, larger, tmp_path / "samples.json")


ADDED = (
    '{"id": 257, "content": "<|more|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, '
    '"special": true}'
)
