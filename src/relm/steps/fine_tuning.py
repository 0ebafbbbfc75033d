"""The steps from an encoder to its figures on a task that it is fine-tuned on."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from relm.recipes.devices import list_fine_tuning_devices
from relm.recipes.evaluation.fine_tuning import FineTuning, Glue, Squad
from relm.steps.contract import EXPECTED, Arguments, Job, Step, argument, expected_sha256, path, positive
from relm.steps.evaluation import (
    BATCH_TOKENS,
    MODEL,
    THREADS,
    TOKENIZER,
    ArgumentOfStep,
    count_batch_tokens,
    device_argument,
    find_tokenizer,
    model_folder,
)
from relm.steps.job_spec import validate_options
from relm.steps.pipeline_option import PIPELINE, read_pipeline
from relm.steps.short_forms import name_task, option_argument
from relm.training.interruption import ends_when_asked


def tuning_job(a: Arguments, section: type[FineTuning]) -> Job:
    """Return the job of `relm squad` or `relm glue`."""
    options, folder, tokenizer, task = _read_options(a, section), model_folder(a), find_tokenizer(a), name_task(a)
    execution, mismatched = _execution(a, options), getattr(a, "mismatched", None)

    def run() -> str:
        from relm.evaluation.fine_tuning.tuning import evaluate_tuning

        return evaluate_tuning(
            folder,
            tokenizer,
            training_file=a.train,
            file=a.dev,
            output=a.output,
            task=task,
            options=options,
            mismatched_file=mismatched,
            execution=execution,
            how=_tuning_run(a),
        )

    return _job(a, run, [file for file in (a.train, a.dev, mismatched) if file is not None])


def _read_options(a: Arguments, section: type[FineTuning]) -> FineTuning:
    """Return the options that a command gives."""
    given = {key: getattr(a, key) for key in section.model_fields if getattr(a, key) is not None}
    return validate_options(section, given, Path(section.__name__.lower()), {})


def _execution(a: Arguments, options: FineTuning) -> Any:
    """Return device, precision, threads, batches and pipeline that a command requests, an `Execution`."""
    from relm.evaluation.execution import Execution

    return Execution(a.device, a.precision, a.threads, count_batch_tokens(a), pipeline=read_pipeline(a, options))


def _tuning_run(a: Arguments) -> Any:
    """Return how a command has the training executed, a `TuningRun`."""
    from relm.evaluation.fine_tuning.seeds import TuningRun

    return TuningRun(a.micro_batch_size, a.checkpoint_interval, a.keep_models)


def _job(a: Arguments, run: Callable[[], str], files: list[Path]) -> Job:
    """Return the job of a function that reads a model and some files, with the hashes that the command gives for them."""
    folder = model_folder(a)
    weights = folder / "model.safetensors"
    expected = expected_sha256(a, [weights, folder / "config.json", *files])
    read = list(dict.fromkeys([*([weights] if weights.exists() else []), find_tokenizer(a), *files, *expected]))
    return Job(ends_when_asked()(run), read, [a.output], expected)


def _arguments(files: list[ArgumentOfStep], section: type[FineTuning], own: dict[str, ArgumentOfStep]) -> list[ArgumentOfStep]:
    """Return the arguments of a command.

    Args:
        files: those of the task's files.
        section: the options.
        own: option -> its argument, where it is not that of a short form.
    """
    return [
        MODEL,
        TOKENIZER,
        *files,
        *(own.get(name) or option_argument(name, field) for name, field in section.model_fields.items()),
        EXPECTED,
        device_argument(list_fine_tuning_devices),
        argument(
            "--precision",
            default="float32",
            choices=("float32", "bfloat16"),
            help="of matrix products; default: float32, which a tpu rounds to bfloat16; an ipu has its pipeline's",
        ),
        PIPELINE,
        THREADS,
        BATCH_TOKENS,
        argument(
            "--micro-batch-size", type=positive, metavar="N", help="sequences of a forward pass; default: the whole batch"
        ),
        argument(
            "--checkpoint-interval", type=positive, default=500, metavar="STEPS", help="between checkpoints; default: 500"
        ),
        argument("--keep-models", action="store_true", help="keep the weights of each seed beside its answers"),
        path("--output", "TASK.json, whose name is the task's; runs and answers are written to the folder TASK beside it"),
    ]


_TASK = argument(
    "--task",
    required=True,
    choices=get_args(Glue.model_fields["task"].annotation),
    help="of GLUE, by the name of its folder in the hub's copy, nyu-mll/glue",
)
_EPILOG = "TERM or INT: saves a checkpoint and exits with 75; the same command resumes, with the same bytes as result."
STEPS: dict[str, Step] = {
    "squad": Step(
        "fine-tune a BERT or RoBERTa on SQuAD 1.1 with several seeds, and score its answers: exact match and F1",
        _arguments(
            [path("--train", "train-v1.1.json"), path("--dev", "dev-v1.1.json, whose questions are answered")], Squad, {}
        ),
        partial(tuning_job, section=Squad),
        epilog=_EPILOG,
        group="evaluation",
    ),
    "glue": Step(
        "fine-tune a BERT or RoBERTa on a task of GLUE with several seeds, and score its classes or scores",
        _arguments(
            [
                path("--train", "the task's training file, Parquet of the hub's copy or TSV of the original release"),
                path("--dev", "the development file that is scored, of MNLI the matched one"),
                path("--mismatched", "MNLI's mismatched development file, which is scored as well", required=False),
            ],
            Glue,
            {"task": _TASK},
        ),
        partial(tuning_job, section=Glue),
        epilog=_EPILOG,
        group="evaluation",
    ),
}
