"""Generated texts are those of `transformers` and of a model without a cache; the command writes them."""

import functools
import json
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import processors
from uncached_texts import uncached

from relm.errors import RelmError
from relm.evaluation.continuation import Timing, TransformersContinuer, continuations
from relm.evaluation.execution import Execution
from relm.evaluation.generate import _encode_prompts, read_prompts, run_generate
from relm.evaluation.generation import Writer, Writing, Written
from relm.evaluation.models import CausalModel, load_causal
from relm.evaluation.sampling import GREEDY, Sampling, random_stream
from relm.evaluation.stop import Stop
from relm.examples.tokenizers import load_tokenizer

ONE_THREAD = Execution(threads=1)
TEXTS = [[0, 50, 51], [7], [9, 2, 6, 5, 3, 200], [4, 4]]
PENALISED = Sampling(0, None, 1, repetition_penalty=1.4)
ALL = Sampling(1, None, 1)
STREAMS = [random_stream(0, number) for number in range(3)]
SMALL = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.4}
LLAMA = {**SMALL, "intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 20}
OPT = {**SMALL, "ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 20, "init_std": 0.4}
FOREIGN = {
    "llama": (hf.LlamaConfig(**LLAMA), hf.LlamaForCausalLM),
    "mistral, sliding window": (hf.MistralConfig(**LLAMA, sliding_window=4, head_dim=8), hf.MistralForCausalLM),
    "opt": (hf.OPTConfig(**OPT), hf.OPTForCausalLM),
    "bloom, no positions": (hf.BloomConfig(**SMALL, n_layer=2, n_head=2), hf.BloomForCausalLM),
    "gpt2, other switches": (
        hf.GPT2Config(**SMALL, max_position_embeddings=20, scale_attn_by_inverse_layer_idx=True),
        hf.GPT2LMHeadModel,
    ),
    "mamba, another kind of cache": (
        hf.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2, state_size=4, initializer_range=0.4),
        hf.MambaForCausalLM,
    ),
}


def generate_texts(
    folder: Path, tokenizer: Path, prompts: Sequence[str], writing: Writing, execution: Execution
) -> list[Written]:
    """Return what a model writes after each prompt, in the order of the prompts."""
    writer = Writer(folder, tokenizer, execution)
    return list(writer.texts(_encode_prompts(writer, prompts, writing), writing))


@pytest.fixture(scope="module")
def own(evaluated) -> CausalModel:
    return load_causal(evaluated.model, 257, ONE_THREAD)


@pytest.fixture(scope="module")
def theirs(evaluated):
    return hf.GPT2LMHeadModel.from_pretrained(evaluated.model).eval()


def saved(folder: Path, config, kind) -> CausalModel:
    torch.manual_seed(0)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    kind(config).save_pretrained(folder)
    return load_causal(folder, 61, ONE_THREAD)


def written(model: CausalModel, texts: Sequence[Sequence[int]], length: int, sampling: Sampling = GREEDY) -> list[list[int]]:
    streams = [random_stream(0, number) for number in range(len(texts))]
    return [found.ids for found in continuations(TransformersContinuer(model, ONE_THREAD), texts, length, sampling, streams)]


def generated(model, texts: list[list[int]], length: int, **options) -> list[list[int]]:
    """Return the ids that `generate` of transformers writes, with texts padded on the left."""
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
    return model.generate(ids, attention_mask=mask, max_new_tokens=length, **options)[:, width:].tolist()


# --- greedy ----------------------------------------------------------------------------------------------------------------


def test_greedy_continues_a_batch_as_transformers_does(own, theirs) -> None:
    assert written(own, TEXTS, 10) == generated(theirs, TEXTS, 10)


def test_greedy_with_a_penalty_continues_as_transformers_does(own, theirs) -> None:
    """Compare text by text, for in a batch transformers would penalise the padding's id too."""
    expected = [generated(theirs, [text], 10, repetition_penalty=1.4)[0] for text in TEXTS]
    assert written(own, TEXTS, 10, PENALISED) == expected
    assert expected != generated(theirs, TEXTS, 10)


@pytest.mark.parametrize("name", FOREIGN)
def test_any_model_of_transformers_continues_as_its_generate_does(tmp_path, name: str, caplog) -> None:
    config, kind = FOREIGN[name]
    model = saved(tmp_path, config, kind)
    texts = [[3, 50, 51], [7], [9, 2, 6, 5, 3, 20], [4, 4]]
    assert written(model, texts, 9) == generated(model.model, texts, 9)
    assert written(model, texts, 9) == uncached(model, texts, 9)
    assert not [record for record in caplog.records if record.name.startswith("relm")]


def test_a_model_that_takes_padding_for_text_writes_one_text_at_a_time(tmp_path, evaluated, caplog) -> None:
    config = hf.RwkvConfig(vocab_size=257, hidden_size=16, num_hidden_layers=2)
    model = saved(tmp_path, config, hf.RwkvForCausalLM)
    warning, prompts = (
        f"{tmp_path}: padding changes the model's logits; texts are written one by one",
        ["abc", "d"],
    )
    texts = generate_texts(tmp_path, evaluated.tokenizer, prompts, Writing(6, GREEDY), ONE_THREAD)
    assert [record.getMessage() for record in caplog.records] == [warning]
    decode = load_tokenizer(evaluated.tokenizer).tokenizer.decode
    for prompt, text in zip(prompts, texts, strict=True):
        ids = [Writer(tmp_path, evaluated.tokenizer, ONE_THREAD).prompt(prompt).ids]
        assert text.text == prompt + decode(generated(model.model, ids, 6)[0], skip_special_tokens=False)


def test_a_model_whose_cache_forgets_computes_each_token_anew_and_warns(tmp_path, caplog) -> None:
    model = saved(tmp_path, *FOREIGN["llama"])
    expected = [generated(model.model, [text], 6)[0] for text in TEXTS[1:4:2]]
    forget(model.model)
    continuer = TransformersContinuer(model, ONE_THREAD)
    assert not continuer.pads
    assert "logits with its cache differ from those without; each token takes a pass over those before" in caplog.text
    found = [continuations(continuer, [text], 6, GREEDY, STREAMS[:1])[0].ids for text in TEXTS[1:4:2]]
    assert found == expected


def forget(model: torch.nn.Module) -> None:
    """Hide the cache from a model."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(**given):
        cache = given.get("past_key_values")
        if cache is None or not cache.get_seq_length():
            return inner(**given)
        found = inner(input_ids=given["input_ids"], return_dict=True)
        found.past_key_values = cache
        return found

    model.forward = forward


# --- the window ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED, ALL], ids=["greedy", "penalised", "sampled"])
def test_beyond_its_positions_a_model_sees_the_newest(own, sampling: Sampling) -> None:
    """Continue four texts with 16 positions: too long from the start, at the first token, later, and at the last."""
    texts = [list(range(1, 31)), list(range(1, 17)), TEXTS[2], [8]]
    assert written(own, texts, 17, sampling) == uncached(own, texts, 17, sampling)


def test_a_foreign_model_sees_the_newest_too(tmp_path) -> None:
    model = saved(tmp_path, *FOREIGN["llama"])  # 20 positions
    texts = [list(range(1, 31)), list(range(1, 21)), [8, 9]]
    assert written(model, texts, 24) == uncached(model, texts, 24)


class Counting:
    """A continuer that predicts the last token + 1 of ten, and records its inputs."""

    positions: int | None = 3
    pads = True

    def __init__(self) -> None:
        self.given: list[tuple[list[list[int]], int]] = []

    def extend(self, texts, tokens, processors, criterion) -> None:
        self.given.append(([list(text) for text in texts], tokens))
        ids = torch.tensor([text[-1:] for text in texts])
        for _ in range(tokens):
            newest = processors(ids, self.logits(ids[:, -1])).argmax(-1, keepdim=True)
            ids = torch.cat([ids, newest], dim=1)
            if bool(criterion(ids, None).all()):
                break

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((tokens + 1) % 10, 10) * 100.0


def test_windows_are_of_the_newest_tokens() -> None:
    model = Counting()
    found = continuations(model, [[1], [5, 6], [4]], 5, GREEDY, STREAMS)
    assert [text.ids for text in found] == [[2, 3, 4, 5, 6], [7, 8, 9, 0, 1], [5, 6, 7, 8, 9]]
    assert model.given == [
        ([[1], [5, 6], [4]], 2),  # the third token is chosen after three
        ([[1, 2, 3], [6, 7, 8], [4, 5, 6]], 1),
        ([[2, 3, 4], [7, 8, 9], [5, 6, 7]], 1),
        ([[3, 4, 5], [8, 9, 0], [6, 7, 8]], 1),
    ]


def test_texts_that_have_ended_leave_the_batch_when_they_are_half_of_it(evaluated) -> None:
    model = Counting()
    model.positions = None
    stop = Stop(load_tokenizer(evaluated.tokenizer), None, {9})
    found = continuations(model, [[6], [1], [7]], 4, GREEDY, STREAMS, stop)
    assert [(text.ids, text.ended) for text in found] == [
        ([7, 8], "end_of_text"),
        ([2, 3, 4, 5], "length"),
        ([8], "end_of_text"),
    ]
    assert model.given == [([[6], [1], [7]], 4), ([[1, 2, 3, 4]], 1)]


# --- sampling --------------------------------------------------------------------------------------------------------------


def test_a_text_does_not_depend_on_the_rest_of_its_batch_or_its_size(evaluated) -> None:
    prompts = ["The ", "x", "A longer one", "", "y", "The "]
    texts = {
        size: generate_texts(evaluated.model, evaluated.tokenizer, prompts, Writing(14, ALL, batch_size=size), ONE_THREAD)
        for size in (1, 2, 6)
    }
    assert texts[1] == texts[2] == texts[6]
    assert [text.prompt for text in texts[1]] == prompts
    assert texts[1][0].text != texts[1][5].text  # one prompt twice, with two numbers
    others = generate_texts(evaluated.model, evaluated.tokenizer, ["a", *prompts[1:]], Writing(14, ALL), ONE_THREAD)
    assert others[1:] == texts[1][1:]
    assert generate_texts(evaluated.model, evaluated.tokenizer, prompts, Writing(14, ALL, seed=1), ONE_THREAD) != texts[1]


def test_a_sampled_text_continues_as_if_alone_when_others_have_left_the_batch(own, evaluated) -> None:
    stop, continuer = Stop(load_tokenizer(evaluated.tokenizer), None, set(range(40))), TransformersContinuer(own, ONE_THREAD)
    streams = [[random_stream(1, number) for number in range(4)] for _ in range(2)]
    together = continuations(continuer, TEXTS, 12, ALL, streams[0], stop)
    alone = [continuations(continuer, [text], 12, ALL, [streams[1][row]], stop)[0] for row, text in enumerate(TEXTS)]
    assert together == alone
    assert len({len(text.ids) for text in together}) > 2


def test_logits_that_are_no_numbers_are_refused(own) -> None:
    class Broken(Counting):
        def logits(self, tokens: torch.Tensor) -> torch.Tensor:
            return super().logits(tokens) * torch.nan

    with pytest.raises(RelmError, match="the model's logits are not finite: training diverged"):
        continuations(Broken(), [[1]], 4, GREEDY, STREAMS[:1])


# --- where texts end -------------------------------------------------------------------------------------------------------


class Speaking(Counting):
    """A continuer that writes the bytes of a text, whatever its input."""

    positions = None

    def __init__(self, evaluated, text: str) -> None:
        super().__init__()
        self.ids = load_tokenizer(evaluated.tokenizer).tokenizer.encode(text).ids
        self.written = 0

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        self.written += 1
        return torch.nn.functional.one_hot(torch.tensor([self.ids[self.written - 1]] * len(tokens)), 257).float()


def spoken(evaluated, spoken_text: str, length: int, stop: str | None, prompt: str = "p") -> tuple[str, str, int]:
    writer = Writer(evaluated.model, evaluated.tokenizer, ONE_THREAD)
    writer.continuer = Speaking(evaluated, spoken_text)
    (text,) = writer.texts([writer.prompt(prompt)], Writing(length, GREEDY, stop))
    return text.text, text.ended, writer.continuer.written


def test_without_a_stop_no_character_is_cut(evaluated) -> None:
    assert spoken(evaluated, "abc. The end", 6, None) == ("pabc. T", "length", 6)
    assert spoken(evaluated, "abc. The end", 6, "never written") == ("pabc. T", "length", 6)


def test_a_text_ends_before_the_text_to_stop_at(evaluated) -> None:
    assert spoken(evaluated, "abc. The end", 12, ". T") == ("pabc", "stop", 6)
    assert spoken(evaluated, "aé§ü. The end", 12, "ü") == ("paé§", "stop", 7)


def test_a_stop_text_in_the_prompt_stops_nothing(evaluated) -> None:
    assert spoken(evaluated, "abc", 3, "pa", prompt="pap") == ("papabc", "length", 3)


def test_the_end_of_text_ends_a_text_whatever_else_may(evaluated) -> None:
    loaded = load_tokenizer(evaluated.tokenizer)
    assert Stop(loaded, None).ending(0) == "end_of_text"
    assert Stop(loaded, "x").ending(0) == "end_of_text"
    assert Stop(loaded, "x").ending(1) is None


def test_a_special_tokens_name_is_that_token(evaluated) -> None:
    stop = Stop(load_tokenizer(evaluated.tokenizer), "<|endoftext|>")
    assert (stop.id, stop.text, stop.ending(0)) == (0, None, "stop")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop": ""}, "stop is an empty text, at which every text would end at once"),
        ({"length": 0}, "length is 0; give a whole number from 1 on"),
        ({"batch_size": 0}, "batch_size is 0; give a whole number from 1 on"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RelmError, match=message):
        Writing(**settings)


# --- prompts ---------------------------------------------------------------------------------------------------------------


def test_a_prompt_is_given_as_it_stands_and_an_empty_one_is_an_end_of_text(evaluated) -> None:
    writer = Writer(evaluated.model, evaluated.tokenizer, ONE_THREAD)
    assert writer.prompt("<|endoftext|> a").ids == writer.loaded.tokenizer.encode("<|endoftext|> a").ids
    assert 0 not in writer.prompt("<|endoftext|> a").ids
    assert writer.prompt("").ids == [0]


def test_only_another_models_prompt_begins_as_its_tokenizer_begins_texts(tmp_path, evaluated) -> None:
    loaded = load_tokenizer(evaluated.tokenizer).tokenizer
    loaded.post_processor = processors.TemplateProcessing("<|endoftext|> $A <|endoftext|>", None, [("<|endoftext|>", 0)])
    loaded.save(str(tmp_path / "tokenizer.json"))
    own = Writer(evaluated.model, tmp_path / "tokenizer.json", ONE_THREAD)
    saved(tmp_path / "llama", hf.LlamaConfig(**{**LLAMA, "vocab_size": 257}), hf.LlamaForCausalLM)
    other = Writer(tmp_path / "llama", tmp_path / "tokenizer.json", ONE_THREAD)
    assert other.prompt("ab").ids == [0, *own.prompt("ab").ids]
    assert own.prompt("").ids == other.prompt("").ids == [0]


def test_prompts_are_the_lines_that_are_not_blank() -> None:
    assert read_prompts("\ufeffone \r\n\n \ntwo\u2028three".encode(), "f") == ["one ", "two\u2028three"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "f: has no prompt; write one a line"),
        (b" \n\n", "f: has no prompt"),
        (b"a\nb\xff\n", "f, line 2: not UTF-8; save"),
    ],
)
def test_a_file_without_prompts_or_in_another_encoding_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(RelmError, match=message):
        read_prompts(content, "f")


# --- the command -----------------------------------------------------------------------------------------------------------


def run(evaluated, **options) -> str:
    given = {"prompts": None, "file": None, "writing": Writing(5, GREEDY), "output": None, "execution": ONE_THREAD, **options}
    return run_generate(evaluated.model, evaluated.tokenizer, **given)


NUMBER = r"\d[\d.,]*"
TIMING = (
    rf"latency avg per sentence: {NUMBER} ms/sentence_\(5\)\n"
    rf"Per-token latency avg: {NUMBER} ms/token\n"
    rf"Batch size: 2; Input length 3; Output length 5, throughput: {NUMBER} samples/sec\n"
    rf"First token: {NUMBER} ms a batch; each later one: {NUMBER} ms; {NUMBER} tokens/s"
)


def test_texts_are_printed_unchanged_and_then_their_timing(evaluated, capsys) -> None:
    timing = run(evaluated, prompts=["abcd", "ab"])
    expected = generate_texts(evaluated.model, evaluated.tokenizer, ["abcd", "ab"], Writing(5, GREEDY), ONE_THREAD)
    assert capsys.readouterr().out == "".join(text.text + "\n" for text in expected)
    assert re.fullmatch(TIMING, timing)


def test_a_files_texts_go_to_json_lines(tmp_path, evaluated, capsys) -> None:
    (tmp_path / "prompts.txt").write_text("abcd\n\nab\n")
    timing = run(evaluated, file=tmp_path / "prompts.txt", output=tmp_path / "texts.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [["prompt", "text", "prompt_tokens", "tokens", "ended"]] * 2
    assert [(line["prompt"], line["prompt_tokens"], line["tokens"]) for line in lines] == [("abcd", 4, 5), ("ab", 2, 5)]
    assert re.fullmatch(TIMING, timing)
    assert capsys.readouterr().out == ""


def test_a_batch_takes_as_long_as_its_last_token() -> None:
    timing = Timing()
    timing.add([[1], [1, 2, 3]], [[1] * 4, [1, 2]], passes=4, first=0.25, whole=1.0)
    timing.add([[1, 1]], [[1] * 3], passes=4, first=0.25, whole=0.5)
    assert timing.describe() == (
        "latency avg per sentence: 833.333 ms/sentence_(3)\n"  # two took a second, one half of that
        "Per-token latency avg: 187.500 ms/token\n"  # 1.5 s, 8 passes
        "Batch size: 2; Input length 2; Output length 3, throughput: 2.000 samples/sec\n"
        "First token: 250.000 ms a batch; each later one: 166.667 ms; 6.0 tokens/s"  # 1 s, 6 passes
    )
    alone = Timing()
    alone.add([[1]], [[1]], passes=1, first=0.5, whole=0.5)
    assert "each later one: none" in alone.describe()


def test_a_prompt_or_text_longer_than_the_positions_gives_a_warning(evaluated, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        run(evaluated, prompts=["short", "a prompt of more than sixteen bytes"])
    assert [record.getMessage() for record in caplog.records] == [
        "prompt 2 has 35 tokens, of which the model sees the newest 16",
        "texts may grow to 40 tokens; beyond the model's 16 positions each token takes a pass over the newest 16",
    ]


def test_a_masked_model_is_refused(tmp_path, evaluated) -> None:
    config = hf.BertConfig(**{**SMALL, "vocab_size": 257, "intermediate_size": 32, "max_position_embeddings": 20})
    hf.BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(RelmError, match=f"{tmp_path}: .*causal language model"):
        Writer(tmp_path, evaluated.tokenizer, ONE_THREAD)


@pytest.mark.parametrize("missing", ["model", "tokenizer"])
def test_a_missing_model_or_tokenizer_is_named(tmp_path, evaluated, missing: str) -> None:
    folder = tmp_path if missing == "model" else evaluated.model
    tokenizer = tmp_path / "tokenizer.json" if missing == "tokenizer" else evaluated.tokenizer
    with pytest.raises(RelmError, match=str(tmp_path)):
        generate_texts(folder, tokenizer, ["a"], Writing(), ONE_THREAD)


TYPED = """
import sys
from pathlib import Path
from relm.evaluation.generate import run_generate
from relm.evaluation.generation import Writing
from relm.evaluation.execution import Execution
from relm.evaluation.sampling import GREEDY
print(run_generate(Path(sys.argv[1]), Path(sys.argv[2]), None, None, Writing(3, GREEDY), None, Execution(threads=1)))
"""


TYPED_TEXTS = ["abc", " ", "ab"]


def as_printed(evaluated) -> list[str]:
    """Return the first lines of the texts after the typed prompts, as a terminal shows them."""
    texts = generate_texts(evaluated.model, evaluated.tokenizer, ["abc", "ab"], Writing(3, GREEDY), ONE_THREAD)
    return [text.text.splitlines()[0] for text in texts]


def read_until(terminal: int, text: str | None) -> str:
    seen = b""
    while text is None or text.encode() not in seen:
        assert select.select([terminal], [], [], 60)[0], seen.decode(errors="replace")
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other side has closed
            break
        if not more:
            break
        seen += more
    return seen.decode(errors="replace")


def test_prompts_are_typed_one_after_the_other_until_an_interruption(evaluated) -> None:
    ours, side = pty.openpty()
    command = [sys.executable, "-c", TYPED, str(evaluated.model), str(evaluated.tokenizer)]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, start_new_session=True)
    os.close(side)
    seen = read_until(ours, "Prompt: ")
    for typed in TYPED_TEXTS:
        os.write(ours, f"{typed}\n".encode())
        seen += read_until(ours, "Prompt: ")
    time.sleep(1)  # between the prompt and the wait for a line Python would see the signal with the next line only
    process.send_signal(signal.SIGINT)
    seen += read_until(ours, None)
    os.close(ours)
    assert process.wait(60) == 0, seen
    assert "Traceback" not in seen
    assert seen.count("Prompt: ") == 4
    assert seen.count("latency avg per sentence") == 2
    assert seen.rstrip().endswith("2 texts")
    assert all(text in seen for text in as_printed(evaluated))


def test_the_end_of_the_input_ends_the_conversation(evaluated, monkeypatch, capsys) -> None:
    ours, side = pty.openpty()
    os.write(ours, "".join(f"{typed}\n" for typed in TYPED_TEXTS).encode() + b"\x04")
    with open(side, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert run(evaluated, writing=Writing(3, GREEDY)).strip() == "2 texts"
    os.close(ours)
    seen = capsys.readouterr()
    assert (seen.out.count("Prompt: "), seen.err.count("latency avg per sentence")) == (4, 2)
    assert "latency" not in seen.out
    assert all(text in seen.out for text in as_printed(evaluated))


def test_where_there_is_no_terminal_the_standard_input_is_a_file_of_prompts(tmp_path, evaluated, monkeypatch, capsys) -> None:
    (tmp_path / "prompts.txt").write_text("abc\nab\n")
    with open(tmp_path / "prompts.txt") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert "Batch size: 2" in run(evaluated)
    texts = generate_texts(evaluated.model, evaluated.tokenizer, ["abc", "ab"], Writing(5, GREEDY), ONE_THREAD)
    assert capsys.readouterr().out == "".join(text.text + "\n" for text in texts)
