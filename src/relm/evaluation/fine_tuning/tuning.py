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

    The model is relm's own BERT or RoBERTa, or one of transformers with the same options. The class of `options` decides the
    task. `file` is the development file, for MNLI the matched one. TERM or INT saves a checkpoint in `eval/TASK/` and raises
    Preempted; the same call resumes, to the same bytes.
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
    times = "once" if options.seeds == 1 else f"{options.seeds} times"
    return f"fine-tuned {times} {tuned.describe(found, training_file)}"


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
