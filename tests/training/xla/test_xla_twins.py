"""The smoke twin of every TPU recipe trains all its steps on XLA devices."""

from pathlib import Path

import numpy as np
import pytest
from recipe_twins import TWINS, TwinRun, twin_examples, twin_of

# Checked by every run of the tests; test_xla_as_tpu.py has BERT.
ALWAYS = ("roberta_base_v3-8_as_published", "mt5_base_romanian_diacritics_v3-8")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.full) for name in TWINS])
def test_a_smoke_twin_trains_to_its_model_as_on_a_cpu(name: str, tmp_path: Path) -> None:
    twin = twin_of(name)
    examples = twin_examples(tmp_path / "examples", twin.model.architecture, twin.pretrain["main"])
    here = TwinRun(tmp_path / "cpu", examples, devices=0, name=name).trained()
    there = TwinRun(tmp_path / "xla", examples, devices=TWINS[name], name=name).trained()
    assert [line["step"] for line in there.lines()] == list(range(1, twin.pretrain["main"].steps + 1))
    assert set(there.made_on()) == {"tpu"}
    # The data are the same, but dropout draws other numbers; mT5 starts with losses of 20 nats, where that matters more.
    np.testing.assert_allclose(there.columns("loss"), here.columns("loss"), rtol=0.08 if name.startswith("mt5") else 0.03)
    assert there.sha256() != here.sha256(), "nothing was computed elsewhere"
    assert {name: weight.shape for name, weight in there.weights().items()} == {
        name: weight.shape for name, weight in here.weights().items()
    }
