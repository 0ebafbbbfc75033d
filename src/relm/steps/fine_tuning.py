"""The step from an encoder to its figures on a task that it is fine-tuned on."""

from pathlib import Path

from relm.recipes.fine_tuning import Squad
from relm.steps.contract import EXPECTED, Arguments, Job, Step, argument, expected_sha256, path, positive
from relm.steps.evaluation import EXECUTION, MODEL, TOKENIZER, execution_of_batches, find_tokenizer, model_folder
from relm.steps.job_spec import validate_options
from relm.steps.short_forms import name_task, option_argument


def squad_job(a: Arguments) -> Job:
    """Return the job of `relm squad`.

    Raises:
        RelmError: an option has a fault, or a file of the model is absent.
    """
    given = {key: getattr(a, key) for key in Squad.model_fields if getattr(a, key) is not None}
    options = validate_options(Squad, given, Path("squad"), {})
    folder, tokenizer, task = model_folder(a), find_tokenizer(a), name_task(a)
    weights = folder / "model.safetensors"
    expected = expected_sha256(a, [weights, folder / "config.json", a.train, a.dev])

    def run() -> str:
        from relm.evaluation.squad import TuningRun, evaluate_squad

        return evaluate_squad(
            folder,
            tokenizer,
            training_file=a.train,
            file=a.dev,
            output=a.output,
            task=task,
            options=options,
            execution=execution_of_batches(a),
            how=TuningRun(a.micro_batch_size, a.checkpoint_interval, a.keep_models),
        )

    read = list(dict.fromkeys([*([weights] if weights.exists() else []), tokenizer, a.train, a.dev, *expected]))
    return Job(run, read, [a.output], expected)


STEPS: dict[str, Step] = {
    "squad": Step(
        "fine-tune a BERT or RoBERTa on SQuAD 1.1 with several seeds, and score its answers: exact match and F1",
        [
            MODEL,
            TOKENIZER,
            path("--train", "train-v1.1.json"),
            path("--dev", "dev-v1.1.json, whose questions are answered"),
            *(option_argument(name, field) for name, field in Squad.model_fields.items()),
            EXPECTED,
            *EXECUTION,
            argument(
                "--micro-batch-size", type=positive, metavar="N", help="sequences of a forward pass; default: the whole batch"
            ),
            argument(
                "--checkpoint-interval", type=positive, default=500, metavar="STEPS", help="between checkpoints; default: 500"
            ),
            argument("--keep-models", action="store_true", help="keep the weights of each seed beside its answers"),
            path("--output", "TASK.json, whose name is the task's; runs and answers are written to the folder TASK beside it"),
        ],
        squad_job,
        epilog="TERM or INT: saves a checkpoint and exits with 75; the same command resumes, with the same bytes as result.",
        group="evaluation",
    ),
}
