"""The smoke twin of every TPU recipe trains all its steps on XLA devices."""

from pathlib import Path

import numpy as np
import pytest
from recipe_twins import TwinRun, twin_examples, twin_of

# Recipe -> how many devices: a share of the loss is four sequences of a twin's eight, and each device needs some of it.
TWINS = {
    "roberta_base_v3-8": 8,
    "roberta_base_v3-8_as_published": 4,
    "bert_large_wikitext103_v3-8_fp32": 8,
    "bert_large_wikitext103_v3-8_bf16": 8,
    "mt5_base_romanian_diacritics_v3-8": 8,
}


@pytest.mark.parametrize("name", TWINS)
def test_a_smoke_twin_trains_to_its_model_as_on_a_cpu(name: str, tmp_path: Path) -> None:
    twin = twin_of(name)
    examples = twin_examples(tmp_path / "examples", twin.model.architecture, twin.pretrain["main"])
    here = TwinRun(tmp_path / "cpu", examples, devices=0, name=name).trained()
    there = TwinRun(tmp_path / "xla", examples, devices=TWINS[name], name=name).trained()
    assert [line["step"] for line in there.lines()] == list(range(1, twin.pretrain["main"].steps + 1))
    assert set(there.made_on()) == {"tpu"}
    # The same data, but dropout draws other numbers; mT5 begins with losses of 20 nats, among which it does more.
    np.testing.assert_allclose(there.columns("loss"), here.columns("loss"), rtol=0.08 if name.startswith("mt5") else 0.03)
    assert there.sha256() != here.sha256(), "nothing was computed elsewhere"
    assert {name: weight.shape for name, weight in there.weights().items()} == {
        name: weight.shape for name, weight in here.weights().items()
    }
