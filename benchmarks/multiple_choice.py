"""Measure how fast choices are scored, beside lm_eval:
`python benchmarks/multiple_choice.py --tokenizer TOKENIZER --file FILE --format FORMAT --harness-python PYTHON`.

A random GPT-2 of the published small shape scores the choices of a file's first questions as lm_eval does. Each contender is a
process of its own that has loaded the model; its time begins with the texts, and ends with a log-likelihood of every choice.
They run in turns, so that all see the same machine. PYTHON is that of an environment with lm_eval[hf]==0.4.13 and with relm's
own torch and transformers: `.venv/harness/bin/python` after `make harness`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from contenders import Contender, answer, run_in_turns

# How far log-likelihoods of a choice may be apart, in nats.
SAME = 1e-4
# A context and the choices after it.
Pairs = list[tuple[str, list[str]]]


def relm(ask: dict[str, Any], pairs: Pairs) -> Callable[[], list[float]]:
    from relm.evaluation.beginning import added_tokens, prefix_token
    from relm.evaluation.choice_formats import ChoicePrompt, Question
    from relm.evaluation.choice_tokens import ChoiceEncoder
    from relm.evaluation.execution import Execution
    from relm.evaluation.models import load_causal
    from relm.evaluation.multiple_choice import choice_scores
    from relm.examples.tokenizers import load_tokenizer

    folder, execution = Path(ask["model"]), Execution(threads=ask["threads"])
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    encoder = ChoiceEncoder(tokenizer, added_tokens(tokenizer), prefix_token(tokenizer, folder))
    model = load_causal(folder, tokenizer.vocabulary_size, execution)
    questions = [
        Question(f"question {number}", {"lm_eval": ChoicePrompt(context, tuple(choices))}, 0)
        for number, (context, choices) in enumerate(pairs)
    ]

    def run() -> list[float]:
        encoded = {"lm_eval": encoder.encode("lm_eval", questions)}
        return choice_scores(model, questions, encoded, execution.batch_tokens)["lm_eval"].log_likelihoods.tolist()

    return run


def lm_eval(ask: dict[str, Any], pairs: Pairs) -> Callable[[], list[float]]:
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(ask["threads"])
    model = HFLM(pretrained=ask["model"], device="cpu", dtype="float32", batch_size=ask["batch_size"])
    requests = [Instance("loglikelihood", {}, (context, f" {c}"), 0) for context, choices in pairs for c in choices]
    return lambda: [nats for nats, _ in model.loglikelihood(requests, disable_tqdm=True)]


SIDES = {"relm": relm, "lm_eval": lm_eval}


def prepare_side(ask: dict[str, Any]) -> Callable[[], list[float]]:
    """Load a contender's model; return the function that scores the choices."""
    return SIDES[ask["side"]](ask, json.loads(Path(ask["pairs"]).read_text()))


def describe(each: Contender, ours: Contender) -> str:
    """Return the times, their ratios to relm's, and how far the log-likelihoods are apart."""
    apart = max(abs(a - b) for a, b in zip(each.runs[0]["found"], ours.runs[0]["found"], strict=True))
    verdict = "the same" if apart <= SAME else "other"
    return (
        f"  {each.name:22} {each.median('clock'):7.2f} s; ratio {each.format_ratios(ours)}; "
        f"{verdict} log-likelihoods, {apart:.1e} apart at most"
    )


def prepare(folder: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Write a random model and the questions into a folder; return the request to a contender."""
    from dataclasses import asdict

    import torch

    from relm.evaluation.choice_formats import read_questions
    from relm.examples.tokenizers import load_tokenizer
    from relm.models.gpt2 import Gpt2, Gpt2Config
    from relm.training.export import write_model

    loaded = load_tokenizer(a.tokenizer)
    sizes = {"layers": a.layers, "hidden_size": a.width, "heads": a.width // 64, "vocabulary_size": loaded.vocabulary_size}
    model = Gpt2(Gpt2Config(positions=1024, **sizes))
    model.initialise(torch.Generator().manual_seed(0))
    write_model(model, folder / "model", a.tokenizer, asdict(loaded.special), {})
    questions, _ = read_questions(a.file, None, a.format, a.examples)
    prompts = [question.prompts["lm_eval"] for question in questions]
    (folder / "pairs").write_text(json.dumps([(prompt.context, prompt.choices) for prompt in prompts]))
    return {"model": str(folder / "model"), "pairs": str(folder / "pairs"), "threads": a.threads}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure multiple choice.")
    parser.add_argument("--contender", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", type=Path, help="GPT-2's tokenizer.json")
    parser.add_argument("--file", type=Path, help="a file of questions, such as BLiMP.zip")
    parser.add_argument("--format", default="blimp")
    parser.add_argument("--harness-python", default=sys.executable)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 16, 64], help="of lm_eval, whose default is 1")
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
        contenders = [Contender("relm", sys.executable, {**ask, "side": "relm"})]
        for size in a.batch_sizes:
            peer = {**ask, "side": "lm_eval", "batch_size": size}
            contenders.append(Contender(f"lm_eval, batch size {size}", a.harness_python, peer))
        run_in_turns(contenders, a.pairs)
        print(f"{a.file.name}, the first {a.examples} questions, {a.layers} layers of {a.width}, {a.pairs} runs each:")
        for contender in contenders:
            print(describe(contender, contenders[0]))
            contender.close()


if __name__ == "__main__":
    main()
