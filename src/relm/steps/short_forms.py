"""The short forms of `relm evaluate`: one command for each evaluation, whose options are arguments."""

import argparse
import functools
import re
from collections.abc import Collection
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from relm.errors import RelmError
from relm.recipes.evaluation.evaluation_job import EvaluationJob
from relm.recipes.evaluation.evaluations import EVALUATIONS, EvaluationDeclaration
from relm.recipes.evaluation.published_tests import PublishedTest, load_test
from relm.recipes.section import validate
from relm.steps.contract import (
    EXPECTED,
    FINGERPRINT,
    RECIPE,
    Arguments,
    Job,
    Step,
    argument,
    name_of,
    path,
    plain_yaml,
    plan_of,
    positive,
    recipe_name,
)
from relm.steps.evaluation import (
    EXECUTION,
    EXECUTION_OF_TUNING,
    LIMIT,
    MODEL,
    OUTPUT,
    TASK_FOLDER,
    TOKENIZER,
    ArgumentOfStep,
    build_job,
)
from relm.steps.job_spec import validate_options

# Arguments of a short form for each input and each fact of an evaluation; it takes facts without one from the recipe.
INPUT_ARGUMENTS: dict[str, list[ArgumentOfStep]] = {
    "manifest": [path("--manifest", "the examples' manifest")],
    "tokenizer": [TOKENIZER],
    "file": [
        path("--test", "the test's file, such as recipes/evaluations/lambada.yaml", required=False),
        path("--file", "the file that is scored: the one that the test names, or your own"),
    ],
    "training_file": [path("--training-file", "the file that the model is fine-tuned on")],
    "mismatched_file": [path("--mismatched-file", "a second file that the same model is scored on", required=False)],
    "task_folder": list(TASK_FOLDER),
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
# Second names of the files of an evaluation that fine-tunes.
ALIASES = {"--file": ["--dev"], "--training-file": ["--train"], "--mismatched-file": ["--mismatched"]}
# Names of arguments that every command has.
RESERVED = frozenset({"help", "log", "set", "step"})


def list_short_forms(taken: Collection[str]) -> dict[str, Step]:
    """Return the command of each evaluation, also of those that extensions declared before.

    Args:
        taken: names of the other steps.
    """
    forms: dict[str, Step] = {}
    for declaration in EVALUATIONS:
        name = declaration.command
        if name in taken or name in forms:
            raise RelmError(f"evaluation {declaration.name}: relm has a step {name!r} already; declare another command")
        forms[name] = short_form(declaration)
    return forms


def short_form(declaration: EvaluationDeclaration) -> Step:
    """Return the command of one evaluation, whose options are its arguments."""
    read = (*declaration.inputs, *declaration.optional_inputs)
    inputs = [found for name in read for found in INPUT_ARGUMENTS[name]]
    facts = [found for fact in declaration.facts for found in FACT_ARGUMENTS.get(fact, ())]
    options = declaration.options.model_fields if declaration.options else {}
    if declaration.fine_tunes:
        inputs = [((*names, *ALIASES.get(names[0], ())), given) for names, given in inputs]
    how = EXECUTION_OF_TUNING if declaration.fine_tunes else EXECUTION
    execution = [] if declaration.reads_log_alone else [EXPECTED, *how]
    by_default: dict[str, str | None] = dict.fromkeys(options, "the test's, or " if declaration.is_protocol else "")
    by_default |= dict.fromkeys(declaration.named_options)
    own = [option_argument(name, field, by_default[name]) for name, field in options.items()]
    before, after = [MODEL, *inputs, *facts], [*execution, *([LIMIT] if declaration.takes_limit else []), OUTPUT]
    if taken := sorted(options.keys() & {*RESERVED, *map(name_of, [*before, *after])}):
        raise RelmError(
            f"evaluation {declaration.name}: option {taken[0]} is an argument of its command already; give it another name"
        )
    return Step(
        declaration.summary,
        [*before, *own, *after],
        functools.partial(short_form_job, declaration),
        epilog=f"{declaration.epilog} A short form of `relm evaluate`, whose options go with NAME.".strip(),
        group="evaluation",
    )


def option_argument(name: str, field: FieldInfo, before_default: str | None = "") -> ArgumentOfStep:
    """Return the argument for an option of an evaluation, with the option's own description as help.

    Args:
        before_default: words before the default in the help; None: the help names no default.
    """
    annotation = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    value = field.get_default(call_default_factory=True)
    default = f" Default: {before_default}{value}." if value is not None and before_default is not None else ""
    text = " ".join(f"{field.description or ''}{default}".split()).replace("%", "%%").replace("null", "not given")
    option = f"--{name.replace('_', '-')}"
    if get_origin(annotation) is Literal and all(isinstance(choice, str) for choice in get_args(annotation)):
        return argument(option, choices=get_args(annotation), help=text)
    if get_origin(annotation) is list:
        return argument(option, nargs="*", metavar="TEXT", help=text)
    if annotation not in (int, float, str):
        return argument(option, type=plain_yaml, metavar="VALUE", help=text)
    is_positive = any(isinstance(limit, annotated_types.Gt) for limit in field.metadata)
    kind = positive if annotation is int and is_positive else annotation
    return argument(option, type=kind, metavar="TEXT" if annotation is str else "N", help=text)


def short_form_job(declaration: EvaluationDeclaration, a: Arguments) -> Job:
    """Return the job of a short form."""
    test = _test(a, declaration) if declaration.is_protocol else None
    source = a.test if test else Path(declaration.command)
    content = {
        "evaluation": declaration.name,
        **({"task": name_task(a)} if declaration.names_result_by_output else {}),
        **({"options": _options(declaration, a, test)} if declaration.options else {}),
        **_facts(declaration, a),
    }
    job = validate(EvaluationJob, content, source)
    given = vars(a) | _logs(declaration, a)
    if test is not None:
        given["sha256"] = [
            *a.sha256,
            *(
                (file.name, test.sha256[name])
                for key, name in test.inputs.items()
                if name in test.sha256 and (file := getattr(a, key))
            ),
        ]
    return build_job(job, argparse.Namespace(**given), source)


def _options(declaration: EvaluationDeclaration, a: Arguments, test: PublishedTest | None) -> dict[str, Any]:
    """Return the options that a short form gives, over those of the test's file."""
    assert declaration.options is not None
    given = {key: getattr(a, key) for key in declaration.options.model_fields if getattr(a, key) is not None}
    if test is None and (missing := [key for key in declaration.named_options if key not in given]):
        raise RelmError(f"--{missing[0]} is missing; give it, or the test's file with --test")
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


def name_task(a: Arguments) -> str:
    """Return the name of the result of a short form: its file's."""
    output: Path = a.output
    if output.suffix != ".json" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", output.stem):
        raise RelmError(f"--output {output}: expected TASK.json, of letters, digits, . _ and -: so the task is called")
    return output.stem
