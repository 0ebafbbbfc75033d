"""The result files that pages quote, such as `verify.json` and `eval/TASK.json`; reading one checks its shape."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.json_shapes import ANY, COUNT, FLAG, LINE, NUMBER, TEXT, Kind, Nullable, read_shaped
from relm.reporting.verify import NOTHING_PUBLISHED, PRECEDENCE

_WORDS = (*PRECEDENCE, NOTHING_PUBLISHED)
_WORD = Kind(f"one of {', '.join(_WORDS)}", lambda value: value in _WORDS)
_INTERVAL = Kind("two numbers", lambda value: isinstance(value, list) and len(value) == 2 and all(map(NUMBER.fits, value)))
_RUN = {"seed": COUNT, "value": NUMBER}
_ROW = {
    "metric": LINE,
    "place": LINE,
    "ours": Nullable(NUMBER),
    "published": NUMBER,
    "tolerance": NUMBER,
    "basis?": LINE,
    "verdict": _WORD,
    "sentence": LINE,
    "difference?": NUMBER,
    "interval?": _INTERVAL,
    "would_have_noticed?": NUMBER,
    "published_runs?": COUNT,
    "noise?": Nullable({"standard_deviation": NUMBER, "runs": COUNT, "source": LINE}),
    "seeds?": [_RUN],
    "reference?": {"name": LINE, "sha256": LINE, "program": LINE, "commit": LINE, "command": LINE, "runs": [_RUN]},
    "counts?": FLAG,
}
VERDICT = {
    "verdict": _WORD,
    "sentence": LINE,
    "fingerprint?": Nullable(LINE),
    "model_sha256?": LINE,
    "runs?": [{"seed": COUNT, "fingerprint": Nullable(LINE), "model_sha256": LINE}],
    "rows": [_ROW],
    "integrity?": [{"what": LINE, "expected": ANY, "found": ANY}],
}
EVALUATION = {
    "task": LINE,
    "figures": {"*": NUMBER},
    "protocol?": {"in_words?": TEXT, "limit?": Nullable(COUNT)},
    "samples?": [{"prompt": TEXT, "text": TEXT}],
    "model_sha256?": LINE,
}


def read_verdict(path: Path) -> Mapping[str, Any]:
    """Return the content of `verify.json`."""
    return dict(read_shaped(path, VERDICT))


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return the content of `eval/TASK.json`."""
    return dict(read_shaped(path, EVALUATION))
