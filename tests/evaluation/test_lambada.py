import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from published_texts import gpt2_tokenizer, unpacked
from tokenizer_forms import byte_level, legacy_sentencepiece
from tokenizers import Tokenizer, pre_tokenizers

from harness_tasks import passages as prose
from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation.evaluated_text import encode_rows
from relm.evaluation.execution import Execution
from relm.evaluation.lambada import evaluate_lambada, read_passages, score_passages, tokenise_passages
from relm.evaluation.models import load_causal
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer, train_tokenizer
from relm.recipes.evaluation.protocol_options import Lambada

POSITIONS = 48
LETTERS = "ab"
ONE_THREAD = Execution(threads=1, batch_tokens=200)
TEXTS = [
    "a cat sat on the mat",
    "it was some kind of\n\nPower",  # other tokens when strict, where the line ends are gone
    "“Next.”\n“No,” said Al, “I meant\n“next",
    "one two",
    "no no no",  # the word is looked for from the end
    "ends in space ",  # lm_eval asks for what follows the last space: nothing, which still is a space
    "two  spaces",
    "a passage of more bytes than the model has positions, so that its beginning goes",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, encode) -> Path:
    """Return the folder of a random model in which only a few letters are likely."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=257,
        n_positions=POSITIONS,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    unlikely = [number for number in range(257) if number not in encode(f" \n{LETTERS}")]
    model.transformer.wte.weight.data[unlikely] *= 0.01
    path = tmp_path_factory.mktemp("lambada") / "model"
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(folder: Path):
    return pytest.importorskip("transformers").GPT2LMHeadModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def encode(evaluated):
    tokenizer = load_tokenizer(evaluated.tokenizer).tokenizer
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def written(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def predict(reference, context: list[int], target: list[int]) -> tuple[bool, float]:
    """Return whether a target is the model's likeliest continuation of a context, and -ln P of it."""
    ids = [*context, *target][-(POSITIONS + 1) :]
    with torch.no_grad():
        logits = reference(torch.tensor([ids[:-1]])).logits[0, -len(target) :].double()
    nats = torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum")
    return logits.argmax(-1).tolist() == target, float(nats)


def as_the_original_does(reference, encode, text: str, strict: bool) -> bool:
    if not strict:
        ids = encode(text)
        return predict(reference, ids[:-1], ids[-1:])[0]
    beginning, word = divided(text)
    return predict(reference, encode(beginning), encode(f" {word}"))[0]


def as_lm_eval_does(reference, encode, text: str) -> tuple[bool, float]:
    context, target = " ".join(text.split(" ")[:-1]), " " + text.split(" ")[-1]
    kept = context.rstrip()
    target = context[len(kept) :] + target
    whole = encode(kept + target)
    return predict(reference, encode(kept), whole[len(encode(kept)) :])


def divided(text: str) -> tuple[str, str]:
    """Return the stripped beginning and the last word, divided as in the original of strict."""
    word = text.split()[-1]
    return text[: text.rfind(word)].strip(), word


def sentences() -> list[str]:
    """Return the sentences of the sample with two words, one space before the last."""
    return [line.strip() for line in prose() if line.strip() == " ".join(line.split()) and " " in line.strip()]


def rows(arrays) -> list[list[int]]:
    return [row.tolist() for row in arrays]


def likely_texts(count: int) -> list[str]:
    """Return passages of likely letters, so that the model is right now and then."""
    generator = np.random.default_rng(0)
    letters = [generator.choice(list(LETTERS), 5) for _ in range(count)]
    gaps = generator.choice([" ", " ", " \n", "\n"], count)
    return [f"{a}{b} {c}{gap}{d}{e}" for (a, b, c, d, e), gap in zip(letters, gaps, strict=True)]


def test_each_protocol_has_the_figures_of_its_original(tmp_path: Path, evaluated, folder, reference, encode) -> None:
    texts = TEXTS + likely_texts(60)
    file = written(tmp_path / "lambada.jsonl", texts)
    tokenizer = load_tokenizer(evaluated.tokenizer)
    passages = tokenise_passages(texts, tokenizer, file)
    scores = score_passages(load_causal(folder, 257, ONE_THREAD), passages, 200)
    assert scores.last_token.tolist() == [as_the_original_does(reference, encode, text, strict=False) for text in texts]
    assert scores.strict.tolist() == [as_the_original_does(reference, encode, text, strict=True) for text in texts]
    harness = [as_lm_eval_does(reference, encode, text) for text in texts]
    assert scores.harness.tolist() == [right for right, _ in harness]
    assert scores.harness_nats == pytest.approx([nats for _, nats in harness], rel=1e-5)
    assert scores.truncated.tolist() == [len(encode(text)) > POSITIONS + 1 for text in texts]
    # It would be easy to agree on nothing being right, or on all.
    right = scores.last_token.sum(), scores.strict.sum(), scores.harness.sum()
    assert 0 < min(right) < max(right) < len(texts)
    assert (scores.strict & ~scores.harness).any() or (scores.harness & ~scores.strict).any()


def test_the_result_has_three_accuracies_and_counts(tmp_path: Path, evaluated, folder, reference, encode) -> None:
    file = written(tmp_path / "lambada.jsonl", TEXTS)
    output = tmp_path / "lambada.json"
    summary = evaluate_lambada(folder, evaluated.tokenizer, file, Lambada(), sha256_of(file), None, ONE_THREAD, output=output)
    result = read_json(output)
    figures, protocol = result["figures"], result["protocol"]
    harness = [as_lm_eval_does(reference, encode, text) for text in TEXTS]
    assert figures["lambada_openai_perplexity"] == pytest.approx(math.exp(np.mean([nats for _, nats in harness])), rel=1e-5)
    assert figures["lambada_openai_accuracy"] == np.mean([right for right, _ in harness])
    assert figures["strict_accuracy"] == np.mean([as_the_original_does(reference, encode, text, strict=True) for text in TEXTS])
    assert {key: figures[key] for key in ("examples", "multi_token_words", "retokenised", "truncated")} == {
        "examples": 8,
        "multi_token_words": 8,  # each byte is a token, and a space comes before
        "retokenised": 4,
        "truncated": 1,
    }
    assert figures["tokens"] == sum(len(text.encode()) for text in TEXTS)
    assert figures["longest"] == len(TEXTS[-1])
    assert result["task"] == "lambada"
    assert result["model_sha256"] == sha256_of(folder / "model.safetensors")
    assert protocol["tokenizer_sha256"] == sha256_of(evaluated.tokenizer)
    assert protocol["file_sha256"] == sha256_of(file)
    assert summary.startswith("scored 8 last words: accuracy ")


def test_a_limit_leaves_the_first_passages_and_text_key_names_the_passage(tmp_path: Path, evaluated, folder) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text('{"passage": "one two"}\n{"passage": "three four"}\nno JSON\n')
    options = Lambada(text_key="passage")
    evaluate_lambada(folder, evaluated.tokenizer, file, options, None, 2, ONE_THREAD, output=tmp_path / "e.json")
    result = read_json(tmp_path / "e.json")
    assert (result["figures"]["examples"], result["protocol"]["limit"], result["protocol"]["text_key"]) == (2, 2, "passage")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no JSON", r"f\.jsonl, line 2: not JSON \(Expecting value.*expected an object such as"),
        ("", r"f\.jsonl, line 2: not JSON"),
        ('{"other": "one two"}', r"f\.jsonl, line 2: text is missing; lambada.text_key of the test's file names the passage's"),
        ('{"text": 3}', r"f\.jsonl, line 2: text: expected text, found 3"),
        ('["one two"]', r"f\.jsonl, line 2: expected an object, found"),
        ('{"text": "single"}', r"f\.jsonl, line 2: expected a passage of two words"),
        ('{"text": " single "}', r"f\.jsonl, line 2: expected a passage of two words"),
        ('{"text": "two\\nlines"}', r"f\.jsonl, line 2: expected a passage of two words or more with a space"),
        ('{"text": ""}', r"f\.jsonl, line 2: expected a passage of two words"),
    ],
)
def test_a_line_without_a_passage_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text(f'{{"text": "one two"}}\n{line}\n')
    with pytest.raises(RelmError, match=message):
        read_passages(file, None, "text", None)


def test_a_last_word_that_leaves_no_room_for_context_is_named(tmp_path: Path, evaluated, folder) -> None:
    texts = ["one two", "one " + "o" * POSITIONS]
    passages = tokenise_passages(texts, load_tokenizer(evaluated.tokenizer), tmp_path / "f.jsonl")
    with pytest.raises(RelmError, match=r"f\.jsonl, line 2: the last word has 49 tokens, but .* has 48 positions"):
        score_passages(load_causal(folder, 257, ONE_THREAD), passages, 200)
    fitting = tokenise_passages(["one " + "o" * (POSITIONS - 1)], load_tokenizer(evaluated.tokenizer), tmp_path / "f.jsonl")
    assert score_passages(load_causal(folder, 257, ONE_THREAD), fitting, 200).truncated.tolist() == [True]


def test_openais_file_has_the_known_counts(tmp_path: Path, shared_data: Path) -> None:
    file = unpacked(shared_data, "lambada/lambada_test.jsonl", tmp_path)
    texts, sha256 = read_passages(file, None, "text", None)
    assert sha256 == "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226"
    passages = tokenise_passages(texts, load_tokenizer(gpt2_tokenizer(shared_data, tmp_path)), file)
    assert len(passages) == 5153
    assert (passages.strict_targets > 1).sum() == 1140
    assert max(map(len, passages.whole)) == 224
    assert passages.retokenised.sum() == 7
    # Stripping a beginning costs the seven their line ends: 430,217 tokens when strict.
    assert (sum(map(len, passages.whole)), sum(map(len, passages.strict))) == (430_230, 430_217)
    assert (passages.harness_targets > 1).sum() == 1143
    assert rows(passages.strict) == as_two_texts(load_tokenizer(tmp_path / "tokenizer.json"), texts)


def as_two_texts(loaded: LoadedTokenizer, texts: list[str]) -> list[list[int]]:
    """Return the tokens of strict as in its original."""
    parts = [divided(text) for text in texts]
    beginnings = rows(encode_rows(loaded, [beginning for beginning, _ in parts]))
    return [
        one + other for one, other in zip(beginnings, rows(encode_rows(loaded, [f" {word}" for _, word in parts])), strict=True)
    ]


def test_a_tokenizer_that_begins_each_text_with_a_prefix_gives_a_last_word_the_tokens_of_its_passage(tmp_path: Path) -> None:
    original = legacy_sentencepiece(tmp_path / "tokenizer.json")
    texts = [*sentences(), "ends in a space ", "the words of two\n\nlines"]
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert len(as_two_texts(loaded, ["on the street"])[0]) == len(original.encode("on the street")) + 1  # a prefix too many
    passages = tokenise_passages(texts, loaded, tmp_path / "f")
    parts = [divided(text) for text in texts]
    assert rows(passages.strict) == [original.encode(f"{beginning} {word}") for beginning, word in parts]
    for row, target, (beginning, word) in zip(rows(passages.strict), passages.strict_targets, parts, strict=True):
        assert row[:-target] == original.encode(beginning)
        assert "".join(original.id_to_piece(row[-target:])) == f"▁{word}"
    assert np.flatnonzero(passages.retokenised).tolist() == [len(texts) - 2, len(texts) - 1]  # by their white space alone


@pytest.mark.parametrize("form", ["wordpiece", "characters", "metaspace"])
def test_where_a_word_by_itself_has_the_tokens_of_its_passage_strict_is_the_original(tmp_path: Path, form: str) -> None:
    made = tmp_path / "tokenizer.json"
    if form == "metaspace":  # as the newer Llama's
        legacy_sentencepiece(made)
        tokenizer = Tokenizer.from_file(str(made))
        tokenizer.normalizer = None
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.save(str(made))
    else:
        documents = tmp_path / "documents.jsonl"
        documents.write_text(json.dumps({"id": "1", "title": "", "text": "\n".join(prose())}) + "\n")
        train_tokenizer(form, [documents], 400 if form == "wordpiece" else None, 10**6, made)
    loaded, texts = load_tokenizer(made), [*sentences(), "the words of two\n\nlines", "the  spaces"]
    passages = tokenise_passages(texts, loaded, tmp_path / "f")
    assert rows(passages.strict) == as_two_texts(loaded, texts)
    words = [f" {divided(text)[1]}" for text in texts]
    assert passages.strict_targets.tolist() == [*map(len, encode_rows(loaded, words))]


# As Llama-3's, in short: punctuation takes the line ends that follow it.
WITH_LINE_ENDS = r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"


def test_with_a_token_over_the_end_of_the_context_lambada_openai_scores_the_tokens_of_lm_eval(
    tmp_path: Path, folder, reference
) -> None:
    """Compare with lm_eval, which gives the context's own tokens, then scores those of the whole from that length on."""
    texts = ["a ab.\n ab", "ba ab.\n b", "ab ba", "b ab"]
    tokenizer = byte_level(tmp_path / "tokenizer.json", ["b.\n"] * 9, WITH_LINE_ENDS, 258)
    assert ".Ċ" in tokenizer.encode("b.\n").tokens
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    model, theirs = random_model(tmp_path / "model", loaded.vocabulary_size)
    scores = score_passages(model, tokenise_passages(texts, loaded, tmp_path / "f"), 200)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    assert scores.harness_nats == pytest.approx([as_lm_eval_does(theirs, encode, text)[1] for text in texts], rel=1e-5)


def random_model(folder: Path, vocabulary: int):
    """Return a GPT-2 as relm and as transformers read it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    sizes = {"n_positions": POSITIONS, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.4}
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, **sizes)
    ).eval()
    theirs.save_pretrained(folder)
    return load_causal(folder, vocabulary, ONE_THREAD), theirs


def test_a_tokenizer_whose_tokens_reach_into_most_last_words_is_refused(tmp_path: Path) -> None:
    byte_level(tmp_path / "tokenizer.json", ["it the cat", "at the mat", "of the hat"] * 9, None, 262)
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    texts = ["a dog", "so it the cat", "so of the hat"]
    with pytest.raises(RelmError) as refused:
        tokenise_passages(texts, loaded, tmp_path / "f.jsonl")
    assert "f.jsonl: 2 of 3 passages, line 2 first, have other tokens where " in str(refused.value)
    assert "the last word must follow one space, which no token crosses" in str(refused.value)


def test_passages_of_which_most_end_in_white_space_are_refused(tmp_path: Path, evaluated) -> None:
    loaded = load_tokenizer(evaluated.tokenizer)
    with pytest.raises(RelmError, match=r"3 of 3 passages, line 1 first, .*correct the white space"):
        tokenise_passages(["one two "] * 3, loaded, tmp_path / "f.jsonl")
    assert len(tokenise_passages(["one two ", "one two"], loaded, tmp_path / "f.jsonl")) == 2  # half of them may
