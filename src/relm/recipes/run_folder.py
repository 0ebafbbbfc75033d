"""Names of the files in the run folder of a phase. Imports no torch, because the graph uses it."""

from pathlib import Path

from relm.json_shapes import COUNT, LINE, NUMBER, OBJECT, Kind, Nullable

LOG, ORDER, CHECKPOINTS = "train.jsonl", "order.json", "checkpoints.jsonl"
# The resolved recipe, in the folder of a run: what it was asked for, when the recipe has changed since.
RESOLVED = "resolved.json"
# Compiled programs of a device with long compilation times.
COMPILED = "compiled"
# Files of a phase that belong to one machine: programs of its device, its lock, and the records of its files.
SHARDS = "shards.json"
OF_ONE_MACHINE = (COMPILED, "lock", SHARDS)
# Counters of such a device, one line for each training process.
DEVICE_FIGURES = "device.json"
DEVICE_SHAPE = {"processes": [{"after_step": COUNT, "steps": COUNT, "*": NUMBER}]}
# Records from which a part of a phase can be trained again.
RECORDS = (LOG, ORDER, CHECKPOINTS)
# Folder of their final copies, in the folder of a phase.
FINAL_LOGS = "logs"
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.safetensors"
# Files next to the weights of every trained model; one that generates text has a generation_config.json as well.
MODEL_PARTS = ("config.json", "tokenizer.json", "tokenizer_config.json")
# Files of a published run: the records of all steps, and the sha256 of every other file.
PROVENANCE, METADATA = "provenance.json", "ro-crate-metadata.json"
# Findings of `relm compile`, in a run's folder, in its report, and in a published one.
COMPILATION = "compile.json"
# In a run's folder: the result that the run's replaced in results/NAME.
REPLACED = "replaced.json"
# Files of a paper's page; the key of the table of recipes with a control, in `table.json`, is null without such recipes.
PAPERS, TABLE, DIFFERENCES = Path("results/papers"), "table.json", "differences"
PAPER_FILES = ("index.html", "README.md", TABLE)
# Files of a report.
REPORT_FILES = ("README.md", "report.html", "recipe.json", PROVENANCE, METADATA)
# In a run's folder, and in eval/ of a published one: counts of items of tests in the training documents.
# Folder of verdicts in a run's folder.
VERIFY = "verify"
# List of the sha256 of every other published file, in the format of `sha256sum`.
CHECKSUMS = "SHA256SUMS"
# In a line of train.jsonl and in a checkpoint's state.json: the machines that trained the phase so far, in order, each as
# {"after_step": STEP, "machine": NAME}; the name is null where the recipe names no machine.
MACHINES = "machines"
_MACHINES_SHAPE = [{"after_step": COUNT, "machine": Nullable(LINE)}]
# In the line of train.jsonl that a resumed attempt writes first: the step of the checkpoint from which it resumed.
RESUMED_AFTER = "resumed_after"
# In a line of train.jsonl: the published loss of the step, the band around it, and the verdict; only with expect_curve.
CURVE = "curve"
# Columns of a line of train.jsonl that charts draw; a loss that diverged is NaN.
COLUMNS = ("loss", "validation_loss", "learning_rate", "gradient_norm", "tokens_per_second", "memory_bytes")
_FIGURE = Nullable(Kind("a number", lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)))
LINE_SHAPE = {
    "step": COUNT,
    **{f"{column}?": _FIGURE for column in COLUMNS},
    "seconds?": NUMBER,
    f"{RESUMED_AFTER}?": COUNT,
    f"{MACHINES}?": _MACHINES_SHAPE,
}
# In a checkpoint's state.json: the size and sha256 of each log up to its step, the checkpoint's own line included.
LOGS = "logs"
_LOG_SHAPE = {"bytes": COUNT, "sha256": LINE}
# Files of a checkpoint, except its state.json.
CHECKPOINT_FILES = (WEIGHTS, OPTIMIZER)
STATE_SHAPE = {
    "step": COUNT,
    "fingerprint": LINE,
    "phase": LINE,
    "sha256": dict.fromkeys(CHECKPOINT_FILES, LINE),
    "loss?": NUMBER,
    "seconds?": NUMBER,
    "made_on?": OBJECT,
    f"{MACHINES}?": _MACHINES_SHAPE,
    f"{LOGS}?": {f"{LOG}?": _LOG_SHAPE, f"{CHECKPOINTS}?": _LOG_SHAPE},
}


def acceptance_of(log: Path) -> Path:
    """Return the file whose presence accepts a log that differs from the one in the resumed checkpoint."""
    return log.with_name(f"{log.name}.accepted")


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return checkpoints / f"step-{step:08d}"


def final_logs(phase: Path) -> dict[str, Path]:
    """Return name -> path of a finished phase's logs: copies of those that training appends to, if any."""
    copies = phase / FINAL_LOGS
    has_none = not copies.is_dir() and (phase / LOG).is_file() and (phase / "model" / WEIGHTS).is_file()
    return {name: (phase if has_none else copies) / name for name in RECORDS}


def newest_first(run: Path, kind: str, name: str) -> list[Path]:
    """Return the files of a kind, such as `eval`, in a run's folder, newest first, in layouts of earlier versions too."""
    older = run if kind == VERIFY else run / kind
    paths = [*(run / kind).glob(f"*/{name}"), *older.glob(name)]
    return sorted((path for path in paths if path.is_file()), key=lambda path: path.stat().st_mtime_ns, reverse=True)
