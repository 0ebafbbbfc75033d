"""The command `generate`: prompts from the command line, a file or a terminal; texts to the terminal or a file."""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.evaluation.execution import ON_THE_HOST, Execution
from relm.evaluation.generation.texts import BatchTime, Prompt, Writer, Writing, Written, describe_times
from relm.progress import ProgressBar

log = logging.getLogger(__name__)

ASK = "Prompt: "


def run_generate(
    model_folder: Path,
    tokenizer: Path,
    prompts: Sequence[str] | None,
    file: Path | None,
    writing: Writing,
    output: Path | None,
    execution: Execution = ON_THE_HOST,
) -> str:
    """Print a model's continuations or write them to a file; return latency and throughput as text.

    The file has one prompt a line. Without prompts and file, the user types prompts at the terminal until the end of input or
    Ctrl-C; without a terminal, standard input is the file. An output is JSON lines with the fields of `Written`.
    """
    if not prompts and file is not None:
        prompts = read_prompts(file.read_bytes(), str(file))
    elif not prompts and not sys.stdin.isatty():
        prompts = read_prompts(sys.stdin.buffer.read(), "standard input")
    writer = Writer(model_folder, tokenizer, execution)
    with _open_output(output) as show:
        if not prompts:
            return _converse(writer, writing, show)
        times: list[BatchTime] = []
        texts = writer.texts(_encode_prompts(writer, prompts, writing), writing, times=times)
        for text in ProgressBar(texts, total=len(prompts), unit=" texts", disable=None if output else True):
            show(text)
        return describe_times(times)


def read_prompts(content: bytes, source: str) -> list[str]:
    """Return the prompts of a file, one from each line; blank lines are skipped."""
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RelmError(f"{source}, line {line}: not UTF-8; save the prompts as UTF-8") from None
    prompts = [line.removesuffix("\r") for line in lines if line.strip()]
    if not prompts:
        raise RelmError(f"{source}: has no prompt; write one a line")
    return prompts


def _encode_prompts(writer: Writer, texts: Sequence[str], writing: Writing) -> list[Prompt]:
    """Return the prompts for the model, and warn if it cannot see a whole text."""
    prompts, positions = [writer.prompt(text) for text in texts], writer.model.positions
    longest = max(len(prompt.ids) for prompt in prompts) + writing.length
    if positions is not None and longest > positions:
        log.warning(
            "texts may grow to %s tokens; beyond the model's %s positions each token takes a pass over the newest %s",
            longest,
            positions,
            positions,
        )
    return prompts


@contextlib.contextmanager
def _open_output(output: Path | None) -> Iterator[Callable[[Written], None]]:
    """Yield a function that prints a text, or writes it to a file that appears once it is complete."""
    if output is None:
        yield lambda written: print(written.text, flush=True)
        return
    with atomic_file(output, "w") as file:
        yield lambda written: print(json.dumps(asdict(written), ensure_ascii=False), file=file)


def _converse(writer: Writer, writing: Writing, show: Callable[[Written], None]) -> str:
    """Print a text and its timing for each typed prompt; return the number of texts."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # makes `input` a line that can be edited
    written = 0
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            prompt = input(ASK)
            if not prompt.strip():
                continue
            times: list[BatchTime] = []
            for text in writer.texts(_encode_prompts(writer, [prompt], writing), writing, written, times):
                show(text)
            print(describe_times(times), file=sys.stderr, flush=True)
            written += 1
    return f"\n{written} texts"
