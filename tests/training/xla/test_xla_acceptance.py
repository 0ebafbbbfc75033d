"""`relm accept --device tpu` with XLA's CPU client in place of a TPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_project import CHECKOUT


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_cpu_client_passes_what_it_can_show(tmp_path: Path) -> None:
    output = tmp_path / "accept.json"
    command = [sys.executable, "-m", "relm", "accept", "roberta_base_v3-8_as_published", "--device", "tpu"]
    environment = {**os.environ, "RELM_WORK": str(tmp_path / "work"), "CPU_NUM_DEVICES": "8"}
    done = subprocess.run([*command, "--output", str(output)], cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True)
    content = json.loads(output.read_text())
    outcomes = {found["check"]: found["outcome"] for found in content["results"]}
    assert done.returncode == 0, done.stdout
    assert {check for check, outcome in outcomes.items() if outcome == "passed"} == {
        "losses",
        "formats",
        "resume",
        "determinism",
    }
    assert outcomes["evaluation"] == outcomes["speed"] == "skipped"
    assert content["stand_in"] is True
    assert content["made_on"]["device"] == "tpu"
