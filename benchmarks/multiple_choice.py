"""Measure how fast choices are scored, compared with lm_eval:
`python benchmarks/multiple_choice.py --tokenizer TOKENIZER --file FILE --format FORMAT --harness-python PYTHON`.

A random GPT-2 of the published small shape scores the choices of a file's first questions as lm_eval does. With `--text FILE`
the questions are made of running text: each has a context of 80 words and four endings of 25, one of which follows the context;
HellaSwag's are about as long. Each contender is a separate process that has loaded the model; its time begins with the texts,
and ends with a log-likelihood of every choice. They run in turns, so that all see the same machine. With `--precisions float32
bfloat16` both are measured, and the log-likelihoods of each contender are compared with those of relm in float32. PYTHON is
that of an environment with lm_eval[hf]==0.4.13 and with relm's own torch and transformers: `.venv/harness/bin/python` after
`make harness`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from contenders import Contender, answer, run_in_turns

# How far log-likelihoods of a choice may be apart in float32, in nats.
SAME = 1e-4
CONTEXT_WORDS, ENDING_WORDS, ENDINGS = 80, 25, 4
# A context and the choices after it.
Pairs = list[tuple[str, list[str]]]


def relm(ask: dict[str, Any], pairs: Pairs) -> Callable[[], list[float]]:
    from relm.evaluation.beginning import added_tokens
    from relm.evaluation.choices.choice_formats import ChoicePrompt, Question
    from relm.evaluation.choices.choice_tokens import ChoiceEncoder
    from relm.evaluation.choices.multiple_choice import score_choices
    from relm.evaluation.execution import Execution
    from relm.evaluation.models import load_causal
    from relm.examples.tokenization.tokenizer_files import load_tokenizer
    from relm.recipes.devices import DEVICES

    batch_tokens = ask["batch_tokens"] or DEVICES[ask["device"]].evaluation_batch_tokens
    execution = Execution(ask["device"], ask["precision"], ask["threads"], batch_tokens)
    folder = Path(ask["model"])
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    encoder = ChoiceEncoder(tokenizer, added_tokens(tokenizer))
    model = load_causal(folder, tokenizer.vocabulary_size, execution)
    questions = [
        Question(f"question {number}", {"lm_eval": ChoicePrompt(context, tuple(choices))}, 0)
        for number, (context, choices) in enumerate(pairs)
    ]

    def run() -> list[float]:
        encoded = {"lm_eval": encoder.encode("lm_eval", questions)}
        return score_choices(model, questions, encoded, execution.batch_tokens)["lm_eval"].log_likelihoods.tolist()

    return run


def lm_eval(ask: dict[str, Any], pairs: Pairs) -> Callable[[], list[float]]:
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(ask["threads"])
    size, how = ask["batch_size"], {"dtype": ask["precision"], "softmax_dtype": "float32"}
    model = HFLM(pretrained=ask["model"], device=ask["device"], batch_size=int(size) if size.isdigit() else size, **how)
    requests = [Instance("loglikelihood", {}, (context, f" {c}"), 0) for context, choices in pairs for c in choices]
    return lambda: [nats for nats, _ in model.loglikelihood(requests, disable_tqdm=True)]


SIDES = {"relm": relm, "lm_eval": lm_eval}


def prepare_side(ask: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Load a contender's model; return the function that scores the choices and has its GPU's peak memory, in MB."""
    score = SIDES[ask["side"]](ask, json.loads(Path(ask["pairs"]).read_text()))

    def run() -> dict[str, Any]:
        import torch

        nats = score()
        return {"nats": nats, "gpu_peak": torch.cuda.max_memory_allocated() >> 20 if ask["device"] == "cuda" else None}

    return run


def describe(each: Contender, ours: Contender, exact: Contender, counts: list[int]) -> str:
    """Return the times, their ratios to relm's in that precision, peak memory, and the differences from float32.

    Args:
        each: the contender.
        ours: relm in its precision.
        exact: relm in float32.
        counts: choices of each question.
    """
    found = [np.array(contender.runs[0]["found"]["nats"]) for contender in (each, exact)]
    apart = np.abs(found[0] - found[1])
    chosen = [[part.argmax() for part in np.split(nats, np.cumsum(counts)[:-1])] for nats in found]
    others = sum(a != b for a, b in zip(*chosen, strict=True))
    verdict = "the same log-likelihoods, " if apart.max() <= SAME else ""
    gpu = each.runs[-1]["found"]["gpu_peak"]
    return (
        f"  {each.name:33} {each.median('clock'):7.2f} s; ratio {each.format_ratios(ours)}; "
        f"{each.median('peak'):,.0f} MB{'' if gpu is None else f', {gpu:,} MB of the GPU'}; "
        f"{verdict}{apart.max():.1e} apart at most, {apart.mean():.1e} on average; {others} other choices"
    )


def make_questions(text: Path, count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield contexts of running text with four endings each, of which one, at a random place, is the text's own."""
    words, random = text.read_text(encoding="utf-8").split(), Random(0)
    size = CONTEXT_WORDS + ENDING_WORDS
    if len(words) < count * size:
        sys.exit(
            f"{text}: has {len(words):,} words, expected at least {count * size:,}; give a longer text or fewer --examples"
        )
    for number in range(count):
        first = number * size
        starts = [first + CONTEXT_WORDS, *(random.randrange(len(words) - ENDING_WORDS) for _ in range(ENDINGS - 1))]
        random.shuffle(starts)
        endings = [" ".join(words[start : start + ENDING_WORDS]) for start in starts]
        yield " ".join(words[first : first + CONTEXT_WORDS]), endings


def prepare(folder: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Write a random model and the questions into a folder; return the request to a contender."""
    from dataclasses import asdict

    import torch

    from relm.evaluation.choices.choice_formats import read_questions
    from relm.examples.tokenization.tokenizer_files import load_tokenizer
    from relm.models.gpt2 import Gpt2, Gpt2Config
    from relm.training.export import write_model

    loaded = load_tokenizer(a.tokenizer)
    sizes = {"layers": a.layers, "hidden_size": a.width, "heads": a.width // 64, "vocabulary_size": loaded.vocabulary_size}
    model = Gpt2(Gpt2Config(positions=1024, **sizes))
    model.initialise(torch.Generator().manual_seed(0))
    write_model(model, folder / "model", a.tokenizer, asdict(loaded.special), {})
    if a.text:
        pairs: list[Any] = list(make_questions(a.text, a.examples))
    else:
        questions, _ = read_questions(a.file, None, a.format, a.examples)
        prompts = [question.prompts["lm_eval"] for question in questions]
        pairs = [(prompt.context, prompt.choices) for prompt in prompts]
    (folder / "pairs").write_text(json.dumps(pairs))
    files = {"model": str(folder / "model"), "pairs": str(folder / "pairs")}
    return {**files, "threads": a.threads, "device": a.device, "batch_tokens": a.batch_tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure multiple choice.")
    parser.add_argument("--contender", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", type=Path, help="GPT-2's tokenizer.json")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--file", type=Path, help="a file of questions, such as HellaSwag's")
    given.add_argument("--text", type=Path, help="running text, of which questions with long contexts are made")
    parser.add_argument("--format", default="hellaswag")
    parser.add_argument("--harness-python", default=sys.executable)
    parser.add_argument("--batch-sizes", nargs="+", default=["1", "16", "64"], help="of lm_eval, whose default is 1; or auto")
    parser.add_argument("--batch-tokens", type=int, help="of relm; default: the device's")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precisions", nargs="+", choices=["float32", "bfloat16"], default=["float32"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    if a.contender:
        answer(partial(prepare_side, a.contender))
        return
    with tempfile.TemporaryDirectory() as folder:
        ask = prepare(Path(folder), a)
        counts = [len(choices) for _, choices in json.loads(Path(ask["pairs"]).read_text())]
        ours, contenders = {}, list[Contender]()
        for precision in dict.fromkeys(["float32", *a.precisions]):
            request = {**ask, "precision": precision}
            ours[precision] = Contender(f"relm, {precision}", sys.executable, {**request, "side": "relm"})
            contenders.append(ours[precision])
            for size in a.batch_sizes if precision in a.precisions else []:
                peer = {**request, "side": "lm_eval", "batch_size": size}
                contenders.append(Contender(f"lm_eval, {precision}, batch size {size}", a.harness_python, peer))
        run_in_turns(contenders, a.pairs)
        source = (a.text or a.file).name
        print(f"{source}, {a.examples} questions, {a.layers} layers of {a.width}, {a.device}, {a.pairs} runs each:")
        for contender in contenders:
            of_precision = ours[contender.name.split(", ")[1]]
            print(describe(contender, of_precision, ours["float32"], counts))
            contender.close()


if __name__ == "__main__":
    main()
