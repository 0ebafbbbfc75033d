"""Manifests and models that the evaluation of masked tokens refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from masked_cases import ALONE, Case, bert, examples, phase

from relm.errors import RelmError
from relm.evaluation.masked_lm import evaluate_masked_lm


def evaluate(model: Path, manifest: Path, output: Path) -> None:
    evaluate_masked_lm(model, manifest, phase(), output=output, execution=ALONE)


def edited(manifest: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the content of a manifest in place; return its path."""
    content = json.loads(manifest.read_text())
    change(content)
    manifest.write_text(json.dumps(content))
    return manifest


def causal(content: dict[str, Any]) -> None:
    content["objective"] = "causal"


def no_mask_token(content: dict[str, Any]) -> None:
    content["tokenizer"]["special"]["mask"] = None


def nothing_held_out(content: dict[str, Any]) -> None:
    content["splits"]["held_out"] = {**content["splits"]["held_out"], "examples": 0, "shards": []}


def no_split(content: dict[str, Any]) -> None:
    del content["splits"]["held_out"]


def more_ids(content: dict[str, Any]) -> None:
    content["tokenizer"]["vocabulary_size"] = 99


# Fault of a manifest -> the message.
MESSAGES = {
    causal: "holds causal examples, expected masked ones; give the manifest of a masked phase's examples",
    no_mask_token: r"the tokenizer has no mask token \[MASK\] or <mask>, so nothing can be masked; use one with",
    nothing_held_out: "split held_out has no examples to score; use more documents",
    no_split: "unknown split 'held_out'; it has train",
    more_ids: "the model has 35 tokens, the tokenizer 99; give the tokenizer it was trained with",
}


@pytest.mark.parametrize("change", MESSAGES)
def test_a_manifest_that_does_not_serve_is_refused(change: Callable, case: Case, tmp_path: Path) -> None:
    manifest = edited(examples(tmp_path / "e"), change)
    with pytest.raises(RelmError, match=MESSAGES[change]) as raised:
        evaluate(case.model, manifest, tmp_path / "out.json")
    assert "\n" not in str(raised.value)


def test_sequences_longer_than_the_models_are_refused(case: Case, tmp_path: Path) -> None:
    short = bert(tmp_path / "short", positions=9)
    with pytest.raises(
        RelmError, match=r"has 9 positions, but the longest sequence has 24 tokens; build examples with a shorter"
    ):
        evaluate(short, case.manifest, tmp_path / "out.json")
