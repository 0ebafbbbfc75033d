"""Steps from a model to figures: `relm evaluate`, its short forms for users, and `relm generate`."""

import argparse
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from relm.errors import RelmError
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, HOST, list_evaluation_devices
from relm.recipes.evaluations import EVALUATIONS, EvaluationDeclaration, EvaluationJob, PublishedTest, load_test
from relm.recipes.section import validate
from relm.steps.contract import (
    EXPECTED,
    FINGERPRINT,
    RECIPE,
    Arguments,
    Job,
    Step,
    argument,
    expected_sha256,
    path,
    plan_of,
    positive,
    recipe_name,
)
from relm.steps.job_spec import JOB, read_job, validate_options

ArgumentOfStep = tuple[tuple[str, ...], dict[str, Any]]

MODEL = path("--model", "MODEL/model.safetensors, or the folder: relm's own, or any that save_pretrained wrote")
TOKENIZER = path("--tokenizer", "the model's tokenizer.json; default: the one beside the weights", required=False)
OUTPUT = path("--output", "TASK.json, whose name is the task's")
EXECUTION = (
    argument("--device", default=HOST, choices=list_evaluation_devices, help="default: cpu"),
    argument("--precision", default="float32", choices=("float32", "bfloat16"), help="of matrix products; default: float32"),
    argument("--threads", type=positive, metavar="N", help="threads of the CPU; default: all available cores"),
    argument("--batch-tokens", type=positive, metavar="N", help="tokens at once; default: depends on the device"),
)
LIMIT = argument("--limit", type=positive, metavar="N", help="only the first N examples; the figures are then of these")
# Arguments of a short form for each input and each fact of an evaluation; it takes facts without one from the recipe.
INPUT_ARGUMENTS: dict[str, list[ArgumentOfStep]] = {
    "manifest": [path("--manifest", "the examples' manifest")],
    "tokenizer": [TOKENIZER],
    "file": [
        path("--test", "the test's file, such as recipes/evaluations/lambada.yaml", required=False),
        path("--file", "the text that it names, or one of your own"),
    ],
    "task_folder": [path("--task-folder", "with task files of your own, such as recipes/harness", required=False)],
    "log": [RECIPE, FINGERPRINT],
}
FACT_ARGUMENTS: dict[str, list[ArgumentOfStep]] = {
    "context": [argument("--context", type=positive, required=True, metavar="TOKENS", help="window length")],
    "batch_size": [argument("--batch-size", type=positive, required=True, metavar="N", help="windows of a batch")],
    "phase": [
        argument(
            "--recipe",
            type=recipe_name,
            required=True,
            metavar="NAME",
            help="a recipe whose last phase has the objective that the examples were made for",
        )
    ],
    "language": [argument("--language", metavar="CODE", help="of the text, such as ro; default: the recipe's")],
    "harness_task": [
        argument(
            "--task", dest="harness_task", required=True, metavar="NAME", help="as the harness calls it, such as hellaswag"
        )
    ],
}
# Inputs that are one file each, in the order in which a record names them.
FILES = ("manifest", "tokenizer", "file")
# Inputs that `relm evaluate` takes -> whether an evaluation that reads one can do without it.
OPTIONAL = {"manifest": False, "tokenizer": True, "file": False, "task_folder": True, "logs": False}


def _folder(a: Arguments) -> Path:
    """Return the model's folder, which may be named by its weights."""
    model: Path = a.model
    if not model.exists():
        raise RelmError(f"{model}: no such file or folder; --model names a model's folder, or the weights in it")
    return model.parent if model.suffix == ".safetensors" else model


def _task(a: Arguments) -> str:
    """Return the name of the result of a short form: its file's."""
    output: Path = a.output
    if output.suffix != ".json" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", output.stem):
        raise RelmError(f"--output {output}: expected TASK.json, of letters, digits, . _ and -: so the task is called")
    return output.stem


def _weights(a: Arguments) -> list[Path]:
    """Return the files of the model that a record names: its weights, if they are one file, and all that --sha256 names."""
    weights = _folder(a) / "model.safetensors"
    return list(dict.fromkeys([*([weights] if weights.exists() else []), *_expected(a)]))


def _expected(a: Arguments) -> dict[Path, str]:
    """Return the files of a published model, and the test file, with the sha256 that the command gives for each."""
    file = getattr(a, "file", None)
    return expected_sha256(
        a, [*(_folder(a) / name for name in ("model.safetensors", "config.json")), *([file] if file else [])]
    )


def _tokenizer(a: Arguments) -> Path:
    folder = _folder(a)
    found: Path = a.tokenizer or folder / "tokenizer.json"
    if not found.exists():
        if a.tokenizer is None and not (folder / "config.json").exists():
            raise RelmError(
                f"{folder}: is not a model's folder, for it has no config.json; give --model one that has, or results/NAME"
            )
        raise RelmError(f"{found}: no such file; name the model's tokenizer.json with --tokenizer")
    return found


def _execution(a: Arguments) -> Any:
    from relm.evaluation.models import Execution

    return Execution(a.device, a.precision, a.threads, a.batch_tokens or DEVICES[a.device].evaluation_batch_tokens)


# --- one command for all evaluations ----------------------------------------------------------------------------------------


def evaluate_job(a: Arguments) -> Job:
    """Return the job of `relm evaluate`.

    Raises:
        RelmError: the identity has faults, or the evaluation reads other files than those that are given.
    """
    job = validate(EvaluationJob, read_job(a.job), Path("--job"))
    _require_inputs(job, a)
    return _job(job, a, source=Path("--job: options"))


def _require_inputs(job: EvaluationJob, a: Arguments) -> None:
    declaration = EVALUATIONS[job.evaluation]
    read = {"logs" if name == "log" else name for name in declaration.inputs}
    for name, optional in OPTIONAL.items():
        option, is_given = f"--{name.replace('_', '-')}", getattr(a, name) is not None
        if is_given and name not in read:
            raise RelmError(f"{option}: {declaration.name} does not read it; leave it out")
        if not is_given and name in read and not optional:
            raise RelmError(f"{option} is missing: {declaration.name} reads it; give it")
    if job.task_files and a.task_folder is None:
        raise RelmError("--task-folder is missing: the job has files of this folder; give it, such as recipes/harness")
    if a.limit is not None and not declaration.takes_limit:
        raise RelmError(f"--limit: {declaration.name} takes none; leave it out")


def _job(job: EvaluationJob, a: Arguments, source: Path) -> Job:
    """Return the job that an identity and the paths and execution options of a command make."""
    declaration = EVALUATIONS[job.evaluation]
    expected = _expected(a)
    arguments = {
        "model_folder": _folder(a),
        "output": a.output,
        **job.arguments(source),
        **_input_arguments(declaration, a, expected),
        **({"limit": a.limit} if declaration.takes_limit else {}),
    }

    def run() -> str:
        execution = {} if declaration.reads_log_alone else {"execution": _execution(a)}
        return str(load(declaration.run)(**arguments, **execution))

    read = list(dict.fromkeys([*_weights(a), *_inputs(declaration, a, job)]))  # a test file with a sha256 is in both
    return Job(run, read, [a.output], expected | _expected_task_files(job, a))


def _input_arguments(declaration: EvaluationDeclaration, a: Arguments, expected: Mapping[Path, str]) -> dict[str, Any]:
    """Return the keyword arguments of the evaluation's function that are files, or are about these."""
    found: dict[str, Any] = {}
    for name in declaration.inputs:
        if name == "tokenizer":
            found[name] = _tokenizer(a)
        elif name == "log":
            found |= {"logs": a.logs, "trained_on": dict(zip(("device", "topology"), a.trained_on, strict=False))}
        else:
            found[name] = getattr(a, name)
    return found | ({"file_sha256": expected.get(a.file)} if declaration.is_protocol else {})


def _inputs(declaration: EvaluationDeclaration, a: Arguments, job: EvaluationJob) -> list[Path]:
    """Return the files beside the model that the record names."""
    read = [_tokenizer(a) if name == "tokenizer" else getattr(a, name) for name in FILES if name in declaration.inputs]
    return [*read, *_expected_task_files(job, a)]


def _expected_task_files(job: EvaluationJob, a: Arguments) -> dict[Path, str]:
    """Return the harness's task files of one's own, with the sha256 that the identity gives for each."""
    return {a.task_folder / name: sha256 for name, sha256 in (job.task_files or {}).items()}


# --- its short forms --------------------------------------------------------------------------------------------------------


def short_form(declaration: EvaluationDeclaration) -> Step:
    """Return the command of one evaluation, whose options are its arguments."""
    inputs = [found for name in declaration.inputs for found in INPUT_ARGUMENTS[name]]
    facts = [found for fact in declaration.facts for found in FACT_ARGUMENTS.get(fact, ())]
    options = declaration.options.model_fields if declaration.options else {}
    execution = [] if declaration.reads_log_alone else [EXPECTED, *EXECUTION]
    own = [
        option_argument(name, field, "the test's, or " if declaration.is_protocol else "") for name, field in options.items()
    ]
    limit = [LIMIT] if declaration.takes_limit else []
    return Step(
        declaration.summary,
        [MODEL, *inputs, *facts, *own, *execution, *limit, OUTPUT],
        functools.partial(short_form_job, declaration),
        epilog=f"{declaration.epilog} A short form of `relm evaluate`.".strip(),
    )


def option_argument(name: str, field: FieldInfo, before_default: str = "") -> ArgumentOfStep:
    """Return the argument for an option of an evaluation, with the option's own description as help."""
    annotation = field.annotation
    if get_origin(annotation) is UnionType:
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    default = f" Default: {before_default}{field.default}." if field.default is not None else ""
    text = " ".join(f"{field.description}{default}".split()).replace("%", "%%").replace("null", "not given")
    option = f"--{name.replace('_', '-')}"
    if get_origin(annotation) is Literal:
        return argument(option, choices=get_args(annotation), help=text)
    if get_origin(annotation) is list:
        return argument(option, nargs="*", metavar="TEXT", help=text)
    is_positive = any(isinstance(limit, annotated_types.Gt) for limit in field.metadata)
    kind = positive if annotation is int and is_positive else annotation
    return argument(option, type=kind, metavar="TEXT" if annotation is str else "N", help=text)


def short_form_job(declaration: EvaluationDeclaration, a: Arguments) -> Job:
    """Return the job of a short form.

    Raises:
        RelmError: an option, the recipe or the test's file has faults.
    """
    test = _test(a, declaration) if declaration.is_protocol else None
    source = a.test if test else Path(declaration.command)
    content = {
        "evaluation": declaration.name,
        **({"task": _task(a)} if declaration.names_result_by_output else {}),
        **({"options": _options(declaration, a, test)} if declaration.options else {}),
        **_facts(declaration, a),
    }
    job = validate(EvaluationJob, content, source)
    given = vars(a) | _logs(declaration, a)
    if test is not None:
        given["sha256"] = [*a.sha256, (a.file.name, test.files[test.file].sha256)]
    return _job(job, argparse.Namespace(**given), source)


def _options(declaration: EvaluationDeclaration, a: Arguments, test: PublishedTest | None) -> dict[str, Any]:
    """Return the options that a short form gives, over those of the test's file."""
    assert declaration.options is not None
    given = {key: getattr(a, key) for key in declaration.options.model_fields if getattr(a, key) is not None}
    options = (getattr(test, declaration.name).model_dump(exclude_unset=True) if test else {}) | given
    validate_options(declaration.options, options, a.test if test else Path(declaration.command), {})
    return options


def _facts(declaration: EvaluationDeclaration, a: Arguments) -> dict[str, Any]:
    """Return the facts that a short form gives, over those of its recipe."""
    planned = plan_of(a).evaluation_identity(declaration.name) if hasattr(a, "recipe") else {}
    facts = {fact: getattr(a, fact, None) or planned.get(fact) for fact in declaration.facts}
    return {fact: value for fact, value in facts.items() if value is not None}


def _logs(declaration: EvaluationDeclaration, a: Arguments) -> dict[str, Any]:
    """Return the logs of a recipe's phases, and what trained them, as `relm evaluate` has them."""
    if not declaration.reads_log_alone:
        return {}
    plan = plan_of(a)
    run = plan.recipe.run
    return {"logs": plan.logs, "trained_on": [run.device, *([run.topology] if run.topology else [])]}


def _test(a: Arguments, declaration: EvaluationDeclaration) -> PublishedTest | None:
    """Return the test that a command names; None: the text is one's own."""
    if a.test is None:
        return None
    test = load_test(a.test)
    if test.protocol != declaration.name:
        raise RelmError(f"{a.test}: has protocol {test.protocol}; give it to `relm {EVALUATIONS[test.protocol].command}`")
    return test


def generate_job(a: Arguments) -> Job:
    from relm.evaluation.generate import run_generate
    from relm.evaluation.generation import Writing
    from relm.evaluation.models import Execution
    from relm.evaluation.sampling import requested_sampling

    if a.prompt and a.file is not None:
        raise RelmError("generate: give either --prompt or --file")
    sampling = requested_sampling(a.greedy, a.temperature, a.top_k, a.top_p, a.repetition_penalty, a.uniform_top_k)
    writing = Writing(a.length, sampling, a.stop, a.seed, a.batch_size)
    execution = Execution(a.device, a.precision, a.threads)
    return Job(
        lambda: run_generate(_folder(a), _tokenizer(a), a.prompt, a.file, writing, a.output, execution),
        inputs=[*_weights(a), _tokenizer(a), *([a.file] if a.file else [])],
    )


STEPS: dict[str, Step] = {
    "evaluate": Step(
        "run one evaluation, described by its identity as the graph does",
        [
            (JOB[0], {**JOB[1], "required": True}),
            MODEL,
            EXPECTED,
            path("--manifest", "the examples' manifest", required=False),
            TOKENIZER,
            path("--file", "the text of a published test", required=False),
            path("--task-folder", "with task files of your own for the harness, such as recipes/harness", required=False),
            argument("--logs", type=Path, nargs="+", metavar="PATH", help="the train.jsonl of each phase, in order"),
            argument(
                "--trained-on",
                nargs="+",
                default=[],
                metavar="DEVICE",
                help="with --logs: device and topology, such as tpu v3-8",
            ),
            *EXECUTION,
            LIMIT,
            OUTPUT,
        ],
        evaluate_job,
        epilog="Each evaluation has a command of its own as well, whose options are arguments.",
    ),
    **{declaration.command: short_form(declaration) for declaration in EVALUATIONS},
    "generate": Step(
        "generate continuations of prompts, and report the time",
        [
            MODEL,
            TOKENIZER,
            argument("--prompt", nargs="+", metavar="TEXT", help="prompts; default: --file, or they are typed"),
            path("--file", "prompts, one per line", required=False),
            argument("--length", type=positive, default=128, metavar="N", help="most tokens after each prompt; default: 128"),
            argument("--greedy", action="store_true", help="always the likeliest token"),
            argument("--temperature", type=float, metavar="X", help="divides the logits; default: 0.8"),
            argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens, 0: all; default: 50"),
            argument("--top-p", type=float, metavar="P", help="only the likeliest that reach P together; default: 0.95"),
            argument("--repetition-penalty", type=float, metavar="X", help="of Keskar et al. 2019; default: 1, none"),
            argument("--uniform-top-k", type=positive, metavar="K", help="each of the K likeliest alike, as Graphcore's GPT-2"),
            argument("--stop", metavar="TEXT", help="where a text ends: a text, or a special token's name"),
            argument("--seed", type=int, default=0, metavar="N", help="of the sampling; default: 0"),
            argument("--batch-size", type=positive, default=8, metavar="N", help="prompts at once; default: 8"),
            *EXECUTION[:3],
            path("--output", "JSON lines instead of a print", required=False),
        ],
        generate_job,
        records=False,
        epilog="Without --prompt and --file prompts are typed, until the end of input or Ctrl-C; a pipe is a file.",
    ),
}
