import json
import math

import pytest
import torch

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation.generate import Sampling, generated, kept_logits, next_token
from relm.evaluation.samples import PROMPTS, write_samples
from relm.models.gpt2 import Gpt2

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))


def probabilities(**settings) -> list[float]:
    return kept_logits(LOGITS, Sampling(**{"temperature": 1, "top_k": None, "top_p": 1, **settings})).softmax(-1).tolist()


def test_without_limits_the_distribution_is_the_models() -> None:
    assert probabilities() == pytest.approx([0.1, 0.4, 0.2, 0.3])


def test_temperature_sharpens() -> None:
    assert probabilities(temperature=0.5) == pytest.approx([0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3])


def test_top_k_keeps_the_likeliest() -> None:
    assert probabilities(top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert probabilities(top_k=9) == pytest.approx([0.1, 0.4, 0.2, 0.3])


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    assert probabilities(top_p=0.6) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert probabilities(top_p=0.75) == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9])
    assert probabilities(top_p=0.0) == pytest.approx([0, 1, 0, 0])
    # Of the two that top-k keeps, the first alone has 4/7.
    assert probabilities(top_k=2, top_p=0.5) == pytest.approx([0, 1, 0, 0])


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=1, top_k=None, top_p=0.75)
    counts = torch.bincount(torch.tensor([next_token(LOGITS, sampling, generator) for _ in range(3000)]), minlength=4)
    assert counts[0] == 0
    for count, share in zip(counts[1:].tolist(), (4 / 9, 2 / 9, 3 / 9), strict=True):
        assert abs(count - 3000 * share) < 4 * math.sqrt(3000 * share * (1 - share))


def counting(tokens: torch.Tensor) -> torch.Tensor:
    """A model that is sure of last + 1."""
    return torch.nn.functional.one_hot((tokens + 1) % 10, 10) * 100.0


def test_greedy_takes_the_likeliest_and_stops_at_the_end_of_text() -> None:
    greedy = Sampling(temperature=0)
    assert generated(counting, [0, 3], 4, 8, 0, greedy, seed=1) == [4, 5, 6, 7]
    assert generated(counting, [0, 7], 50, 8, 0, greedy, seed=1) == [8, 9]


def test_the_model_sees_the_newest_tokens_when_all_do_not_fit() -> None:
    windows = []

    def remember(tokens: torch.Tensor) -> torch.Tensor:
        windows.append(tokens[0].tolist())
        return counting(tokens)

    generated(remember, [0, 1, 2], 3, 3, 99, Sampling(temperature=0), seed=1)
    assert windows == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_greedy_continues_as_transformers_does(evaluated) -> None:
    transformers = pytest.importorskip("transformers")
    prompt = [0, 50, 51]
    ours = generated(Gpt2.from_folder(evaluated.model).eval().logits, prompt, 12, 16, -1, Sampling(temperature=0), seed=0)
    model = transformers.GPT2LMHeadModel.from_pretrained(evaluated.model).eval()
    ids = torch.tensor([prompt])
    theirs = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    assert ours == theirs[0, 3:].tolist()


def test_samples_are_written_with_all_that_decided_them(tmp_path, evaluated) -> None:
    output = tmp_path / "samples.json"
    said = write_samples(evaluated.model, evaluated.tokenizer, output, ["The ", ""], seed=4, length=7, threads=1)
    result = read_json(output)
    assert said.startswith("wrote 2 texts of ")
    assert list(result) == ["task", "protocol", "samples", "figures", "model_sha256"]
    assert result["task"] == "samples"
    assert result["figures"] == {}
    assert result["model_sha256"] == sha256_of(evaluated.model / "model.safetensors")
    expected = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 4, "length": 7}
    assert expected.items() <= result["protocol"].items()
    assert [sample["prompt"] for sample in result["samples"]] == ["The ", ""]
    assert all(sample["text"].startswith(sample["prompt"]) for sample in result["samples"])
    assert any(sample["text"] != sample["prompt"] for sample in result["samples"])


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(tmp_path, evaluated) -> None:
    files = []
    for number, seed in enumerate((1, 1, 2)):
        files.append(tmp_path / f"{number}.json")
        write_samples(evaluated.model, evaluated.tokenizer, files[-1], seed=seed, length=12, threads=1)
    texts = [[sample["text"] for sample in read_json(file)["samples"]] for file in files]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert texts[0] != texts[2]
    assert [sample["prompt"] for sample in read_json(files[0])["samples"]] == list(PROMPTS)
    assert texts[0][0] != texts[0][1]  # two empty prompts, each with a random stream of its own


def test_another_prompt_changes_no_other_text(tmp_path, evaluated) -> None:
    for name, prompts in (("a", ["x", "The "]), ("b", ["another", "The "])):
        write_samples(evaluated.model, evaluated.tokenizer, tmp_path / name, prompts, length=8, threads=1)
    assert read_json(tmp_path / "a")["samples"][1] == read_json(tmp_path / "b")["samples"][1]


def test_without_an_end_of_text_a_text_begins_after_a_line_end(tmp_path, evaluated) -> None:
    without = tmp_path / "tokenizer.json"
    tokenizer = json.loads(evaluated.tokenizer.read_text())
    without.write_text(json.dumps({**tokenizer, "added_tokens": []}))
    write_samples(evaluated.model, without, tmp_path / "a", ["", "The "], length=8, threads=1)
    write_samples(evaluated.model, evaluated.tokenizer, tmp_path / "b", ["", "The "], length=8, threads=1)
    ours, others = (read_json(tmp_path / name) for name in "ab")
    assert (ours["protocol"].pop("begins_with"), others["protocol"].pop("begins_with")) == ("a line end", "<|endoftext|>")
    assert ours["protocol"] == others["protocol"]
    assert len(ours["samples"][0]["text"]) > 0
    assert [sample["text"] for sample in ours["samples"]] != [sample["text"] for sample in others["samples"]]


def test_a_text_without_an_end_goes_on_to_its_length() -> None:
    assert generated(counting, [0, 7], 5, 8, None, Sampling(temperature=0), seed=1) == [8, 9, 0, 1, 2]


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path, evaluated) -> None:
    larger = tmp_path / "tokenizer.json"
    content = evaluated.tokenizer.read_text().replace('"added_tokens": [', '"added_tokens": [' + ADDED + ",")
    larger.write_text(content)
    with pytest.raises(RelmError, match="the model knows 257 tokens, the tokenizer has 258"):
        write_samples(evaluated.model, larger, tmp_path / "samples.json")


ADDED = (
    '{"id": 257, "content": "<|more|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, '
    '"special": true}'
)
