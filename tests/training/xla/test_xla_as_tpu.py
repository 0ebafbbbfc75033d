"""Branches that only a TPU takes, taken on XLA's CPU client. No test here runs on a TPU."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from as_tpu import behave_as_tpu
from recipe_twins import TWINS, TwinRun, twin_examples, twin_of
from xla_runs import XlaRun, assert_same_figures

from relm.training.architecture import configuration
from relm.training.arithmetic import operations
from relm.training.loop import tokenizer_facts
from small_pci import pci_bus

HELD_OUT = {"run": {"validation_interval": 2, "validation_batches": 2}}
FULL = pytest.mark.full


@dataclass
class AsTpu(XlaRun):
    """A tiny run that trains as on a v3-8."""

    pci: Path = Path()

    def pretrained(self) -> str:
        """Train in this process."""
        behave_as_tpu(self.pci)
        return super().pretrained()


@dataclass
class TwinAsTpu(TwinRun):
    """A smoke twin that trains as on a v3-8."""

    pci: Path = Path()

    def pretrained(self) -> str:
        """Train in this process."""
        behave_as_tpu(self.pci)
        return super().pretrained()


def raw_lines(run: XlaRun) -> list[dict[str, Any]]:
    """Return the lines of train.jsonl with the columns that `lines` leaves out."""
    return [json.loads(line) for line in (run.folder / "main" / "train.jsonl").read_text().splitlines()]


def last_made_on(run: XlaRun) -> dict[str, Any]:
    return dict(json.loads(run.listed().splitlines()[-1])["made_on"])


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name.endswith("bf16") else FULL) for name in TWINS])
def test_a_smoke_twin_trains_as_a_tpu_does_to_the_losses_of_a_cpu(name: str, tmp_path: Path) -> None:
    twin, devices = twin_of(name), TWINS[name]
    examples = twin_examples(tmp_path / "examples", twin.model.architecture, twin.pretrain["main"])
    pci = pci_bus(tmp_path / "pci", *["v3"] * 4)
    run = TwinAsTpu(tmp_path / "tpu", examples, devices=devices, name=name, pci=pci).trained()
    lines = raw_lines(run)
    assert [line["step"] for line in lines] == list(range(1, twin.pretrain["main"].steps + 1))
    assert not any("memory_bytes" in line for line in lines), "PyTorch/XLA tells no memory of a TPU, and the host's is not it"
    assert all(("mfu" in line) == (twin.pretrain["main"].precision == "bfloat16") for line in lines)
    made_on = last_made_on(run)
    assert (made_on["device"], made_on["name"], made_on["chips"]) == ("tpu", "TPU v3", devices // 2)
    assert made_on["devices"] == devices
    here = TwinRun(tmp_path / "cpu", examples, devices=0, name=name).trained()
    # The data are the same, but dropout draws other numbers; mT5 starts with losses of 20 nats, where that matters more.
    np.testing.assert_allclose(run.columns("loss"), here.columns("loss"), rtol=0.08 if name.startswith("mt5") else 0.03)


@pytest.mark.parametrize("objective", ["masked", pytest.param("causal", marks=FULL), pytest.param("seq2seq", marks=FULL)])
def test_a_killed_run_resumes_as_on_a_tpu_to_the_figures_of_a_cpu(
    objective: str, runs: Callable[..., XlaRun], tmp_path: Path
) -> None:
    here = runs("cpu", objective, devices=0, changes=HELD_OUT).trained()
    plain = runs("as a TPU", objective, changes=HELD_OUT)
    run = AsTpu(plain.folder, plain.examples, plain.changes, objective=objective, pci=pci_bus(tmp_path, *["v3"] * 4))
    run.trained("checkpoint-saved:1")
    (kept,) = (run.folder / "main" / "compiled").iterdir()
    assert kept.name.startswith("TPU-v3-libtpu-0."), "another generation, or another libtpu, reads other programs"
    assert list(kept.iterdir()), "programs are not kept"
    assert_same_figures(run.trained(), here)
    processes = json.loads((run.folder / "main" / "device.json").read_text())["processes"]
    assert [process["after_step"] for process in processes] == [0, 3]
    assert all(process["executions"] > process["steps"] for process in processes), "SPMD programs are no longer counted"


def test_a_single_core_is_half_a_chip(runs: Callable[..., XlaRun], tmp_path: Path) -> None:
    plain = runs("one core", "causal", changes=HELD_OUT, one_tpu=True)
    pci = pci_bus(tmp_path, *["v3"] * 4)
    run = AsTpu(plain.folder, plain.examples, plain.changes, objective="causal", one_tpu=True, pci=pci).trained()
    assert (last_made_on(run)["chips"], last_made_on(run)["devices"]) == (0.5, 1)
    assert math.isfinite(raw_lines(run)[-1]["loss"])


@pytest.mark.parametrize("topology", ["v3-1", "v3-8"])
def test_the_utilisation_of_one_core_is_of_half_a_chips_peak(
    topology: str, runs: Callable[..., XlaRun], tmp_path: Path
) -> None:
    """A slice of one core trains on one; --one-tpu makes one of a slice of eight."""
    changes = {"pretrain": {"main": {"precision": "bfloat16"}}, "run": {"topology": topology}}
    plain = runs(f"utilisation on {topology}", "causal", changes=changes, one_tpu=topology == "v3-8")
    pci = pci_bus(tmp_path, *["v3"] * 4)
    run = AsTpu(plain.folder, plain.examples, plain.changes, objective="causal", one_tpu=plain.one_tpu, pci=pci).trained()
    assert (last_made_on(run)["chips"], last_made_on(run)["devices"]) == (0.5, 1)
    tokens = tokenizer_facts(run.examples / "manifest.json", run.examples / "tokenizer.json")
    config, settings = configuration(run.recipe, tokens), run.recipe.pretrain["main"]
    flops_per_token = operations(config, settings, run.recipe.run).model / (
        settings.global_batch_size * settings.sequence_length
    )
    for line in raw_lines(run):
        assert line["mfu"] == pytest.approx(line["tokens_per_second"] * flops_per_token / 61.5e12, abs=1e-5)


class Metadata(BaseHTTPRequestHandler):
    """The metadata server of a TPU VM, reached as a proxy; an unknown attribute is an error, as there."""

    attributes: dict[str, str]

    def do_GET(self) -> None:
        """Answer with an attribute of the machine."""
        found = self.attributes.get(self.path.rpartition("/attributes/")[2])
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write((found or "").encode())

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def metadata() -> Iterator[tuple[dict[str, str], str]]:
    """Yield the attributes of a metadata server, to be filled, and its address."""
    attributes: dict[str, str] = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Machine", (Metadata,), {"attributes": attributes}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield attributes, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# PyTorch/XLA searches for chips when it is imported, in a fixed folder.
OPENS = """
import glob, json, os, sys
from pathlib import Path
sys.path.append(sys.argv[2])
pci, plain = sys.argv[1], glob.glob
glob.glob = lambda pattern, **options: plain(pattern.replace("/sys/bus/pci/devices", pci), **options)
from relm.devices import tpu_chips
tpu_chips.DEVICES = Path(pci)
from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.recipes.run import Run
try:
    if "behaves" in os.environ:
        import as_tpu
        as_tpu.make_client_of_cpu()
    device = open_device(Run(device="tpu"))
    print("opened", json.dumps({**device.describe(), "arguments": os.environ["LIBTPU_INIT_ARGS"].split()}))
except RelmError as error:
    print("refused:", error)
"""


def opened(pci: Path, proxy: str, **environment: str) -> str:
    """Return the output of a process that opens its devices on a machine with this bus and metadata server."""
    without = ("PJRT_DEVICE", "http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "LIBTPU_INIT_ARGS")
    kept = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-c", OPENS, str(pci), str(Path(__file__).parent)],
        env={**kept, "http_proxy": proxy, "CPU_NUM_DEVICES": "8", **environment},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_tpu_vm_is_opened_with_its_compilers_options(metadata: tuple[dict[str, str], str], tmp_path: Path) -> None:
    attributes, address = metadata
    attributes["tpu-env"] = "ACCELERATOR_TYPE: 'v3-8'\nWORKER_ID: '0'\n"
    attributes["worker-network-endpoints"] = "unknown:unknown:10.0.0.2"
    output = opened(pci_bus(tmp_path, *["v3"] * 4), address, behaves="as a TPU")
    found = json.loads(output.partition("opened ")[2])
    assert (found["name"], found["chips"], found["devices"]) == ("TPU v3", 4, 8)
    assert "--xla_tpu_spmd_rng_bit_generator_unsafe=true" in found["arguments"], "ours"
    assert "--xla_tpu_enable_flash_attention=false" in found["arguments"], "PyTorch/XLA's"


def test_missing_hosts_are_an_error_before_the_runtime_waits_for_them(
    metadata: tuple[dict[str, str], str], tmp_path: Path
) -> None:
    attributes, address = metadata
    attributes["tpu-env"] = "ACCELERATOR_TYPE: 'v3-32'\nWORKER_ID: '0'\n"
    attributes["worker-network-endpoints"] = ",".join(f"unknown:unknown:10.0.0.{host}" for host in range(4))
    output = opened(pci_bus(tmp_path, *["v3"] * 4), address)
    assert "refused: run.device: tpu: this TPU has 4 hosts, found WORLD_SIZE=1" in output


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "torch_xla cannot find the type of this TPU: OSError: Failed to get TPU metadata"),
        pytest.param({"http_proxy": "http://127.0.0.1:9"}, "type of this TPU: ProxyError", marks=FULL),
        pytest.param({"TPU_SKIP_MDS_QUERY": "1"}, "type of this TPU: TypeError", marks=FULL),
    ],
)
def test_a_tpu_of_unknown_type_is_refused_with_a_plain_error(
    environment: dict[str, str], message: str, metadata: tuple[dict[str, str], str], tmp_path: Path
) -> None:
    output = opened(pci_bus(tmp_path, *["v3"] * 4), metadata[1], **environment)
    assert message in output
    assert "set TPU_SKIP_MDS_QUERY=1 and TPU_ACCELERATOR_TYPE" in output
