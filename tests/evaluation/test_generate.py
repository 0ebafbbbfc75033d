"""Generated texts are those of a model without a cache; the command writes them."""

import json
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
from uncached_texts import ALL, GREEDY, PENALISED, uncached

from relm.cli import main
from relm.errors import RelmError
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import Execution
from relm.evaluation.generation.continuation import TransformersContinuer, continue_windows
from relm.evaluation.generation.generate import read_prompts
from relm.evaluation.generation.sampling import Sampling, random_stream
from relm.evaluation.generation.stop import EndedText, Stop
from relm.evaluation.generation.texts import BatchTime, Prompt, Writer, Writing, Written, describe_times
from relm.evaluation.models import load_causal
from relm.examples.tokenization.tokenizer_files import load_tokenizer

ONE_THREAD = Execution(threads=1)
TEXTS = [[3, 50, 51], [7], [9, 2, 6, 5, 3, 20], [4, 4]]
SMALL = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.4}
LLAMA = {**SMALL, "intermediate_size": 32, "num_key_value_heads": 1, "max_position_embeddings": 20}
FOREIGN = {
    "llama": (hf.LlamaConfig(**LLAMA), hf.LlamaForCausalLM),
    "mistral, sliding window": (hf.MistralConfig(**LLAMA, sliding_window=4, head_dim=8), hf.MistralForCausalLM),
    "bloom, no positions": (hf.BloomConfig(**SMALL, n_layer=2, n_head=2), hf.BloomForCausalLM),
    "mamba, a state": (
        hf.MambaConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2, state_size=4, initializer_range=0.4),
        hf.MambaForCausalLM,
    ),
}


@pytest.fixture(scope="module")
def own(evaluated) -> CausalModel:
    return load_causal(evaluated.model, 257, ONE_THREAD)


@pytest.fixture(scope="module")
def writer(evaluated) -> Writer:
    return Writer(evaluated.model, evaluated.tokenizer, ONE_THREAD)


@pytest.fixture(scope="module")
def endless(evaluated) -> Stop:
    """A rule by which no text ends."""
    return Stop(load_tokenizer(evaluated.tokenizer), None, ())


def texts_of(writer: Writer, prompts: Sequence[str], *settings: object, **named: object) -> list[Written]:
    return list(writer.texts([writer.prompt(text) for text in prompts], Writing(*settings, **named)))


def saved(folder: Path, config, kind) -> CausalModel:
    torch.manual_seed(0)
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    kind(config).save_pretrained(folder)
    return load_causal(folder, config.vocab_size, ONE_THREAD)


def continued(model: CausalModel, texts: list[list[int]], length: int, sampling: Sampling, stop: Stop) -> list[list[int]]:
    streams = [random_stream(0, number) for number in range(len(texts))]
    continuer = TransformersContinuer(model, ONE_THREAD)
    if continuer.pads:
        return continuer.write(texts, length, sampling, streams, stop)
    return [continuer.write([text], length, sampling, [own], stop)[0] for text, own in zip(texts, streams, strict=True)]


@pytest.mark.parametrize("name", FOREIGN)
def test_any_model_of_transformers_writes_what_it_computes_from_each_text_by_itself(tmp_path, name: str, endless: Stop) -> None:
    model = saved(tmp_path, *FOREIGN[name])
    texts = [*TEXTS, list(range(1, 31))] if model.positions else TEXTS  # the last is longer than the positions
    assert continued(model, texts, 9, GREEDY, endless) == uncached(model, texts, 9)


@pytest.mark.parametrize("sampling", [GREEDY, ALL, Sampling(), Sampling(uniform_top_k=4)], ids=str)
def test_beyond_its_positions_a_model_sees_the_newest(own: CausalModel, sampling: Sampling, endless: Stop) -> None:
    """Continue texts with 16 positions: too long from the start, at the first token, later, and at the last."""
    texts = [list(range(1, 31)), list(range(1, 17)), TEXTS[2], [8]]
    assert continued(own, texts, 17, sampling, endless) == uncached(own, texts, 17, sampling)


def test_windows_are_of_the_newest_tokens(endless: Stop) -> None:
    given = []

    def extend(texts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        given.append(([list(text) for text in texts], tokens))
        return [[(text[-1] + number) % 10 for number in range(1, tokens + 1)] for text in texts]

    assert continue_windows(3, [[1], [5, 6]], 4, endless, extend) == [[2, 3, 4, 5], [7, 8, 9, 0]]
    assert given == [([[1], [5, 6]], 2), ([[1, 2, 3], [6, 7, 8]], 1), ([[2, 3, 4], [7, 8, 9]], 1)]


def test_a_text_does_not_depend_on_the_rest_of_its_batch_or_its_size(writer: Writer) -> None:
    prompts = ["The ", "x", "A longer one", "", "y", "The "]
    texts = {size: texts_of(writer, prompts, 14, ALL, batch_size=size) for size in (1, 2, 6)}
    assert texts[1] == texts[2] == texts[6]
    assert [text.prompt for text in texts[1]] == prompts
    assert texts[1][0].text != texts[1][5].text  # one prompt twice, with two numbers
    assert texts_of(writer, ["a", *prompts[1:]], 14, ALL)[1:] == texts[1][1:]
    assert texts_of(writer, prompts, 14, ALL, seed=1) != texts[1]


def test_a_penalty_never_counts_the_padding_of_a_batch(writer: Writer, own: CausalModel) -> None:
    expected = uncached(own, TEXTS, 10, PENALISED)
    found = list(writer.texts([Prompt("", text) for text in TEXTS], Writing(10, PENALISED)))
    stop = Stop(writer.loaded, None, writer.special.ends)
    assert [text.text for text in found] == [stop.cut(*pair).text for pair in zip(TEXTS, expected, strict=True)]


@pytest.mark.parametrize(
    ("spoken", "text", "prompt", "cut"),
    [
        ("abc. T", None, "p", EndedText("abc. T", 6, "length")),
        ("abc. T", "never written", "p", EndedText("abc. T", 6, "length")),
        ("abc. The end", ". T", "p", EndedText("abc", 6, "stop")),
        ("aé§ü. The end", "ü", "p", EndedText("aé§", 7, "stop")),  # its tokens are bytes
        ("abc", "pa", "pap", EndedText("abc", 3, "length")),  # the prompt's own does not count
        ("ab<|endoftext|>c", None, "p", EndedText("ab", 2, "end_of_text")),
        ("ab<|endoftext|>c", "c", "p", EndedText("ab", 2, "end_of_text")),
        ("ab<|endoftext|>c", "<|endoftext|>", "p", EndedText("ab", 2, "stop")),
    ],
)
def test_a_text_ends_at_an_end_of_text_or_before_the_text_to_stop_at(evaluated, spoken, text, prompt, cut) -> None:
    loaded = load_tokenizer(evaluated.tokenizer)
    ids = [
        number
        for part in re.split(r"(<\|endoftext\|>)", spoken)
        for number in ([0] if part[:2] == "<|" else encode(loaded, part))
    ]
    stop = Stop(loaded, text, {0})
    assert stop.cut(encode(loaded, prompt), ids) == cut
    assert stop.has_ended(encode(loaded, prompt), ids) == (cut.ended != "length")


def encode(loaded, text: str) -> list[int]:
    return loaded.tokenizer.encode(text).ids


@pytest.mark.parametrize("length", [8, 40])  # within the positions, and beyond
def test_texts_stop_as_those_that_are_cut_afterwards_and_then_cost_no_more_passes(writer: Writer, length: int) -> None:
    (whole,) = texts_of(writer, ["x"], length, GREEDY)
    stop, times = whole.text[3], []
    (text,) = writer.texts([writer.prompt("x")], Writing(length, GREEDY, stop), times=times)
    assert (text.text, text.ended) == (whole.text.partition(stop)[0], "stop")
    assert times[0].passes == text.tokens < length


def test_a_prompt_is_given_unchanged_and_an_empty_one_is_an_end_of_text(writer: Writer) -> None:
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
    [(b" \n\n", "f: has no prompt; write one a line"), (b"a\nb\xff\n", "f, line 2: not UTF-8; save")],
)
def test_a_file_without_prompts_or_in_another_encoding_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(RelmError, match=message):
        read_prompts(content, "f")


def arguments(evaluated, *words: object) -> list[str]:
    given = ["--model", evaluated.model, "--tokenizer", evaluated.tokenizer, "--threads", "1", "--length", "5", "--greedy"]
    return list(map(str, ["generate", *given, *words]))


NUMBER = r"\d[\d.,]*"
TIMES = re.compile(
    rf"latency avg per sentence: {NUMBER} ms/sentence_\(5\)\n"
    rf"Per-token latency avg: {NUMBER} ms/token\n"
    rf"Batch size: 2; Input length 3; Output length 5, throughput: {NUMBER} samples/sec\n"
    rf"{NUMBER} tokens/s"
)


def test_texts_are_printed_unchanged_with_their_times(evaluated, writer: Writer, capsys) -> None:
    assert main(arguments(evaluated, "--prompt", "abcd", "ab")) == 0
    seen = capsys.readouterr()
    assert seen.out == "".join(text.text + "\n" for text in texts_of(writer, ["abcd", "ab"], 5, GREEDY))
    assert TIMES.search(seen.err)


def test_a_files_texts_go_to_json_lines(tmp_path, evaluated, capsys) -> None:
    (tmp_path / "prompts.txt").write_text("abcd\n\nab\n")
    output = tmp_path / "texts.jsonl"
    assert main(arguments(evaluated, "--file", tmp_path / "prompts.txt", "--output", output)) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [list(line) for line in lines] == [["prompt", "text", "prompt_tokens", "tokens", "ended"]] * 2
    assert [(line["prompt"], line["prompt_tokens"], line["tokens"]) for line in lines] == [("abcd", 4, 5), ("ab", 2, 5)]
    assert capsys.readouterr().out == ""


def test_where_there_is_no_terminal_the_standard_input_is_a_file_of_prompts(tmp_path, evaluated, monkeypatch, capsys) -> None:
    (tmp_path / "prompts.txt").write_text("abcd\nab\n")
    with open(tmp_path / "prompts.txt") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        assert main(arguments(evaluated)) == 0
    assert TIMES.search(capsys.readouterr().err)


def test_greedy_means_temperature_0_and_goes_with_no_option_of_draws(evaluated, capsys) -> None:
    words = [*arguments(evaluated, "--prompt", "ab"), "--stop", ""]
    texts = []
    for given in (words, [*filter(lambda word: word != "--greedy", words), "--temperature", "0"]):
        assert main(given) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    for option, value in (("--top-p", "0.9"), ("--top-k", "5"), ("--temperature", "1"), ("--uniform-top-k", "2")):
        assert main([*words, option, value]) == 1
        assert f"--greedy always takes the likeliest token, so {option} has no effect; remove one" in capsys.readouterr().err


def test_a_batch_takes_as_long_as_its_last_token() -> None:
    assert describe_times([BatchTime(2, 4, 6, 4, 1.0), BatchTime(1, 2, 3, 4, 0.5)]) == (
        "latency avg per sentence: 833.333 ms/sentence_(3)\n"  # two took a second, one half of that
        "Per-token latency avg: 187.500 ms/token\n"  # 1.5 s, 8 passes
        "Batch size: 2; Input length 2; Output length 3, throughput: 2.000 samples/sec\n"
        "6.0 tokens/s"
    )


def test_texts_longer_than_the_positions_give_a_warning(evaluated, caplog) -> None:
    main(arguments(evaluated, "--prompt", "short", "a prompt of more than sixteen bytes"))
    expected = "texts may grow to 40 tokens; beyond the model's 16 positions each token takes a pass over the newest 16"
    assert [record.getMessage() for record in caplog.records] == [expected]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "a", "--file", "b"], "generate: give either --prompt or --file"),
        (["--prompt", "a", "--repetition-penalty", "0"], "--repetition-penalty is 0.0; give a number above 0"),
        (["--prompt", "a", "--model", "NONE"], "NONE: no such file or folder"),
        (["--prompt", "a", "--tokenizer", "NONE"], "NONE"),
        (["--prompt", "a", "--model", "BERT"], "causal language model"),
    ],
)
def test_what_cannot_be_written_with_is_refused(evaluated, tmp_path, words: list[str], message: str, capsys) -> None:
    config = hf.BertConfig(**{**SMALL, "vocab_size": 257, "intermediate_size": 32, "max_position_embeddings": 20})
    hf.BertForMaskedLM(config).save_pretrained(tmp_path)
    assert main(arguments(evaluated, *(str(tmp_path) if word == "BERT" else word for word in words))) == 1
    assert message in capsys.readouterr().err


TYPED_TEXTS = ["abc", " ", "ab"]


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


def test_prompts_are_typed_one_after_the_other_until_an_interruption(evaluated, writer: Writer) -> None:
    ours, side = pty.openpty()
    command = [Path(sys.executable).with_name("relm"), *arguments(evaluated)]
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
    assert (seen.count("Prompt: "), seen.count("latency avg per sentence")) == (4, 2)
    assert seen.rstrip().endswith("2 texts")
    assert all(text.text.splitlines()[0] in seen for text in texts_of(writer, ["abc", "ab"], 5, GREEDY))


def test_the_end_of_the_input_ends_the_conversation(evaluated, monkeypatch, capsys) -> None:
    ours, side = pty.openpty()
    os.write(ours, "".join(f"{typed}\n" for typed in TYPED_TEXTS).encode() + b"\x04")
    with open(side, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(arguments(evaluated)) == 0
    os.close(ours)
    seen = capsys.readouterr()
    assert (seen.out.count("Prompt: "), seen.err.count("latency avg per sentence")) == (4, 2)
    assert seen.err.rstrip().endswith("2 texts")
