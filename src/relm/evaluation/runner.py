"""One runner for all evaluations: it calls a protocol, writes `eval/TASK.json` and returns a sentence with the speed.

A protocol is a function that returns its findings on a model. Arguments have the same meaning in all protocols:

- `model_folder`: a model of the protocol's kind, as `save_pretrained` writes it;
- `manifest`: the examples' manifest, whose tokenizer is the model's, or `tokenizer`: the model's `tokenizer.json`;
- `file`: the test's file, and `file_sha256`, its expected sha256 (None: any);
- `options`: the keys of a recipe or of a test's file;
- `limit`: score only the first `limit` examples, windows, passages, questions or texts (None: all);
- `execution`: device, precision and batches, which change figures by rounding at most.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from relm.evaluation.result import Result, Sample


@dataclass(frozen=True)
class Scored:
    """The findings of a protocol."""

    figures: Mapping[str, float | int]
    protocol: dict[str, Any]
    model_sha256: str
    sentence: str
    """Sentence for the user, without a full stop."""
    scored: tuple[float, str] | None = None
    """Count and unit of the speed in the sentence; None: no speed."""
    samples: list[Sample] | None = None


def evaluation(score: Callable[..., Scored]) -> Callable[..., str]:
    """Return a protocol as an evaluation, which also takes `output`, the JSON file, and `task`, its name there."""

    @functools.wraps(score)
    def evaluate(*data: Any, output: Path, task: str | None = None, **options: Any) -> str:
        started = perf_counter()
        found = score(*data, **options)
        Result(
            task=task or output.stem,
            protocol=found.protocol,
            figures=dict(found.figures),
            model_sha256=found.model_sha256,
            samples=found.samples,
        ).write(output)
        if found.scored is None:
            return found.sentence
        count, unit = found.scored
        speed = count / (perf_counter() - started)
        return f"{found.sentence}; {speed:,.{0 if speed >= 100 else 1}f} {unit}/s"

    return evaluate
