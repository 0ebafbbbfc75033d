"""BERT and RoBERTa on simulated IPUs: evaluations have the figures of the CPU."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from masked_cases import ALONE, LENGTH, bert, phase

from relm.evaluation.execution import Execution
from relm.evaluation.masked_lm import evaluate_masked_lm
from relm.evaluation.masked_models import IpuMaskedModel, ReadingProgram, load_masked

pytestmark = pytest.mark.usefixtures("forked_workers")


def simulated(**options: Any) -> Execution:
    return replace(ALONE, device="ipu_simulator", **options)


def batch(rows: int, length: int, slots: int, padding: int = 2) -> dict[str, torch.Tensor]:
    """Return a batch whose first row has padding at its end."""
    draw = torch.Generator().manual_seed(rows * length)
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[0, length - padding :] = False
    return {
        "input_ids": torch.randint(5, 30, (rows, length), generator=draw),
        "attention_mask": mask,
        "token_type_ids": torch.randint(2, (rows, length), generator=draw),
        "masked_positions": torch.randint(length - padding, (rows, slots), generator=draw),
    }


@pytest.mark.parametrize("next_sentence", [True, False])
def test_logits_are_those_of_the_cpu_for_every_shape(next_sentence: bool, tmp_path: Path) -> None:
    folder = bert(tmp_path / "model", next_sentence=next_sentence)
    model, own = load_masked(folder, 30, simulated(layers_per_ipu=(1, 1))), load_masked(folder, 30, ALONE)
    assert isinstance(model, IpuMaskedModel)
    programs = []
    for shape in ((2, 12, 3), (5, 9, 2), (1, 12, 3), (3, LENGTH, 1)):
        given = batch(*shape)
        with torch.inference_mode():
            found, expected = model.read(given), own.read(given)
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)
        assert (found.next_sentence is not None) == next_sentence
        if expected.next_sentence is not None:
            torch.testing.assert_close(found.next_sentence, expected.next_sentence, rtol=1e-5, atol=1e-5)
        programs.append(model.program)
    model._worker.close()
    assert programs == [ReadingProgram(2, 12, 3)] * 3 + [ReadingProgram(3, LENGTH, 3)]


def test_the_evaluation_has_the_figures_of_the_cpu(case: Any, tmp_path: Path) -> None:
    figures = []
    for execution in (ALONE, simulated()):
        evaluate_masked_lm(
            case.model, case.manifest, output=tmp_path / "out.json", task="masked_lm", phase=phase(), execution=execution
        )
        figures.append(json.loads((tmp_path / "out.json").read_text())["figures"])
    assert figures[1] == pytest.approx(figures[0], rel=1e-5)
