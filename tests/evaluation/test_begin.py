"""Tokens before a text that a causal model scores: tokenizers of Llama's form, with and without bos, agree with lm_eval."""

import json
import math
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import transformers as hf
from llama_form import BOS, EOS, POSITIONS, llama_folder

from harness_tasks import harness_python, passages, small_tokenizer, wikitext
from relm.artifact import read_json
from relm.evaluation.beginning import added_tokens, choose_beginning, prefix_token
from relm.evaluation.detokenisers import DETOKENISERS
from relm.evaluation.execution import Execution
from relm.evaluation.generation.samples import write_samples
from relm.evaluation.harness.harness_tokenizer import choose_tokenizer
from relm.evaluation.harness.tasks import tokenizer_folder
from relm.evaluation.lambada import evaluate_lambada, score_passages, tokenise_passages
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score
from relm.evaluation.text_perplexity import evaluate_text, prepare_text, split_pages
from relm.evaluation.windows import cut_documents
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.evaluation.evaluations import Samples
from relm.recipes.evaluation.protocol_options import Begin, Lambada, TextPerplexity
from relm.recipes.evaluation.published_tests import load_test

ONE_THREAD = Execution(threads=1)
SAME = 1e-4
COMPARED = [(True, "tokenizer"), (True, "none"), (False, "tokenizer")]
TEXTS = passages()[:24]
WIKI = "\n".join(split_pages(wikitext())[:3])
TEXT = "the cat sat on the mat and looked at the moon, for it was late and the cat was not tired at all, nor was anyone"
LIKELY = ["the", "of", "and", "banana"]
ROLLING = {"detokeniser": "gpt2_wikitext", "documents": "level_1_headings", "windows": "rolling", "first_token": "scored"}

SHIPPED = Path(__file__).parents[2] / "recipes" / "evaluations"
Found = dict[tuple[bool, Begin], dict[str, Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("llama")
    return {adds_bos: llama_folder(folder / str(adds_bos), adds_bos) for adds_bos in (True, False)}


@pytest.fixture(scope="module")
def found(folders: dict[bool, Path], tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return lm_eval's likelihoods for each folder, by default and without special tokens, from one process."""
    python, made = harness_python(), tmp_path_factory.mktemp("harness")
    models = [[str(folders[adds]), {} if begin == "tokenizer" else {"add_bos_token": False}] for adds, begin in COMPARED]
    pairs = [[text.rpartition(" ")[0], " " + text.rpartition(" ")[2]] for text in TEXTS]
    texts = [DETOKENISERS["gpt2_wikitext"](page) for page in split_pages(WIKI)]
    (made / "request.json").write_text(json.dumps({"models": models, "pairs": pairs, "texts": texts}))
    script = Path(__file__).with_name("harness_likelihoods.py")
    subprocess.run([python, "-I", "-B", script, made / "request.json", made / "answer.json"], check=True)
    return dict(zip(COMPARED, read_json(made / "answer.json"), strict=True))


def begun(folder: Path, begin: Begin, text: str) -> list[int]:
    """Return the ids of a text by transformers, with the tokens that the tokenizer adds or without."""
    return list(hf.AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=begin == "tokenizer"))


@cache
def model_of(folder: Path) -> Any:
    return hf.AutoModelForCausalLM.from_pretrained(folder).eval()


def losses(folder: Path, ids: list[int]) -> torch.Tensor:
    """Return the nats of all ids but the first, (ids - 1,)."""
    with torch.no_grad():
        logits = model_of(folder)(torch.tensor([ids[:-1]])).logits[0].double()
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")


def perplexity_of(folder: Path, text: str, made: Path, **options: Any) -> dict[str, Any]:
    """Return the result of `evaluate_text`."""
    (made / "a.txt").write_text(text, encoding="utf-8", newline="")
    given = {"file": made / "a.txt", "options": TextPerplexity(**options), "output": made / "e.json", "execution": ONE_THREAD}
    evaluate_text(folder, folder / "tokenizer.json", **given)
    return dict(read_json(made / "e.json"))


@pytest.mark.parametrize(("adds_bos", "begin"), COMPARED)
def test_last_words_are_lm_eval_s_passage_by_passage(
    folders: dict[bool, Path], found: Found, adds_bos: bool, begin: Begin, tmp_path: Path
) -> None:
    folder, theirs = folders[adds_bos], found[adds_bos, begin]["pairs"]
    loaded = load_tokenizer(folder / "tokenizer.json")
    prepared = tokenise_passages(TEXTS, loaded, tmp_path)
    model = load_causal(folder, loaded.vocabulary_size, ONE_THREAD)
    scores = score_passages(model, prepared, 1000, choose_beginning(begin, loaded))
    assert (-scores.harness_nats).tolist() == pytest.approx([nats for nats, _ in theirs], abs=SAME)
    assert scores.harness.tolist() == [correct for _, correct in theirs]
    assert 0 < scores.truncated.sum() < len(TEXTS)
    (tmp_path / "f.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    given = {"options": Lambada(begin=begin), "output": tmp_path / "e.json", "execution": ONE_THREAD}
    evaluate_lambada(folder, folder / "tokenizer.json", tmp_path / "f.jsonl", **given)
    figure = math.log(read_json(tmp_path / "e.json")["figures"]["lambada_openai_perplexity"])
    assert figure == pytest.approx(-np.mean([nats for nats, _ in theirs]), abs=SAME)


@pytest.mark.parametrize(("adds_bos", "begin"), COMPARED)
def test_pages_are_lm_eval_s_one_by_one(
    folders: dict[bool, Path], found: Found, adds_bos: bool, begin: Begin, tmp_path: Path
) -> None:
    folder, theirs = folders[adds_bos], found[adds_bos, begin]["texts"]
    loaded, options = load_tokenizer(folder / "tokenizer.json"), TextPerplexity(**ROLLING, begin=begin)
    text = prepare_text(WIKI, loaded, options, None)
    windows = cut_documents("rolling", text.sizes, POSITIONS, POSITIONS)
    sequences = ScoredSequences(text.array, windows.starts, windows.ends, windows.scored)
    first = np.searchsorted(windows.starts, np.cumsum(text.sizes) - text.sizes)
    model = load_causal(folder, loaded.vocabulary_size, ONE_THREAD)
    sums = np.add.reduceat(score(model, sequences, 1000).nats, sequences.offsets[first])
    assert (-sums).tolist() == pytest.approx(theirs, rel=SAME / 10)


@pytest.mark.parametrize(("adds_bos", "begin"), COMPARED)
def test_the_shipped_test_of_wikitext_begins_as_lm_eval_does(
    folders: dict[bool, Path], found: Found, adds_bos: bool, begin: Begin, tmp_path: Path
) -> None:
    shipped = load_test(SHIPPED / "wikitext_lm_eval.yaml").perplexity.model_dump(exclude_unset=True)
    result = perplexity_of(folders[adds_bos], WIKI, tmp_path, **shipped, **({} if begin == "tokenizer" else {"begin": begin}))
    figures = result["figures"]
    theirs = -sum(found[adds_bos, begin]["texts"])
    assert figures["bits_per_byte"] * figures["bytes"] * math.log(2) == pytest.approx(theirs, rel=SAME / 10)
    put = 2 if adds_bos and begin == "tokenizer" else 1  # lm_eval scores the second, for it is the first token of a page
    assert [token["token"] for token in result["protocol"]["begin_tokens"]] == ["<s>"] * put
    assert figures["tokens_scored"] == figures["tokens"] + (put - 1) * figures["documents"]


@pytest.mark.parametrize("begin", get_args(Begin))
@pytest.mark.parametrize("stride", [5, POSITIONS])
def test_megatron_s_windows_begin_as_the_option_decides(
    folders: dict[bool, Path], begin: Begin, stride: int, tmp_path: Path
) -> None:
    ids = begun(folders[True], begin, TEXT)
    assert len(ids) > 2 * POSITIONS
    nats = 0.0
    for start in range(0, len(ids) - 1, stride):
        window = ids[start : start + POSITIONS + 1]
        new = window[1:] if start == 0 else window[POSITIONS + 1 - stride :]
        nats += float(losses(folders[True], window)[len(window) - 1 - len(new) :].sum()) if new else 0.0
    result = perplexity_of(folders[True], TEXT, tmp_path, begin=begin, stride=stride)
    found = result["figures"]
    assert found["tokens_scored"] == len(ids) - 1 == found["tokens"] - (begin == "none")
    assert found["nats_per_token"] * found["tokens_scored"] == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize("begin", get_args(Begin))
def test_all_three_protocols_of_lambada_see_the_tokens_before_a_passage(begin: Begin, tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "model", adds_bos=True, likely=" ".join(LIKELY))
    loaded = load_tokenizer(folder / "tokenizer.json")
    draws = np.random.default_rng(0)
    texts = [" ".join(draws.choice(LIKELY, draws.integers(2, POSITIONS))) for _ in range(80)]
    model = load_causal(folder, loaded.vocabulary_size, ONE_THREAD)
    scores = score_passages(model, tokenise_passages(texts, loaded, tmp_path), 1000, choose_beginning(begin, loaded))
    encode, reference = loaded.tokenizer.encode, model_of(folder)

    def right(text: str) -> list[bool]:
        """Return whether each token of the last word is the likeliest."""
        context, _, word = text.rpartition(" ")
        before, target = encode(context, add_special_tokens=False).ids, encode(f" {word}", add_special_tokens=False).ids
        ids = [*[BOS] * (begin != "none"), *before, *target][-(POSITIONS + 1) :]
        with torch.no_grad():
            likeliest = reference(torch.tensor([ids[:-1]])).logits[0].argmax(-1).tolist()
        return [a == b for a, b in zip(likeliest[-len(target) :], target, strict=True)]

    found = [right(text) for text in texts]
    assert scores.strict.tolist() == scores.harness.tolist() == [all(each) for each in found]
    assert scores.last_token.tolist() == [each[-1] for each in found]
    assert 0 < scores.strict.sum() < scores.last_token.sum() < len(texts)
    assert 0 < scores.truncated.sum() < len(texts)


def test_tokenizers_without_bos_begin_as_they_did(tmp_path: Path, evaluated) -> None:
    loaded = load_tokenizer(small_tokenizer(tmp_path))
    assert added_tokens(loaded) == ()
    assert choose_beginning("tokenizer", loaded).ids == ()
    assert choose_beginning("tokenizer", loaded, scores_first_token=True).ids == (0,)  # the end of text


def test_the_token_that_begins_a_text_is_the_one_that_the_settings_name(tmp_path: Path) -> None:
    for bos, expected in (("<s>", BOS), (None, EOS), ("</s>", EOS)):
        folder = llama_folder(tmp_path / str(bos).strip("</>"), adds_bos=False, bos_token=bos)
        loaded = load_tokenizer(folder / "tokenizer.json")
        assert prefix_token(loaded) == expected
    (folder / "tokenizer_config.json").unlink()
    assert prefix_token(load_tokenizer(folder / "tokenizer.json")) == BOS  # by its name
    settings = {"bos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert prefix_token(load_tokenizer(folder / "tokenizer.json")) == EOS


@pytest.mark.parametrize(
    ("begin", "first_token", "tokens", "sentence"),
    [
        ("none", "given", [], r"The first token is not scored;"),
        ("none", "scored", [BOS], r"The first token is scored, after <s>;"),
        ("tokenizer", "given", [BOS], r"Each document begins with <s>, which is not scored;"),
        ("tokenizer", "scored", [BOS, BOS], r"The first token is scored, after <s>; it is <s>, which the tokenizer adds;"),
    ],
)
def test_the_result_records_the_tokens_before_the_text(
    folders: dict[bool, Path], begin: Begin, first_token: str, tokens: list[int], sentence: str, tmp_path: Path
) -> None:
    protocol = perplexity_of(folders[True], "some words", tmp_path, begin=begin, first_token=first_token)["protocol"]
    assert protocol["begin"] == begin
    assert protocol["begin_tokens"] == [{"id": number, "token": "<s>"} for number in tokens]
    assert re.search(sentence, protocol["in_words"])


def test_the_harness_records_the_tokens_before_a_text(folders: dict[bool, Path], tmp_path: Path) -> None:
    bos = {"id": BOS, "token": "<s>"}
    for adds_bos, folder in folders.items():
        recorded = {"begin": "tokenizer", "begin_tokens": [bos] * adds_bos, "prefix_token": bos}
        assert choose_tokenizer(folder, tmp_path, folder)[1] == recorded


def test_samples_begin_with_the_tokens_that_the_tokenizer_adds_or_else_with_the_one_that_its_settings_name(
    folders: dict[bool, Path], tmp_path: Path
) -> None:
    without_bos = llama_folder(tmp_path / "without", adds_bos=False, bos_token=None)
    begins = []
    for folder in (folders[True], folders[False], without_bos):
        write_samples(folder, folder / "tokenizer.json", Samples(prompt=["the"]), ONE_THREAD, output=tmp_path / "s.json")
        begins.append(read_json(tmp_path / "s.json")["protocol"]["begins_with"])
    assert begins == ["<s>", "<s>", "an end of text"]


def test_the_harness_is_given_the_same_bos(folders: dict[bool, Path], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folders[True] / "tokenizer.json").read_bytes())
    folder = tokenizer_folder(tmp_path / "model", tmp_path / "tokenizer.json", {}, tmp_path / "made")
    assert read_json(folder / "tokenizer_config.json")["bos_token"] == "<s>"
