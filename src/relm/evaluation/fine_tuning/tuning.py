"""Evaluation by fine-tuning, on SQuAD 1.1 or a task of GLUE: files, model and figures of all seeds become one result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from relm.evaluation.evaluated_text import read_content
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.fine_tuning.seeds import BY_DEFAULT, TunedTask, TuningRun, read_encoder, tune_and_score
from relm.evaluation.fine_tuning.tuning_pipeline import require_pipeline
from relm.evaluation.result import Result
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.declaration import load
from relm.recipes.evaluation.fine_tuning import FineTuning, Glue, Squad
from relm.training.interruption import ends_when_asked

TASKS: dict[type[FineTuning], str] = {
    Squad: "relm.evaluation.fine_tuning.squad:SquadTask",
    Glue: "relm.evaluation.fine_tuning.glue:GlueTuning",
}
"""Options of a task -> the class of the task."""
MISMATCHED = "_mismatched"
"""Suffix of the figures of MNLI's second development file."""


@ends_when_asked()
def evaluate_tuning(
    model_folder: Path,
    tokenizer: Path,
    training_file: Path,
    file: Path,
    output: Path,
    task: str,
    options: FineTuning,
    mismatched_file: Path | None = None,
    training_sha256: str | None = None,
    file_sha256: str | None = None,
    mismatched_sha256: str | None = None,
    execution: Execution = ON_THE_HOST,
    how: TuningRun = BY_DEFAULT,
    limit: int | None = None,
) -> str:
    """Fine-tune a model, once for each seed, and write `eval/TASK.json`.

    An interrupted call is resumed by the same call, with the same bytes as result; checkpoints lie in `eval/TASK/`.

    Args:
        model_folder: a BERT or RoBERTa of relm's own, or one of transformers' with the same options.
        file: the development file; of MNLI the matched one.
        options: the task, by their class, and how to train.
        mismatched_file: MNLI's second development file; None: there is none.
        training_sha256, file_sha256, mismatched_sha256: the expected sha256 of each file; None: any.
        limit: the count of questions or examples, from the first on, of each file; None: all.

    Raises:
        Preempted: TERM or INT was received; a checkpoint was saved.
        RelmError: a file has another sha256 or a fault; the model is not a BERT or RoBERTa, or lacks weights; tokenizer and
            model do not belong together; the loss is not finite.
    """
    require_pipeline(execution, options)
    files = {"": (file, file_sha256)} | ({MISMATCHED: (mismatched_file, mismatched_sha256)} if mismatched_file else {})
    contents = {suffix: (path, *read_content(path, sha256)) for suffix, (path, sha256) in files.items()}
    facts: dict[str, str | int] = {"training_sha256": read_content(training_file, training_sha256)[1]}
    encoder, loaded = read_encoder(model_folder, tokenizer), load_tokenizer(tokenizer)
    named = {suffix: (path, content) for suffix, (path, content, _) in contents.items()}
    tuned: TunedTask = load(TASKS[type(options)]).read(options, loaded, named, limit)
    hashes = {f"{suffix.removeprefix('_') or 'file'}_sha256": sha256 for suffix, (_, _, sha256) in contents.items()}
    facts |= {"tokenizer_sha256": loaded.sha256, "precision": execution.tuning_precision}
    facts |= {} if limit is None else {"limit": limit}
    figures, examples = tune_and_score(tuned, encoder, training_file, output, execution, how, {**facts, **hashes})
    names = {f"{suffix.removeprefix('_')}_file".removeprefix("_"): path.name for suffix, (path, *_) in contents.items()}
    protocol = {"in_words": tuned.protocol, **names, **hashes, "training_file": training_file.name, **facts}
    found = {**summarise(figures), **tuned.count(examples)}
    protocol |= options.model_dump()
    Result(task=task, protocol=protocol, figures=found, model_sha256=encoder.sha256).write(output)
    return f"fine-tuned {format_times(options)} {tuned.describe(found, training_file)}"


def summarise(figures: Sequence[Mapping[str, float]]) -> dict[str, float | int]:
    """Return means and standard deviations over the seeds, which are 0 for one seed, and each seed's figures.

    >>> summarise([{"f1": 0.5}, {"f1": 0.75}])
    {'f1': 0.625, 'f1_std': 0.1767766952966369, 'f1_0': 0.5, 'f1_1': 0.75, 'seeds': 2}
    """
    found: dict[str, float | int] = {}
    for name in figures[0]:
        values = [each[name] for each in figures]
        found[name] = float(np.mean(values))
        found[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        found |= {f"{name}_{number}": value for number, value in enumerate(values)}
    return {**found, "seeds": len(figures)}


def format_times(options: FineTuning) -> str:
    """Return how often a model was fine-tuned.

    >>> format_times(Glue(seeds=1)), format_times(Glue(seeds=5))
    ('once', '5 times')
    """
    return "once" if options.seeds == 1 else f"{options.seeds} times"
