"""The command of the language-model evaluation harness, in a separate environment, and its results."""

import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from relm.artifact import read_json, sha256_of, write_json
from relm.errors import RelmError

LAST_LINES = 2
# The warning about an example that is too long for the model.
TRUNCATED = "Combined length of context"
# A cache folder in the log of `datasets`; for data of the hub, its name is the revision.
CACHED = re.compile(r"/(?:([^/\s]+)___)?([^/\s]+)/[^/\s]+/[^/\s]+/([0-9a-f]{40})\b")
# Lines that name no error: those of a traceback, progress and warnings.
BETWEEN_ERRORS = re.compile(r"\s|Traceback |The above exception|During handling|.*(it/s\]|examples/s\]| WARNING )")
# Errors of the harness -> advice.
ADVICE = {
    "Connect(ion|Timeout)?Error|OfflineModeIsEnabled|LocalEntryNotFoundError|ConnectTimeout": "evaluate where there is a "
    "network (HF_HUB_OFFLINE unset), or first there with the same HF_HOME",
    "Tasks not found": "`.venv/harness/bin/lm_eval ls tasks` lists them",
}


class HarnessLog(NamedTuple):
    """Lines of the harness to keep."""

    last: deque[str]
    """The newest lines."""
    truncated: list[str]
    """Warnings about examples that are too long for the model."""
    revisions: dict[str, str]
    """Name of data on the hub -> their revision."""


def default_python() -> Path:
    """Return the interpreter of the harness's environment."""
    return Path(sys.prefix) / "harness" / "bin" / "python"


def require_harness(python: Path | None) -> Path:
    """Return the given interpreter or the default one, or raise if it does not exist."""
    python = python or default_python()
    if not python.exists():
        raise RelmError(f"{python}: the harness's environment does not exist; `make harness` makes it")
    return python


def run_harness(request: Mapping[str, Any], made: Path, threads: int, task_folder: Path | None, python: Path) -> dict[str, Any]:
    """Return the harness's results, with `truncated`, `data` and `task_files` for the protocol.

    The request has settings of `lm_eval run`, as in a file for `--config`. The harness writes to `made`. Paths in the user's
    task files are relative to `task_folder`.
    """
    own = task_folder.resolve() if task_folder else None
    for task_file in sorted(own.rglob("*.yaml")) if own else ():
        _require_readable(task_file)  # the harness would leave it out
    model = {"dtype": "float32", "softmax_dtype": "float32", "trust_remote_code": False, **request["model_args"]}
    fixed = {"model": "hf", "model_args": model, "include_path": str(own) if own else None, "output_path": str(made)}
    write_json(made / "request.json", {**request, **fixed})
    dies_with_parent = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    command = [*dies_with_parent, str(python), "-I", "-B", "-m", "lm_eval", "run", "--config", str(made / "request.json")]
    status, said = run_and_show(command, own, threads)
    path = next(made.rglob("results_*.json"), None)
    if path is None:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        words = " | ".join([*said.last][-LAST_LINES:]) or "none"
        advice = [f"; {words}" for pattern, words in ADVICE.items() if re.search(pattern, " ".join(said.last))]
        raise RelmError(f"{', '.join(request['tasks'])}: the harness {how}; its last words: {words}{''.join(advice)}")
    found = dict(read_json(path, finite=False))  # a figure may be NaN
    data = {file for config in found["configs"].values() for file in list_data_files(config, own or Path.cwd())}
    return found | {
        "truncated": len(said.truncated),
        "data": said.revisions | {file.name: sha256_of(file) for file in sorted(data)},
        "task_files": hash_task_files(own) if own else {},
    }


def run_and_show(command: list[str], folder: Path | None, threads: int) -> tuple[int, HarnessLog]:
    """Run a command in a folder and show its standard error; return its status and log."""
    environment = {
        **os.environ,
        "HF_EVALUATE_OFFLINE": "1",  # metrics of the hub are programs; the harness's own tasks need none
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_MININTERVAL": "1" if sys.stderr.isatty() else "30",
        "OMP_NUM_THREADS": str(threads),
        "LMEVAL_LOG_LEVEL": "WARNING",
        "DATASETS_VERBOSITY": "info",  # it names the revisions of data
    }
    said = HarnessLog(deque(maxlen=100), [], {})
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            text = line.decode(errors="replace")
            said.truncated.extend([text] if TRUNCATED in text else [])
            for owner, name, sha in CACHED.findall(text):
                said.revisions[f"hf://datasets/{f'{owner}/' * bool(owner)}{name}"] = f"revision {sha}"
            said.last.extend(part for part in re.split(r"[\r\n]", text) if part and not BETWEEN_ERRORS.match(part))
            if TRUNCATED not in text or len(said.truncated) == 1:
                sys.stderr.write(text)
                sys.stderr.flush()
        return process.wait(), said
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def list_data_files(config: Mapping[str, Any], folder: Path) -> Iterator[Path]:
    """Yield the local files under `dataset_kwargs` in a task's configuration; their paths are relative to a folder."""
    left: list[Any] = [config.get("dataset_kwargs")]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield from (path for path in {folder / value, *map(Path, glob(str(folder / value)))} if path.is_file())
        elif isinstance(value, Mapping | list):
            left.extend(value.values() if isinstance(value, Mapping) else value)


class _WithoutTags(yaml.SafeLoader):
    """Reads a task file without the Python that it names."""


_WithoutTags.add_multi_constructor("", lambda *_: None)


def _require_readable(path: Path) -> None:
    """Reject a task file that is not a mapping in YAML."""
    try:
        dict(yaml.load(path.read_text(encoding="utf-8"), _WithoutTags) or {})
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise RelmError(
            f"{path}: cannot be read as a task of the harness: {' '.join(str(error).split())}; write a mapping"
        ) from None


def hash_task_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each task file and Python file in the user's folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".py"))
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
