import hashlib
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from published_texts import gpt2_tokenizer, unpacked

from relm.artifact import read_json, sha256_of
from relm.errors import RelmError
from relm.evaluation.detokenisers import wikitext
from relm.evaluation.execution import Execution
from relm.evaluation.text_perplexity import (
    count_parts_between_single_spaces,
    count_parts_between_whitespace,
    evaluate_text,
    figures,
    join_rows,
    prepare_text,
    split_pages,
)
from relm.evaluation.windows import cut_documents, strided
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.evaluation.protocol_options import TextPerplexity

ONE_THREAD = Execution(threads=1)
CONTEXT = 16
WIKI = (
    " \n = First = \n \n The cat , a <unk> , sat @-@ on ( the ) mat . \n = = Rest = = \n \n It is 1 @,@ 000 . \n"
    ' \n = Other one = \n \n Ünder " bed " . \n \n'
)


def as_ids(text: str) -> list[int]:
    """Return the ids of the tests' byte tokenizer: 1 to 256 in the order of its alphabet."""
    from tokenizers import pre_tokenizers

    order = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1)}
    ((word, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [order[character] for character in word]


@pytest.fixture(scope="module")
def reference(evaluated):
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel.from_pretrained(evaluated.model).eval()


@pytest.fixture
def scored(tmp_path: Path, evaluated):
    """Return the result of `evaluate_text` for a text."""

    def evaluation(text: str | bytes, limit: int | None = None, execution: Execution = ONE_THREAD, **options):
        file, output = tmp_path / "a.txt", tmp_path / "eval.json"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        how = TextPerplexity(**options)
        summary = evaluate_text(evaluated.model, evaluated.tokenizer, file, how, None, limit, execution, output=output)
        return read_json(output) | {"summary": summary}

    return evaluation


def nats_of(reference, ids: list[int], first_scored: int) -> float:
    """Return the sum of -ln P of the tokens from `first_scored` on, given those before them."""
    with torch.no_grad():
        logits = reference(torch.tensor([ids[:-1]])).logits[0].double()
    return torch.nn.functional.cross_entropy(
        logits[first_scored - 1 :], torch.tensor(ids[first_scored:]), reduction="sum"
    ).item()


@pytest.mark.parametrize("stride", [1, 5, 16])
def test_overlapping_windows_have_the_losses_of_megatrons_padded_batches(reference, scored, stride: int) -> None:
    text = wikitext(WIKI)
    ids, nats = as_ids(text), 0.0
    for number in range(math.ceil((len(ids) - 1 - stride) / stride) + 1):
        window = ids[number * stride : number * stride + CONTEXT + 1]
        mask = [1.0] * (len(window) - 1) + [0.0] * (CONTEXT + 1 - len(window))
        padded = torch.tensor([window + [0] * (CONTEXT + 1 - len(window))])
        if stride != CONTEXT and number:
            mask[:-stride] = [0.0] * (CONTEXT - stride)
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(reference(padded[:, :-1]).logits[0], padded[0, 1:], reduction="none")
        nats += (losses * torch.tensor(mask)).sum().item()
    found = scored(WIKI, detokeniser="gpt2_wikitext", stride=stride, words="single_spaces")["figures"]
    mean, words = nats / (len(ids) - 1), len(WIKI.strip().split(" ")) - 1
    assert found["nats_per_token"] == pytest.approx(mean, rel=1e-5)
    assert found["perplexity_per_token"] == pytest.approx(math.exp(mean), rel=1e-5)
    assert found["token_ratio"] == (len(ids) - 1) / words
    assert math.log(found["perplexity_per_word"]) == pytest.approx(mean * (len(ids) - 1) / words, rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(WIKI.encode()), rel=1e-5)
    assert (found["tokens"], found["tokens_scored"]) == (len(ids), len(ids) - 1)
    assert (found["words"], found["bytes"]) == (words, len(WIKI.encode()))
    assert found["windows"] == number + 1


@pytest.mark.parametrize("stride", [1, 5, 11, 16])
@pytest.mark.parametrize("length", [10, 16, 17, 48, 71])
def test_strided_windows_have_the_figure_of_the_page_on_perplexity(reference, scored, stride: int, length: int) -> None:
    text = "".join(np.random.default_rng(length).choice(list("abc de\n"), length - 1)) + "f"
    ids = torch.tensor([as_ids(text)])
    nats, tokens, reached = 0.0, 0, 0
    for begin in range(0, length, stride):
        end = min(begin + CONTEXT, length)
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - reached)] = -100
        counted = int((labels != -100).sum()) - 1
        if end - begin > 1:  # a single token has no loss on the page either
            with torch.no_grad():
                nats += float(reference(ids[:, begin:end], labels=labels).loss) * counted
            tokens += counted
        reached = end
        if end == length:
            break
    found = scored(text, windows="strided", stride=stride)["figures"]
    assert found["nats_per_token"] == pytest.approx(nats / tokens, rel=1e-5)
    assert found["perplexity_per_token"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    lost = (length - 1) // CONTEXT if stride == CONTEXT else 0
    assert found["tokens_scored"] == length - 1 - lost


def test_pages_begin_at_headings_of_the_first_level() -> None:
    assert split_pages(WIKI) == [
        " = First = \n \n The cat , a <unk> , sat @-@ on ( the ) mat . \n = = Rest = = \n \n It is 1 @,@ 000 . \n ",
        ' = Other one = \n \n Ünder " bed " . \n \n',
    ]
    assert "\n".join([" ", *split_pages(WIKI)]) == WIKI
    # What stands before the first heading is a page unless it is blank; a heading needs no blank lines around it.
    assert split_pages("x\n = 1 rad / s = \ny") == ["x", " = 1 rad / s = \ny"]
    assert split_pages("no headings \n = = at = = \n") == ["no headings \n = = at = = \n"]
    assert split_pages(" = = = a = = = \n = = b = = \n = c = ") == [" = = = a = = = \n = = b = = ", " = c = "]


def test_rows_are_lines_with_their_ends_and_nothing_for_blank_ones() -> None:
    rows = ["", " = First = \n", "", " The cat . \n", " It sat . \n"]
    assert join_rows(" \n = First = \n \n The cat . \n It sat . \n") == "\n\n".join(rows)
    assert join_rows("no end") == "no end\n"


def test_words_are_counted_in_two_ways() -> None:
    text = " \n The cat \n sat . \n"
    assert count_parts_between_single_spaces(text) == 4  # The, cat, the line's end, sat, and the full stop: minus one
    assert count_parts_between_whitespace(text) == 6  # four, and an empty one at each end
    assert count_parts_between_whitespace("The cat") == 2


def test_figures_by_word_and_byte_stand_for_the_tokens_that_are_lost(evaluated) -> None:
    text = prepare_text("ab cd efgh", load_tokenizer(evaluated.tokenizer), TextPerplexity(), None)
    windows = strided(text.tokens, 5, 5)
    found = figures(2.0, text, windows)
    assert (found["tokens_scored"], found["tokens"]) == (8, 10)
    assert found["token_ratio"] == 9 / 3
    assert found["perplexity_per_word"] == pytest.approx(math.exp(2.0 * 9 / 3))
    assert found["bits_per_byte"] == pytest.approx(2.0 * 9 / 10 / math.log(2))
    assert "perplexity_per_word" not in figures(400.0, text, windows)


def test_each_document_begins_with_an_end_of_text_where_its_first_token_is_scored(evaluated) -> None:
    options = TextPerplexity(documents="level_1_headings", first_token="scored")
    text = prepare_text(" = a = \nb\n = c = ", load_tokenizer(evaluated.tokenizer), options, None)
    assert text.array.tolist() == [0, *as_ids(" = a = \nb"), 0, *as_ids(" = c = ")]
    assert (text.sizes.tolist(), text.tokens, text.targets) == ([10, 8], 16, 16)
    windows = cut_documents("rolling", text.sizes, 16, 16)
    assert windows.starts.tolist() == [0, 10]


def test_the_result_names_its_protocol(tmp_path, evaluated, scored) -> None:
    result = scored(WIKI, detokeniser="gpt2_wikitext", words="single_spaces", stride=4)
    protocol = result["protocol"]
    assert result["task"] == "eval"
    assert result["model_sha256"] == sha256_of(evaluated.model / "model.safetensors")
    assert protocol["tokenizer_sha256"] == sha256_of(evaluated.tokenizer)
    assert (protocol["file"], protocol["file_sha256"]) == ("a.txt", hashlib.sha256(WIKI.encode()).hexdigest())
    assert {key: protocol[key] for key in TextPerplexity.model_fields} == {
        "detokeniser": "gpt2_wikitext",
        "documents": "one",
        "windows": "overlapping",
        "context": 16,
        "stride": 4,
        "begin": "tokenizer",
        "first_token": "given",
        "words": "single_spaces",
    }
    assert protocol["begin_tokens"] == []
    assert protocol["in_words"] == (
        "The text, detokenised as Megatron-LM and lm_eval do, in one piece: windows of 16 tokens begin every 4; the first "
        "scores all its tokens, each later one its last 4. The first token is not scored; words are the parts between single "
        "spaces, minus one."
    )
    assert "limit" not in protocol
    assert result["summary"].startswith(f"scored {result['figures']['tokens_scored']} tokens of a.txt: ")


@pytest.mark.parametrize("windows", ["overlapping", "rolling", "strided"])
@pytest.mark.parametrize("documents", ["one", "joined_rows", "level_1_headings"])
def test_every_protocol_is_described(scored, windows, documents) -> None:
    result = scored(WIKI, windows=windows, documents=documents)
    assert re.fullmatch(r"The text as it is, .+: windows .+\. The first token .+; words .+\.", result["protocol"]["in_words"])
    assert ("documents" in result["figures"]) == (documents == "level_1_headings")
    assert result["protocol"]["stride"] == (None if windows == "rolling" else 16)


def test_a_limit_leaves_the_first_windows_or_documents(reference, scored) -> None:
    result = scored(WIKI, limit=2)
    ids = as_ids(WIKI)
    nats = nats_of(reference, ids[:17], 1) + nats_of(reference, ids[16:33], 1)
    assert result["protocol"]["limit"] == 2
    assert (result["figures"]["windows"], result["figures"]["tokens_scored"]) == (2, 32)
    assert result["figures"]["nats_per_token"] == pytest.approx(nats / 32, rel=1e-5)
    result = scored(WIKI, limit=1, documents="level_1_headings", windows="rolling")
    assert (result["figures"]["documents"], result["figures"]["bytes"]) == (1, len(split_pages(WIKI)[0].encode()))


def test_a_stride_beyond_the_models_positions_becomes_the_context(scored) -> None:
    protocol = scored(WIKI, stride=32)["protocol"]
    assert (protocol["context"], protocol["stride"]) == (16, 16)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"", {}, r"a\.txt: has no text \(0 bytes\)"),
        (b" \n\n", {}, r"a\.txt: has no text \(3 bytes\)"),
        (b"caf\xe9 au lait", {}, r"a\.txt: byte 3 is not UTF-8"),
        (b"x", {}, r"a\.txt: 1 tokens and 1 words leave nothing to score"),
        (b"single", {"words": "single_spaces"}, r"a\.txt: 6 tokens and 0 words"),
        (b"some text", {"context": 17}, r"has 16 positions; a context of 17 does not fit"),
    ],
)
def test_a_text_that_cannot_be_scored_is_an_error_by_name(scored, text, options, message) -> None:
    with pytest.raises(RelmError, match=message):
        scored(text, **options)


def test_a_single_token_is_scored_after_an_end_of_text(scored, reference) -> None:
    found = scored(b"x", first_token="scored")["figures"]
    assert found["nats_per_token"] == pytest.approx(nats_of(reference, [0, *as_ids("x")], 1), rel=1e-5)


def test_wikitext_2_raw_has_the_tokens_and_pages_that_others_count(shared_data: Path, tmp_path: Path) -> None:
    text = unpacked(shared_data, "wikitext-2-raw/wiki.test.raw", tmp_path).read_text()
    tokenizer = load_tokenizer(gpt2_tokenizer(shared_data, tmp_path))
    # Hugging Face's page warns that the tokenizer gives 287,644 tokens, more than the model has positions.
    assert prepare_text(text, tokenizer, TextPerplexity(documents="joined_rows"), None).tokens == 287_644
    # EleutherAI/wikitext_document_level has 62 rows in its test split.
    found = split_pages(text)
    assert len(found) == 62
    assert [page.split("\n")[0] for page in found].count(" = 1 rad / s and a nominal impedance k = ") == 1
    assert "\n".join([" ", *found]) == text


def test_another_file_and_no_file_are_errors_by_name(tmp_path: Path, evaluated) -> None:
    file = tmp_path / "wiki.test.tokens"
    evaluate = partial(
        evaluate_text,
        model_folder=evaluated.model,
        tokenizer=evaluated.tokenizer,
        file=file,
        output=tmp_path / "eval.json",
        task="eval",
        options=TextPerplexity(),
    )
    with pytest.raises(RelmError, match=r"wiki\.test\.tokens: cannot be read: No such file"):
        evaluate()
    file.write_text("altered")
    with pytest.raises(RelmError, match=r"wiki\.test\.tokens: has sha256 [0-9a-f]{64}, expected 0{64}\. Give the file"):
        evaluate(file_sha256="0" * 64)
    assert not (tmp_path / "eval.json").exists()
