"""Steps from a model to figures and texts: one for each declared evaluation, described by its options or by `--job`."""

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.declaration import load
from relm.recipes.evaluation.evaluation_job import EvaluationJob, job_of_document
from relm.recipes.evaluation.evaluations import EVALUATIONS, EvaluationDeclaration
from relm.recipes.evaluation.published_tests import PublishedTest, load_test
from relm.recipes.evaluation.task_trust import FLAG, TRUST, require_trusted_tasks
from relm.recipes.project import Project
from relm.recipes.section import validate
from relm.steps.contract import (
    EXPECTED,
    Argument,
    Arguments,
    Job,
    Step,
    argument,
    command,
    expected_sha256,
    given_keys,
    name_of,
    path,
    paths,
    positive,
    recipe_name,
    section_argument,
)
from relm.steps.execution_options import EXECUTION, EXECUTION_OF_BATCHES, EXECUTION_OF_TUNING, read_execution
from relm.steps.job_spec import JOB, read_job

MODEL = path("--model", "MODEL/model.safetensors, or the folder: relm's own, or any that save_pretrained wrote")
TOKENIZER = path("--tokenizer", "the model's tokenizer.json; default: the one next to the weights", required=False)
LIMIT = argument("--limit", type=positive, metavar="N", help="only the first N examples; the figures are then of these")
# Arguments for each input and each fact of an evaluation; only `--job` has the other facts.
INPUTS: dict[str, list[Argument]] = {
    "manifest": [path("--manifest", "the examples' manifest")],
    "tokenizer": [TOKENIZER],
    "file": [
        path("--test", "the test's file, such as recipes/evaluations/lambada.yaml", required=False),
        path("--file", "the file that is scored: the one that the test names, or your own"),
    ],
    "training_file": [path("--training-file", "the file that the model is fine-tuned on")],
    "mismatched_file": [path("--mismatched-file", "a second file that the same model is scored on", required=False)],
    "task_folder": [
        path("--task-folder", "with your task files for the harness, such as recipes/harness", required=False),
        argument(FLAG, action="store_true", help=f"run the task files of --task-folder, which are programs; so does {TRUST}=1"),
    ],
    "log": [
        paths("--logs", "the train.jsonl of each phase, in order"),
        argument("--trained-on", nargs="+", default=[], metavar="DEVICE", help="device and topology, such as tpu v3-8"),
    ],
}
FACTS: dict[str, Argument] = {
    "context": argument("--context", type=positive, metavar="TOKENS", help="window length"),
    "batch_size": argument("--batch-size", type=positive, metavar="N", help="windows of a batch"),
    "phase": argument(
        "--recipe",
        type=recipe_name,
        metavar="NAME",
        help="a recipe whose last phase has the objective that the examples were made for",
    ),
    "language": argument("--language", metavar="CODE", help="of the text, such as ro; default: the recipe's"),
    "harness_task": argument("--task", dest="harness_task", metavar="NAME", help="as the harness calls it, such as hellaswag"),
}
# Second names of the files of an evaluation that fine-tunes.
ALIASES = {"--file": ["--dev"], "--training-file": ["--train"], "--mismatched-file": ["--mismatched"]}
# Files of a test -> the argument of an evaluation's function with the sha256 of the file.
HASHES = {"training_file": "training_sha256", "file": "file_sha256", "mismatched_file": "mismatched_sha256"}
# Inputs that are one file each, in the order in which a record names them.
FILES = ("manifest", "tokenizer", *HASHES)
# Names of arguments that every command has.
RESERVED = frozenset({"help", "log", "set", "step"})


def list_evaluations(taken: Collection[str]) -> dict[str, Step]:
    """Return the step of each evaluation, extensions included; `taken` has the names of the other steps."""
    steps: dict[str, Step] = {}
    for declaration in EVALUATIONS:
        name = declaration.command
        if name in taken or name in steps:
            raise RelmError(
                f"evaluation {declaration.name}: relm has a step {name!r} already; give the evaluation another command"
            )
        steps[name] = evaluation_step(declaration)
    return steps


def evaluation_step(declaration: EvaluationDeclaration) -> Step:
    """Return the step of one evaluation, whose options are its arguments."""
    inputs = [found for name in (*declaration.inputs, *declaration.optional_inputs) for found in INPUTS[name]]
    if declaration.fine_tunes:
        inputs = [((*names, *ALIASES.get(names[0], ())), given) for names, given in inputs]
    keys = declaration.options.model_fields if declaration.options else {}
    by_default: dict[str, str | None] = dict.fromkeys(keys, "the test's, or " if declaration.is_protocol else "")
    by_default |= dict.fromkeys(declaration.named_options)
    before = [JOB, MODEL, *inputs, *(FACTS[fact] for fact in declaration.facts if fact in FACTS)]
    after = [path("--output", "TASK.json, whose name is the task's")]
    if declaration.takes_limit:
        after.insert(0, LIMIT)
    if not declaration.reads_only_log:
        after = [EXPECTED, *(EXECUTION_OF_TUNING if declaration.fine_tunes else EXECUTION), *after]
    if taken := sorted(keys.keys() & {*RESERVED, *map(name_of, [*before, *after])}):
        raise RelmError(
            f"evaluation {declaration.name}: option {taken[0]} is an argument of its command already; give it another name"
        )
    own = [section_argument(name, field, by_default[name]) for name, field in keys.items()]
    return Step(
        declaration.summary,
        [*before, *own, *after],
        functools.partial(evaluation_job, declaration),
        "evaluation",
        declaration.epilog,
        recorded_as="evaluate",
    )


def evaluation_job(declaration: EvaluationDeclaration, a: Arguments) -> Job:
    """Return the job that the identity, the paths and the execution options of a command make."""
    described, source, of_test = _describe(declaration, a)
    arguments = {"model_folder": model_folder(a), "output": a.output, **described.arguments(source)}
    if (folder := getattr(a, "task_folder", None)) is not None:
        require_trusted_tasks(folder, a.trust_tasks)
    elif described.task_files:
        raise RelmError("--task-folder is missing: the job has files of this folder; give it, such as recipes/harness")
    given: dict[str, Any] = {name: getattr(a, name, None) for name in (*declaration.inputs, *declaration.optional_inputs)}
    expected: dict[Path, str] = {}
    if declaration.reads_only_log:
        files: dict[str, Any] = {"logs": a.logs, "trained_on": dict(zip(("device", "topology"), a.trained_on, strict=False))}
    else:
        expected = _expected(a) | of_test
        given |= {"tokenizer": find_tokenizer(a)} if "tokenizer" in given else {}
        files = given | {HASHES[name]: expected.get(file) for name, file in given.items() if name in HASHES}
    arguments |= files
    if declaration.takes_limit:
        arguments["limit"] = a.limit
    task_files = {folder / name: sha256 for name, sha256 in (described.task_files or {}).items()} if folder else {}

    def run() -> str:
        if not declaration.reads_only_log:
            arguments["execution"] = read_execution(a, arguments["options"] if declaration.fine_tunes else None)
        if declaration.fine_tunes:
            from relm.evaluation.fine_tuning.seeds import TuningRun

            arguments["how"] = TuningRun(a.micro_batch_size, a.checkpoint_interval, a.keep_models)
        return str(load(declaration.run)(**arguments))

    inputs = [*list_weights(a, expected), *(given[name] for name in FILES if given.get(name) is not None), *task_files]
    return Job(run, list(dict.fromkeys(inputs)), [a.output], expected | task_files)


def _describe(declaration: EvaluationDeclaration, a: Arguments) -> tuple[EvaluationJob, Path, dict[Path, str]]:
    """Return the identity of an evaluation, its name in errors, and the hashes of files in a test's description."""
    test = _test(a, declaration)
    if a.job is not None:
        keys = [*(declaration.options.model_fields if declaration.options else ()), "test", *map(name_of, FACTS.values())]
        if given := [key for key in keys if getattr(a, key, None) is not None]:
            raise RelmError(f"--job: describes the evaluation completely; remove --{given[0].replace('_', '-')}")
        job = job_of_document(read_job(a.job))
        if job.evaluation != declaration.name:
            command = EVALUATIONS[job.evaluation].command
            raise RelmError(f"--job: describes {job.evaluation}, and this is `relm {a.step}`; pass it to `relm {command}`")
        return job, Path("--job: options"), {}
    source = a.test if test else Path(declaration.command)
    options = given_keys(declaration.options, a)
    if test is None and (absent := [key for key in declaration.named_options if key not in options]):
        raise RelmError(f"--{absent[0]} is missing; give it, or the test's file with --test")
    if declaration.options is not None:
        options = (getattr(test, declaration.name).model_dump(exclude_unset=True) if test else {}) | options
        validate(declaration.options, options, source)
    named = getattr(a, "recipe", None)
    planned = Project().plan(named).evaluation_identity(declaration.name) if named is not None else {}
    facts = {fact: getattr(a, fact, None) or planned.get(fact) for fact in declaration.facts}
    if absent := [FACTS[fact][0][0] for fact, value in facts.items() if value is None and fact in FACTS]:
        raise RelmError(f"{absent[0]} is missing; give it, or the name of a recipe with this evaluation instead")
    content = {"evaluation": declaration.name, "options": options}
    content |= {str(fact): value for fact, value in facts.items() if value is not None}
    if declaration.names_result_by_output:
        content["task"] = name_task(a.output)
    hashes: dict[Path, str] = {}
    if test is not None:
        files = {name: getattr(a, key) for key, name in test.inputs.items()}
        hashes |= {files[name]: sha256 for name, sha256 in test.sha256.items() if files.get(name) is not None}
    return validate(EvaluationJob, content, source), source, hashes


def name_evaluation(argv: list[str]) -> list[str]:
    """Return the command of an evaluation for `evaluate --job JSON ...`, as earlier versions recorded it."""
    if argv[:2] == ["evaluate", "--job"] and (name := read_job(argv[2]).get("evaluation")) in EVALUATIONS.names:
        return [EVALUATIONS[str(name)].command, *argv[1:]]
    return argv


def _test(a: Arguments, declaration: EvaluationDeclaration) -> PublishedTest | None:
    """Return the test that a command names; None: the user's own text."""
    if getattr(a, "test", None) is None:
        return None
    test = load_test(a.test)
    if test.protocol != declaration.name:
        raise RelmError(f"{a.test}: has protocol {test.protocol}; give it to `relm {EVALUATIONS[test.protocol].command}`")
    return test


def name_task(output: Path) -> str:
    """Return the name of a result: its file's."""
    if output.suffix != ".json" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", output.stem):
        raise RelmError(f"--output {output}: expected TASK.json, where TASK has letters, digits, '.', '_' and '-'")
    return output.stem


def model_folder(a: Arguments) -> Path:
    """Return the model's folder, which may be named by its weights."""
    model: Path = a.model
    if not model.exists():
        raise RelmError(f"{model}: no such file or folder; train it first, or give --model another model's folder or weights")
    return model.parent if model.suffix == ".safetensors" else model


def list_weights(a: Arguments, expected: Mapping[Path, str] = {}) -> list[Path]:
    """Return the files of the model for the record: its weights, if they are one file, and all with a known sha256."""
    weights = model_folder(a) / "model.safetensors"
    return [*([weights] if weights.exists() else []), *expected]


def _expected(a: Arguments) -> dict[Path, str]:
    """Return the files of a published model and of the test with a sha256 in the command."""
    files = [file for name in HASHES if (file := getattr(a, name, None)) is not None]
    return expected_sha256(a, [*(model_folder(a) / name for name in ("model.safetensors", "config.json")), *files])


def find_tokenizer(a: Arguments) -> Path:
    """Return the tokenizer that a command names, or the one in the model's folder."""
    folder = model_folder(a)
    found: Path = a.tokenizer or folder / "tokenizer.json"
    if not found.exists():
        if a.tokenizer is None and not (folder / "config.json").exists():
            raise RelmError(f"{folder}: no config.json in this folder; give --model a model's folder, such as results/NAME")
        raise RelmError(f"{found}: no such file; name the model's tokenizer.json with --tokenizer")
    return found


@command(
    "generate continuations of prompts, and report the time",
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
    argument("--seed", type=int, default=0, metavar="N", help="decides each text, with the prompt's number; default: 0"),
    argument(
        "--batch-size",
        type=positive,
        default=8,
        metavar="N",
        help="prompts at once; changes texts by rounding at most; default: 8",
    ),
    *EXECUTION_OF_BATCHES,
    path("--output", "JSON lines instead of a print", required=False),
    sentence_on_stderr=True,
    reads_result=True,
    epilog="Without --prompt and --file prompts are typed, until the end of input or Ctrl-C; a pipe is a file.",
)
def generate(a: Arguments) -> Job:
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
