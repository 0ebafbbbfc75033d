"""The step from a model to figures: `relm evaluate` runs any evaluation by the job that describes it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, HOST, list_fine_tuning_devices, list_inference_devices
from relm.recipes.evaluation.evaluation_job import EvaluationJob, job_of_document
from relm.recipes.evaluation.evaluations import EVALUATIONS, EvaluationDeclaration
from relm.recipes.evaluation.fine_tuning import FineTuning
from relm.recipes.evaluation.task_trust import FLAG, TRUST, require_trusted_tasks
from relm.steps.contract import (
    EXPECTED,
    Arguments,
    Job,
    Once,
    Step,
    argument,
    expected_sha256,
    given_path,
    name_of,
    path,
    positive,
    process_count,
)
from relm.steps.job_spec import JOB, read_job
from relm.steps.pipeline_option import PIPELINE, read_pipeline

ArgumentOfStep = tuple[tuple[str, ...], dict[str, Any]]

MODEL = path("--model", "MODEL/model.safetensors, or the folder: relm's own, or any that save_pretrained wrote")
TOKENIZER = path("--tokenizer", "the model's tokenizer.json; default: the one beside the weights", required=False)
OUTPUT = path("--output", "TASK.json, whose name is the task's")
THREADS = argument("--threads", type=process_count, metavar="N", help="threads of the CPU; default: all available cores")
BATCH_TOKENS = argument("--batch-tokens", type=positive, metavar="N", help="tokens at once; default: depends on the device")


def device_argument(choices: Callable[[], list[str]]) -> ArgumentOfStep:
    """Return the argument for the device, one of those that a function lists."""
    return argument("--device", default=HOST, choices=choices, help="default: cpu")


def _list_devices() -> list[str]:
    """Return the devices that some evaluation runs on."""
    return list(dict.fromkeys([*list_inference_devices(), *list_fine_tuning_devices()]))


PRECISION = argument(
    "--precision",
    default="float32",
    choices=("float32", "bfloat16", "float16"),
    help="of matrix products; default: float32; float16: with --device ipu",
)
# Options of IPUs that infer; --pipeline has those of fine-tuning.
_ON_IPUS = (
    argument("--layers-per-ipu", action=Once, type=int, nargs="+", metavar="N", help="layers on each IPU; default: all on one"),
    argument(
        "--available-memory-proportion",
        action=Once,
        type=float,
        nargs="+",
        metavar="X",
        help="share of each IPU's memory for matrix products; default: 0.2 on one IPU, PopTorch's on several",
    ),
    path("--executable-cache", "folder that keeps what is compiled for IPUs", required=False),
)
EXECUTION_OF_BATCHES = (device_argument(list_inference_devices), PRECISION, *_ON_IPUS, THREADS)
EXECUTION = (*EXECUTION_OF_BATCHES, BATCH_TOKENS)
EXECUTION_OF_TUNING = (
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
        "--micro-batch-size", type=positive, metavar="N", help="sequences of a forward pass; default: depends on the device"
    ),
    argument("--checkpoint-interval", type=positive, default=500, metavar="STEPS", help="between checkpoints; default: 500"),
    argument("--keep-models", action="store_true", help="keep the weights of each seed beside its answers"),
)
LIMIT = argument("--limit", type=positive, metavar="N", help="only the first N examples; the figures are then of these")
TASK_FOLDER = (
    path("--task-folder", "with task files of your own for the harness, such as recipes/harness", required=False),
    argument(FLAG, action="store_true", help=f"run the task files of --task-folder, which are programs; so does {TRUST}=1"),
)
# Inputs that are one file each, in the order in which a record names them.
FILES = ("manifest", "tokenizer", "training_file", "file", "mismatched_file")
# Files of a test -> the argument of an evaluation's function that has the sha256 which the file must have.
HASHES = {"training_file": "training_sha256", "file": "file_sha256", "mismatched_file": "mismatched_sha256"}
# Inputs that `relm evaluate` takes -> whether an evaluation that reads one can do without it.
OPTIONAL = {
    "manifest": False,
    "tokenizer": True,
    "file": False,
    "training_file": False,
    "mismatched_file": True,
    "task_folder": True,
    "logs": False,
}


def model_folder(a: Arguments) -> Path:
    """Return the model's folder, which may be named by its weights."""
    model: Path = a.model
    if not model.exists():
        raise RelmError(f"{model}: no such file or folder; --model names a model's folder, or the weights in it")
    return model.parent if model.suffix == ".safetensors" else model


def list_weights(a: Arguments) -> list[Path]:
    """Return the files of the model that a record names: its weights, if they are one file, and all that --sha256 names."""
    weights = model_folder(a) / "model.safetensors"
    return list(dict.fromkeys([*([weights] if weights.exists() else []), *_expected(a)]))


def _expected(a: Arguments) -> dict[Path, str]:
    """Return the files of a published model, and those of the test, with the sha256 that the command gives for each."""
    files = [file for name in HASHES if (file := getattr(a, name, None)) is not None]
    return expected_sha256(a, [*(model_folder(a) / name for name in ("model.safetensors", "config.json")), *files])


def find_tokenizer(a: Arguments) -> Path:
    """Return the tokenizer that a command names, or the one in the model's folder."""
    folder = model_folder(a)
    found: Path = a.tokenizer or folder / "tokenizer.json"
    if not found.exists():
        if a.tokenizer is None and not (folder / "config.json").exists():
            raise RelmError(
                f"{folder}: is not a model's folder, for it has no config.json; give --model one that has, or results/NAME"
            )
        raise RelmError(f"{found}: no such file; name the model's tokenizer.json with --tokenizer")
    return found


def read_execution(a: Arguments, tuning: FineTuning | None = None) -> Any:
    """Return device, precision, batches and the options of IPUs that a command requests, an `Execution`.

    Args:
        a: the arguments of the command, which may lack options that it does not take.
        tuning: the options of an evaluation that fine-tunes a model.
    """
    from relm.evaluation.execution import Execution

    if tuning is None or not DEVICES[a.device].pipelined:  # which has its pipeline's precision
        _require_precision(a)
    pipeline, found = read_pipeline(a, tuning), _read_options_of_ipus(a, tuning)
    by_default = DEVICES[a.device].evaluation_batch_tokens or DEVICES[HOST].evaluation_batch_tokens
    return Execution(
        a.device, a.precision, a.threads, getattr(a, "batch_tokens", None) or by_default, pipeline=pipeline, **found
    )


def _require_precision(a: Arguments) -> None:
    """Raise unless the device computes in the precision."""
    known = {"ipu": ("float32", "float16")}.get(a.device, ("float32", "bfloat16"))
    if a.precision not in known:
        raise RelmError(f"--precision: {a.device} computes in {' and '.join(known)}, found {a.precision}; give one of these")


def _read_options_of_ipus(a: Arguments, tuning: FineTuning | None) -> dict[str, Any]:
    """Return the options of IPUs that a command gives, if its device and its evaluation take them."""
    options = {name_of(option): getattr(a, name_of(option), None) for option in _ON_IPUS}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items() if value is not None}
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if tuning is not None:
            raise RelmError(f"{option} has no effect when a model is fine-tuned; --pipeline splits it over IPUs")
        if not DEVICES[a.device].infers_own:
            raise RelmError(f"{option}: goes with --device ipu or ipu_simulator, found {a.device}; leave it out")
    shares, ipus = given.get("available_memory_proportion"), len(given.get("layers_per_ipu", [0]))
    if shares is not None and (len(shares) != ipus or not all(0 < share <= 1 for share in shares)):
        found = " ".join(f"{share:g}" for share in shares)
        each = "the IPU" if ipus == 1 else f"each of {ipus} IPUs"
        raise RelmError(f"--available-memory-proportion: expected a number above 0 and up to 1 for {each}, found {found}")
    return given


def evaluate_job(a: Arguments) -> Job:
    """Return the job of `relm evaluate`."""
    job = job_of_document(read_job(a.job))
    _require_inputs(job, a)
    return build_job(job, a, source=Path("--job: options"))


def _require_inputs(job: EvaluationJob, a: Arguments) -> None:
    declaration = EVALUATIONS[job.evaluation]
    read = {"logs" if name == "log" else name for name in (*declaration.inputs, *declaration.optional_inputs)}
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
    devices = list_fine_tuning_devices() if declaration.fine_tunes else list_inference_devices()
    if a.device not in devices:
        raise RelmError(f"--device: {declaration.name} runs on {', '.join(devices)}, found {a.device}; give one of these")


def build_job(job: EvaluationJob, a: Arguments, source: Path) -> Job:
    """Return the job that an identity and the paths and execution options of a command make."""
    declaration = EVALUATIONS[job.evaluation]
    if "task_folder" in declaration.inputs and a.task_folder is not None:
        require_trusted_tasks(a.task_folder, a.trust_tasks)
    expected = _expected(a)
    arguments = {
        "model_folder": model_folder(a),
        "output": a.output,
        **job.arguments(source),
        **_input_arguments(declaration, a, expected),
        **({"limit": a.limit} if declaration.takes_limit else {}),
    }
    tuning = arguments["options"] if declaration.fine_tunes else None

    def run() -> str:
        execution = {} if declaration.reads_log_alone else {"execution": read_execution(a, tuning)}
        return str(load(declaration.run)(**arguments, **execution, **(_tuning_run(a) if tuning else {})))

    read = list(dict.fromkeys([*list_weights(a), *_inputs(declaration, a, job)]))  # a test file with a sha256 is in both
    return Job(run, read, [a.output], expected | _expected_task_files(job, a))


def _tuning_run(a: Arguments) -> dict[str, Any]:
    """Return how a short form has a training executed, if it is one."""
    from relm.evaluation.fine_tuning.seeds import TuningRun

    return {"how": TuningRun(a.micro_batch_size, a.checkpoint_interval, a.keep_models)} if hasattr(a, "keep_models") else {}


def _given_inputs(declaration: EvaluationDeclaration, a: Arguments) -> dict[str, Any]:
    """Return each input of an evaluation that a command gives; None for one that it need not give."""
    found = {name: getattr(a, name, None) for name in (*declaration.inputs, *declaration.optional_inputs)}
    return {name: find_tokenizer(a) if name == "tokenizer" else value for name, value in found.items()}


def _input_arguments(declaration: EvaluationDeclaration, a: Arguments, expected: Mapping[Path, str]) -> dict[str, Any]:
    """Return the keyword arguments of the evaluation's function that are files, or are about these."""
    if declaration.reads_log_alone:
        return {"logs": a.logs, "trained_on": dict(zip(("device", "topology"), a.trained_on, strict=False))}
    given = _given_inputs(declaration, a)
    hashes = {HASHES[name]: expected.get(file) for name, file in given.items() if name in HASHES}
    return {**given, **hashes}


def _inputs(declaration: EvaluationDeclaration, a: Arguments, job: EvaluationJob) -> list[Path]:
    """Return the files beside the model that the record names."""
    given = _given_inputs(declaration, a)
    return [*(given[name] for name in FILES if given.get(name) is not None), *_expected_task_files(job, a)]


def _expected_task_files(job: EvaluationJob, a: Arguments) -> dict[Path, str]:
    """Return the harness's task files of one's own, with the sha256 that the identity gives for each."""
    return {a.task_folder / name: sha256 for name, sha256 in (job.task_files or {}).items()}


STEPS: dict[str, Step] = {
    "evaluate": Step(
        "run one evaluation, described by its identity as the graph does",
        [
            (JOB[0], {**JOB[1], "required": True}),
            MODEL,
            EXPECTED,
            path("--manifest", "the examples' manifest", required=False),
            TOKENIZER,
            path("--file", "the file of a published test", required=False),
            path("--training-file", "the file that a model is fine-tuned on for the test", required=False),
            path("--mismatched-file", "a second file of the test that the same model is scored on", required=False),
            *TASK_FOLDER,
            argument("--logs", type=given_path, nargs="+", metavar="PATH", help="the train.jsonl of each phase, in order"),
            argument(
                "--trained-on",
                action=Once,
                nargs="+",
                default=[],
                metavar="DEVICE",
                help="with --logs: device and topology, such as tpu v3-8",
            ),
            device_argument(_list_devices),
            PRECISION,
            *_ON_IPUS,
            THREADS,
            PIPELINE,
            BATCH_TOKENS,
            LIMIT,
            OUTPUT,
        ],
        evaluate_job,
        epilog="Each evaluation has a command of its own as well, whose options are arguments.",
        group="evaluation",
    ),
}
