"""The step from a model to texts: `relm generate`."""

from dataclasses import fields

from relm.errors import RelmError
from relm.steps.contract import Arguments, Job, Step, argument, path, positive
from relm.steps.evaluation import (
    EXECUTION_OF_BATCHES,
    MODEL,
    TOKENIZER,
    find_tokenizer,
    list_weights,
    model_folder,
    read_execution,
)


def generate_job(a: Arguments) -> Job:
    from relm.evaluation.generation.generate import run_generate
    from relm.evaluation.generation.sampling import Sampling
    from relm.evaluation.generation.texts import Writing

    if a.prompt and a.file is not None:
        raise RelmError("generate: give either --prompt or --file")
    given = {field.name: getattr(a, field.name) for field in fields(Sampling) if getattr(a, field.name) is not None}
    if a.greedy and (other := next((name for name in given if name != "repetition_penalty"), None)):
        raise RelmError(f"--greedy always takes the likeliest token, so --{other.replace('_', '-')} has no effect; remove one")
    given |= {"temperature": 0.0} if a.greedy else {}
    sampling = Sampling(**given | ({"top_k": None} if a.top_k == 0 else {}))
    writing = Writing(a.length, sampling, a.stop or None, a.seed, a.batch_size)
    execution = read_execution(a)
    return Job(
        lambda: run_generate(model_folder(a), find_tokenizer(a), a.prompt, a.file, writing, a.output, execution),
        inputs=[*list_weights(a), find_tokenizer(a), *([a.file] if a.file else [])],
    )


STEPS: dict[str, Step] = {
    "generate": Step(
        "generate continuations of prompts, and report the time",
        [
            MODEL,
            TOKENIZER,
            argument("--prompt", nargs="+", metavar="TEXT", help="prompts; default: --file, or they are typed"),
            path("--file", "prompts, one per line", required=False),
            argument("--length", type=positive, default=128, metavar="N", help="most tokens after each prompt; default: 128"),
            argument("--temperature", type=float, metavar="X", help="divides the logits; default: 0.8"),
            argument("--greedy", action="store_true", help="always the likeliest token"),
            argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens, 0: all; default: 50"),
            argument("--top-p", type=float, metavar="P", help="only the likeliest that reach P; default: 0.95"),
            argument("--repetition-penalty", type=float, metavar="X", help="of Keskar et al. 2019; default: 1, none"),
            argument("--uniform-top-k", type=positive, metavar="K", help="each of the K likeliest alike, as Graphcore's GPT-2"),
            argument("--stop", metavar="TEXT", help="where a text ends: a text, or a special token's name"),
            argument(
                "--seed", type=int, default=0, metavar="N", help="decides each text, with the prompt's number; default: 0"
            ),
            argument(
                "--batch-size",
                type=positive,
                default=8,
                metavar="N",
                help="prompts at once; changes texts by rounding at most; default: 8",
            ),
            *EXECUTION_OF_BATCHES,
            path("--output", "JSON lines instead of a print", required=False),
        ],
        generate_job,
        records=False,
        sentence_on_stderr=True,
        reads_result=True,
        epilog="Without --prompt and --file prompts are typed, until the end of input or Ctrl-C; a pipe is a file.",
        group="evaluation",
    ),
}
