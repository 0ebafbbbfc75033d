"""The program under the harness's own interpreter: it loads tasks, evaluates them, and writes the figures as JSON.

    python -I harness_process.py REQUEST.json ANSWER.json

Its environment has the harness (lm_eval) and no relm, so nothing of relm is imported here. The request's keys are the fields of
`relm.evaluation.harness.HarnessRun`; the answer has either `found`, or `refused` with a sentence. Any other error
ends in a traceback, and leaves no answer.
"""

import contextlib
import ctypes
import dataclasses
import difflib
import hashlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_PR_SET_PDEATHSIG = 1  # prctl(2)
# Keys of a task's configuration that the protocol records; the whole one holds prompts and functions too.
ESSENTIALS = ("dataset_path", "dataset_name", "test_split", "validation_split", "num_fewshot", "output_type")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
# Keys by which samples of the harness's log are compared.
LOGGED = ("doc_id", "doc", "target", "filtered_resps", "filter")


class Refused(Exception):
    """A request that cannot be answered, with a sentence for the user."""


def stop_with_parent(parent: int) -> None:
    """Have this process terminated when its parent dies, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            sys.exit(1)


# --- tasks -------------------------------------------------------------------------------------------------------------------


def task_manager(names: list[str], folder: Path | None, metadata: dict[str, Any]) -> Any:
    """Return the harness's index of tasks, of the user's folder alone if that has all names: its own takes a while to read.

    Raises:
        Refused: there is no such task.
    """
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]

    if folder is not None:
        own = TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata)
        if all(stands_alone(own.task_index, name) for name in names):
            return own
    manager = TaskManager(include_path=str(folder) if folder else None, metadata=metadata)
    for name in names:
        if name not in manager.all_tasks:
            raise Refused(f"{describe_unknown(name, manager.all_tasks)}{describe_unreadable(folder)}")
    return manager


def stands_alone(index: dict[str, Any], name: str) -> bool:
    """Return whether an index has a task, or a group and all its members; a tag may have members elsewhere."""
    entry = index.get(name)
    if entry is None or entry.kind.name not in ("TASK", "PY_TASK", "GROUP"):
        return False
    members = entry.cfg.get("task", []) if entry.kind.name == "GROUP" else []
    return all(isinstance(member, str) and stands_alone(index, member) for member in members)


def describe_unknown(name: str, known: list[str]) -> str:
    """Return a message about a task that does not exist, with the nearest names."""
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`.venv/harness/bin/lm_eval ls tasks` lists them"
    return f"there is no task {name!r} among the {len(known):,} tasks and groups; {hint}"


def describe_unreadable(folder: Path | None) -> str:
    """Return a message about the user's task files that the index silently leaves out, with the fault of each."""
    from lm_eval.tasks._yaml_loader import load_yaml  # type: ignore[import-not-found]

    wrong = []
    for path in sorted(folder.rglob("*.yaml")) if folder else []:
        try:
            load_yaml(path, resolve_func=False)
        except Exception as error:
            wrong.append(f"{path.relative_to(folder or path)} cannot be read: {first_line(error)}")
    return "".join(f"; {words}" for words in wrong)


def load_task(manager: Any, name: str, data: "RecordedData") -> list[Any]:
    """Load a task, a group, or all tasks of a tag, with their data.

    Args:
        data: the data that was loaded so far.

    Raises:
        Refused: its data cannot be fetched or read, or it runs programs that the model writes.
    """
    try:
        found = manager.load([name])
    except Exception as error:
        raise Refused(f"task {name} cannot be loaded: {data.fault() or explain(error, data)}{advice(error)}") from error
    for task_name, task in found["tasks"].items():
        if getattr(task, "UNSAFE_CODE", False):
            raise Refused(f"task {task_name} runs programs that the model writes; relm never does")
    for kind in ("groups", "tasks"):
        if name in found.get(kind, {}):
            return [found[kind][name]]
    return list(found["tasks"].values())


def first_line(error: BaseException) -> str:
    """Return the name of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def explain(error: BaseException, data: "RecordedData") -> str:
    """Return a message about an error in the documents of a task, with the local files that they come from."""
    empty = isinstance(error, IndexError) and "size 0" in str(error)
    what = "no document is left after the task's own filter (process_docs)" if empty else first_line(error)
    return what + "".join(f"; its data: {describe_documents(path)}" for path in data.files)


def advice(error: BaseException) -> str:
    """Return advice if data could not be fetched, else nothing."""
    names = {kind.__name__ for cause in causes(error) for kind in type(cause).__mro__}
    if names & {"ConnectionError", "ConnectError", "OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectTimeout"}:
        return (
            "; its data comes from the Hugging Face hub: evaluate where there is a network (HF_HUB_OFFLINE unset), or first "
            "there with the same HF_HOME"
        )
    return ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


# --- provenance --------------------------------------------------------------------------------------------------------------


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclasses.dataclass
class RecordedData:
    """The data that tasks loaded."""

    names: dict[str, str] = dataclasses.field(default_factory=dict)
    """Name -> sha256, revision or other mark of its content."""
    files: list[Path] = dataclasses.field(default_factory=list)
    """Local files of JSON documents, and empty local files of other formats."""

    def fault(self) -> str | None:
        """Return the fault of the first local file that cannot be read as JSON documents; None: there is no fault."""
        for path in self.files:
            try:
                read_documents(path)
            except ValueError as error:
                return str(error)
        return None


def read_documents(path: Path) -> list[Any]:
    """Return the documents of a JSON file: one a line, or one value for all of it.

    Raises:
        ValueError: it is empty, not UTF-8 or not JSON; the message names file and line.
    """
    content = path.read_bytes()
    if content.strip() in (b"", b"[]"):
        raise ValueError(f"{path} is empty; write the task's documents into it")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: not UTF-8; save the file as UTF-8") from None
    with contextlib.suppress(ValueError):
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            found += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}); write a JSON object a line") from None
    return found


def describe_documents(path: Path) -> str:
    """Return a file's name with the count of its documents and the keys under which each of them has a value."""
    documents = read_documents(path)
    keys = [
        {key for key, value in document.items() if value is not None} for document in documents if isinstance(document, dict)
    ]
    shared = sorted(set.intersection(*keys)) if len(keys) == len(documents) > 0 else []
    return f"{path} (documents: {len(documents):,}; keys with a value in each: {', '.join(shared) or 'none'})"


@contextlib.contextmanager
def record_data() -> Iterator[RecordedData]:
    """Record every data set that is loaded: a local file with its sha256, one of the hub with its revision."""
    import datasets.load

    noted = RecordedData()
    open_builder = datasets.load.load_dataset_builder

    def noting(*arguments: Any, **options: Any) -> Any:
        builder = open_builder(*arguments, **options)
        files = [file for split in (builder.config.data_files or {}).values() for file in split]
        noted.names.update(data_name(str(file)) for file in files)
        if builder.dataset_name == "json":
            noted.files += [path for path in map(Path, files) if path.exists() and path.suffix not in COMPRESSED]
        else:
            noted.files += [path for path in map(Path, files) if path.exists() and not path.stat().st_size]
        if not files:  # in the cache already, without a network
            noted.names[f"{builder.dataset_name} {builder.config.name}"] = f"cached as {builder.hash}"
        return builder

    datasets.load.load_dataset_builder = noting
    try:
        yield noted
    finally:
        datasets.load.load_dataset_builder = open_builder


def data_name(file: str) -> tuple[str, str]:
    """Return the name of a data file in the protocol, and its sha256 or revision."""
    if file.startswith("hf://"):
        repository, _, rest = file.partition("@")
        return repository, f"revision {rest.split('/')[0]}"
    path = Path(file)
    return (path.name, sha256_of(path)) if path.exists() else (file, "as served")


def own_task_files(manager: Any, names: Iterable[str], folder: Path | None) -> dict[str, str]:
    """Return the sha256 of each of the user's files that define the tasks: task files, included ones, and Python modules."""
    if folder is None:
        return {}
    entries = [manager.task_index.get(name) for name in names]
    files = {file for entry in entries if entry and entry.yaml_path for file in with_included(entry.yaml_path)}
    for module in list(sys.modules.values()):
        if "__mtime__" in vars(module):  # modules that the harness loaded for `!function`
            files.add(Path(str(module.__file__)).resolve())
    own = sorted(file for file in files if file.is_relative_to(folder.resolve()))
    return {file.relative_to(folder.resolve()).as_posix(): sha256_of(file) for file in own}


def with_included(path: Path) -> Iterator[Path]:
    """Yield a task file and the files that it includes."""
    from lm_eval.tasks._yaml_loader import load_yaml

    path = path.resolve()
    yield path
    included = load_yaml(path, resolve_func=False, recursive=False).get("include", [])
    for name in included if isinstance(included, list) else [included]:
        yield from with_included(path.parent / name)


class Truncations(logging.Filter):
    """Counts the examples that do not fit into the model; only the first of the harness's warnings is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record of the log is shown."""
        if not record.getMessage().startswith("Combined length of context"):
            return True
        self.count += 1
        return self.count == 1


# --- evaluation --------------------------------------------------------------------------------------------------------------


def model_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which the harness reads the model: in float32, never with code that the folder names."""
    import transformers

    mixed = {"mixed_precision_dtype": "bfloat16"} if request["precision"] == "bfloat16" else {}
    config = transformers.AutoConfig.from_pretrained(request["model"], local_files_only=True, trust_remote_code=False)
    return {
        "pretrained": request["model"],
        "tokenizer": request["tokenizer"],
        "dtype": "float32",
        "softmax_dtype": "float32",
        "trust_remote_code": False,
        "config": config,  # without it, a name in config.json wins over the argument
        "attn_implementation": choose_attention(config),
        **mixed,
    }


def choose_attention(config: Any) -> str:
    """Return the implementation of attention that `transformers` prefers for a model, whatever its configuration names.

    A name there may be that of a program on the hub, or of a package that this machine lacks.
    """
    import transformers

    kinds = (transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForCausalLM)  # the order in which the harness looks
    model = next((found for kind in kinds if (found := kind._model_mapping.get(type(config), None))), None)
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


def choose_tokenizer(folder: str) -> tuple[Any, dict[str, Any]]:
    """Let harness_tokenizer.py choose, which is loaded by path: an isolated interpreter does not search this folder."""
    loader = SourceFileLoader("harness_tokenizer", str(Path(__file__).with_name("harness_tokenizer.py")))
    loader.exec_module(module := ModuleType(loader.name))
    try:
        chosen: tuple[Any, dict[str, Any]] = module.choose_tokenizer(folder)
        return chosen
    except ValueError as error:
        raise Refused(f"{folder}: the tokenizer {error}") from error


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the tasks; return figures, the data that they were computed on, and the log of examples if requested.

    Raises:
        Refused: a task is unknown, or cannot be loaded; its documents lack a key; there is no such device.
    """
    import jinja2
    import torch
    from lm_eval import __version__, simple_evaluate  # type: ignore[import-not-found]

    if request["device"] == "cuda" and not torch.cuda.is_available():
        raise Refused("no CUDA device, or a harness without CUDA; `make DEVICE=cuda harness` makes one with it")
    torch.set_num_threads(request["threads"])
    tokenizer, beginnings = choose_tokenizer(request["tokenizer"])
    folder = Path(request["task_folder"]) if request["task_folder"] else None
    truncations = Truncations()
    logging.getLogger("lm_eval.models.huggingface").addFilter(truncations)
    arguments = model_arguments(request)
    with record_data() as data:
        manager = task_manager(request["tasks"], folder, {key: arguments[key] for key in arguments if key != "config"})
        tasks = [task for name in request["tasks"] for task in load_task(manager, name, data)]
        try:
            found = simple_evaluate(
                model="hf",
                model_args={**arguments, "tokenizer": tokenizer},
                tasks=tasks,
                batch_size=request["batch_size"],
                device=request["device"],
                limit=request["limit"],
                log_samples=request["samples"],
                task_manager=manager,
            )
        except jinja2.UndefinedError as error:  # a later document lacks a key of the task's prompt
            raise Refused(f"{', '.join(request['tasks'])}: a prompt cannot be written: {explain(error, data)}") from error
    samples = found.pop("samples", {})
    kept = {name: [{key: row[key] for key in LOGGED} for row in rows] for name, rows in samples.items()}
    return {
        "version": __version__,
        "results": found["results"],
        "versions": found["versions"],
        "n_samples": found["n-samples"],
        "configs": {
            name: {key: config[key] for key in ESSENTIALS if config.get(key) is not None}
            for name, config in found["configs"].items()
        },
        "context": found.get("max_length"),
        "beginnings": beginnings,
        "truncated": truncations.count,
        "data": data.names,
        "task_files": own_task_files(manager, found["results"], folder),
        **({"samples": kept} if request["samples"] else {}),
    }


def main(request_path: str, answer_path: str) -> int:
    """Answer a request, and return the exit status."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    stop_with_parent(request["parent"])
    answer: dict[str, Any]
    try:
        answer = {"found": evaluate(request)}
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    text = json.dumps(answer, default=lambda value: value.item() if hasattr(value, "item") else str(value))
    Path(answer_path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
