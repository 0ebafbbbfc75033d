"""Measure how fast texts are scored, compared with lm_eval and Hugging Face's loop for strided windows:
`python benchmarks/evaluation.py --tokenizer TOKENIZER --lambada FILE --wikitext FILE --harness-python PYTHON`.

A random GPT-2 of the published small shape reads the beginning of LAMBADA's and of WikiText's test file. Each contender is a
separate process, with its own peak of memory; its time begins when it has loaded the model, and ours has the tokens, which
take lm_eval some milliseconds. They run in turns, so that all see the same machine. PYTHON is that of an environment with
lm_eval[hf]==0.4.13 and with relm's own torch and transformers: otherwise versions are compared.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contenders import Contender, answer, run_in_turns

CONTEXT, STRIDE = 1024, 32
# How far figures may be apart: nats of a passage's last word, or of a token, or bits of a byte.
SAME = 1e-4


# --- ours --------------------------------------------------------------------------------------------------------------------


def relm_lambada(ask: dict[str, Any]) -> Callable[[], float]:
    from relm.evaluation.lambada import figures, score_passages, tokenise_passages

    model, tokenizer, execution = _loaded(ask)
    passages = tokenise_passages(json.loads(Path(ask["passages"]).read_text()), tokenizer, Path(ask["passages"]))

    def run() -> float:
        return math.log(figures(passages, score_passages(model, passages, execution.batch_tokens))["lambada_openai_perplexity"])

    return run


def relm_rolling(ask: dict[str, Any]) -> Callable[[], float]:
    from relm.evaluation.scoring import ScoredSequences, score
    from relm.evaluation.text_perplexity import TextPerplexity, figures, mean_nats, prepare_text
    from relm.evaluation.windows import cut_documents

    model, tokenizer, execution = _loaded(ask)
    options = TextPerplexity(detokeniser="gpt2_wikitext", windows="rolling", first_token="scored")
    text = prepare_text(Path(ask["page"]).read_text(), tokenizer, options, None)

    def run() -> float:
        windows = cut_documents("rolling", text.sizes, CONTEXT, CONTEXT)
        sequences = ScoredSequences(text.array, windows.starts, windows.ends, windows.scored)
        scores = score(model, sequences, execution.batch_tokens)
        return figures(mean_nats(scores, sequences, windows), text, windows)["bits_per_byte"]

    return run


def relm_strided(ask: dict[str, Any]) -> Callable[[], float]:
    import numpy as np

    from relm.evaluation.scoring import ScoredSequences, score

    model, _, execution = _loaded(ask)
    tokens = np.array(json.loads(Path(ask["tokens"]).read_text()))
    starts = np.arange(STRIDE, len(tokens) - CONTEXT + 1, STRIDE)
    sequences = ScoredSequences(tokens, starts, starts + CONTEXT, np.full(len(starts), STRIDE))
    return lambda: float(score(model, sequences, execution.batch_tokens).nats.mean())


def _loaded(ask: dict[str, Any]) -> tuple[Any, Any, Any]:
    from relm.evaluation.execution import Execution
    from relm.evaluation.models import load_causal
    from relm.examples.tokenization.tokenizer_files import load_tokenizer

    execution = Execution(threads=ask["threads"], precision=ask.get("precision", "float32"))
    tokenizer = load_tokenizer(Path(ask["model"]) / "tokenizer.json")
    return load_causal(Path(ask["model"]), tokenizer.vocabulary_size, execution), tokenizer, execution


# --- the peers ---------------------------------------------------------------------------------------------------------------


def harness(ask: dict[str, Any], task: str, like: str, rows: Sequence[dict[str, str]], figure: str) -> Callable[[], float]:
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(ask["threads"])
    folder = Path(ask["folder"]) / f"tasks-{os.getpid()}"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(
        f"include: {Path(lm_eval.__file__).parent / 'tasks' / like}\ntask: {task}\ndataset_path: json\ndataset_name: null\n"
        "training_split: null\nvalidation_split: null\ntest_split: test\n"
        f"dataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}\n"
    )
    model = HFLM(pretrained=ask["model"], device="cpu", dtype="float32", batch_size=ask["batch_size"])
    manager = TaskManager(include_path=str(folder), include_defaults=False)

    def run() -> float:
        found = lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0)
        return found["results"][task][figure]

    return run


def harness_lambada(ask: dict[str, Any]) -> Callable[[], float]:
    rows = [{"text": text} for text in json.loads(Path(ask["passages"]).read_text())]
    run = harness(ask, "own_lambada", "lambada/lambada_openai.yaml", rows, "perplexity,none")
    return lambda: math.log(run())


def harness_rolling(ask: dict[str, Any]) -> Callable[[], float]:
    rows = [{"page": Path(ask["page"]).read_text()}]
    return harness(ask, "own_wikitext", "wikitext/wikitext.yaml", rows, "bits_per_byte,none")


def huggingface_strided(ask: dict[str, Any]) -> Callable[[], float]:
    """Return the loop of https://huggingface.co/docs/transformers/perplexity, begun at its second window, as relm's is."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(ask["threads"])
    model = AutoModelForCausalLM.from_pretrained(ask["model"], dtype=torch.float32).eval()
    tokens = torch.tensor([json.loads(Path(ask["tokens"]).read_text())])

    def run() -> float:
        total, count = 0.0, 0
        for begin in range(STRIDE, tokens.shape[1] - CONTEXT + 1, STRIDE):
            window = tokens[:, begin : begin + CONTEXT]
            labels = window.clone()
            labels[:, :-STRIDE] = -100
            with torch.no_grad():
                total += model(window, labels=labels).loss.item() * STRIDE
            count += STRIDE
        return total / count

    return run


SIDES = {
    "lambada": {"relm": relm_lambada, "lm_eval": harness_lambada},
    "rolling": {"relm": relm_rolling, "lm_eval": harness_rolling},
    "strided": {"relm": relm_strided, "transformers": huggingface_strided},
}
WHAT = {
    "lambada": "lambada_openai, {examples} passages, {tokens:,} tokens",
    "rolling": f"WikiText, windows of {CONTEXT} that do not overlap, {{tokens:,}} tokens",
    "strided": f"WikiText, windows of {CONTEXT} every {STRIDE}, {{windows}} windows, {{tokens:,}} tokens",
}


def operations(task: str, layers: int, width: int, vocabulary: int = 50_257) -> tuple[float, float]:
    """Floating-point operations for each token that is read: ours, and of one who computes all logits.

    Two for each weight of a matrix, and attention to half a context. Where few places are scored, the last layer needs only
    keys and values of the others, 2 of its 12 width^2 weights.
    """
    body, head = 2 * 12 * layers * width**2, 2 * vocabulary * width
    attention = 0 if task == "lambada" else 2 * layers * CONTEXT * width
    if task == "rolling":
        return body + attention + head, body + attention + head
    return body - 2 * 10 * width**2 + attention * (layers - 1) / layers, body + attention + head


# --- one after the other -----------------------------------------------------------------------------------------------------


def compare(title: str, needed: Sequence[float], contenders: list[Contender], pairs: int) -> None:
    """Run all in alternation, and compare the time of each with the first, which is relm's."""
    run_in_turns(contenders, pairs)
    ours = contenders[0]
    mine, all_logits = needed
    print(
        f"{title}: {mine / 1e9:,.0f} GFLOP, with all logits {all_logits / 1e9:,.0f}, "
        f"so arithmetic alone gives a ratio of {all_logits / mine:.2f}"
    )
    for each in contenders:
        difference = abs(each.runs[0]["found"] - ours.runs[0]["found"])
        verdict = "the same figure" if difference <= SAME else "another figure"
        print(
            f"  {each.name:22} {each.median('clock'):6.1f} s, {each.median('processor'):6.1f} s of processor, "
            f"peak {each.runs[-1]['peak']:,} MB; ratio {each.format_ratios(ours)}; {verdict}, {difference:.1e} off"
        )


# --- what is read ------------------------------------------------------------------------------------------------------------


def prepare(folder: Path, a: argparse.Namespace) -> dict[str, Any]:
    """Return a model and the beginnings of the texts, in a folder; and how much of each there is."""
    from dataclasses import asdict

    import torch

    from relm.examples.tokenization.tokenizer_files import load_tokenizer
    from relm.models.gpt2 import Gpt2, Gpt2Config
    from relm.training.export import write_model

    loaded = load_tokenizer(a.tokenizer)
    sizes = {"layers": a.layers, "hidden_size": a.width, "heads": a.width // 64}
    model = Gpt2(Gpt2Config(positions=CONTEXT, vocabulary_size=loaded.vocabulary_size, **sizes))
    model.initialise(torch.Generator().manual_seed(0))
    write_model(model, folder / "model", a.tokenizer, asdict(loaded.special), {})
    with a.lambada.open() as lines:
        passages = [json.loads(line)["text"] for line, _ in zip(lines, range(a.examples), strict=False)]
    encoding = loaded.tokenizer.encode(a.wikitext.read_text().strip()[: 10 * a.windows * CONTEXT], add_special_tokens=False)
    page = a.wikitext.read_text().strip()[: encoding.offsets[a.windows * CONTEXT][0]].strip()
    for name, value in (("passages", json.dumps(passages)), ("page", page)):
        (folder / name).write_text(value)
    (folder / "tokens").write_text(json.dumps(encoding.ids[: CONTEXT + a.windows * STRIDE]))
    ask = {name: str(folder / name) for name in ("model", "passages", "page", "tokens")} | {"folder": str(folder)}
    read = sum(len(loaded.tokenizer.encode(text).ids) for text in passages)
    tokens = {"lambada": read, "rolling": len(loaded.tokenizer.encode(page).ids), "strided": a.windows * CONTEXT}
    return {"ask": ask, "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure evaluation.")
    parser.add_argument("--contender", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", type=Path, help="GPT-2's tokenizer.json")
    parser.add_argument("--lambada", type=Path, help="lambada_test.jsonl")
    parser.add_argument("--wikitext", type=Path, help="wiki.test.tokens of WikiText-103")
    parser.add_argument("--harness-python", default=sys.executable)
    parser.add_argument("--tasks", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 4, 16], help="of lm_eval, whose default is 1")
    parser.add_argument("--bfloat16", action="store_true", help="add relm in that precision, beside peers in float32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    if a.contender:
        answer(partial(SIDES[a.contender["task"]][a.contender["side"]], a.contender))
        return
    with tempfile.TemporaryDirectory() as folder:
        made = prepare(Path(folder), a)
        for task in a.tasks:
            ask = {**made["ask"], "task": task, "threads": a.threads}
            contenders = [Contender("relm", sys.executable, {**ask, "side": "relm"})]
            if a.bfloat16:
                contenders.append(Contender("relm, bfloat16", sys.executable, {**ask, "side": "relm", "precision": "bfloat16"}))
            if task == "strided":
                contenders.append(Contender("transformers", a.harness_python, {**ask, "side": "transformers"}))
            else:
                for size in a.batch_sizes:
                    peer = {**ask, "side": "lm_eval", "batch_size": size}
                    contenders.append(Contender(f"lm_eval, batch size {size}", a.harness_python, peer))
            tokens = made["tokens"][task]
            title = WHAT[task].format(tokens=tokens, examples=a.examples, windows=a.windows)
            compare(title, [tokens * each for each in operations(task, a.layers, a.width)], contenders, a.pairs)
            for contender in contenders:
                contender.close()


if __name__ == "__main__":
    main()
