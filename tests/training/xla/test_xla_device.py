"""The XLA device itself, with the count of devices in CPU_NUM_DEVICES."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from small_phases import CASES, cases, model_and_batch
from torch import nn

from relm import limits
from relm.devices.contract import open_device
from relm.devices.xla import XlaDevice
from relm.errors import RelmError
from relm.models.gathering import gathered
from relm.recipes.run import Run

DEVICES = 4
# A message of a TPU's compiler; PyTorch/XLA 2.9 passes it on without the code RESOURCE_EXHAUSTED in front.
FULL_WHEN_COMPILED = (
    "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.95G of 15.48G hbm. Exceeded hbm capacity "
    "by 6.47G."
)


@pytest.fixture(scope="module")
def device() -> XlaDevice:
    os.environ["CPU_NUM_DEVICES"] = str(DEVICES)
    opened = open_device(Run(device="tpu", threads=1))
    assert isinstance(opened, XlaDevice)
    return opened


def test_it_describes_itself(device: XlaDevice) -> None:
    facts = device.describe()
    assert (facts["device"], facts["name"], facts["devices"]) == ("tpu", "XLA:CPU", DEVICES)
    assert facts["torch"].startswith("2.9.0")


def test_a_batch_arrives_unchanged_in_equal_parts(device: XlaDevice) -> None:
    import torch_xla

    batch = {"input_ids": np.arange(16).reshape(8, 2), "next_sentence_labels": np.arange(8)}
    fed = device.feed(device.stage(batch))
    assert {name: tensor.cpu().tolist() for name, tensor in fed.items()} == {n: array.tolist() for n, array in batch.items()}
    for tensor in fed.values():
        assert f"devices=[{DEVICES}" in torch_xla._XLAC._get_xla_sharding_spec(tensor)
    # The mesh alone gives this host's devices: so several hosts may read the same batch, and each sends its own shards.
    (shards,) = torch_xla._XLAC._get_local_shards([fed["input_ids"]])
    held = {device: rows.tolist() for rows, device in shards}
    assert held == {f"CPU:{number}": batch["input_ids"][2 * number : 2 * number + 2].tolist() for number in range(DEVICES)}


def test_a_batch_that_the_devices_cannot_share_is_refused(device: XlaDevice) -> None:
    with pytest.raises(RelmError, match=r"6 sequences cannot be divided evenly among 4 devices. Set run.micro_batch_size"):
        device.stage({"input_ids": np.zeros((6, 2))})


def test_tied_parameters_stay_one(device: XlaDevice) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    model[1][0].weight = model[0].weight
    placed = device.place(model)
    assert placed[1][0].weight is placed[0].weight
    assert placed[0].weight.device.type == "xla"
    assert len(list(placed.parameters())) == 3


@pytest.mark.parametrize("case", CASES)
def test_every_architecture_has_the_terms_and_gradients_of_a_cpu(case: str, device: XlaDevice) -> None:
    config, settings = cases(dropout=0.0)[case]
    model, batch = model_and_batch(config, settings)
    batch = {name: torch.cat([tensor, tensor[:1]]) for name, tensor in batch.items()}  # four sequences
    other, _ = model_and_batch(config, settings)
    other = device.place(other)
    expected, found = model.terms(batch), other.terms(device.stage({name: t.numpy() for name, t in batch.items()}))
    for terms in (expected, found):
        sum(term.nats for term in terms.values()).backward()
    device.launch()
    for name, term in expected.items():
        values = device.read([found[name].nats, found[name].count, found[name].correct])
        assert values == pytest.approx([value.item() for value in term], rel=1e-5)
    for (name, here), there in zip(model.named_parameters(), other.parameters(), strict=True):
        if here.grad is None:
            assert there.grad is None
            continue
        torch.testing.assert_close(
            there.grad.cpu(), here.grad, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_tpu_takes_masked_positions_without_a_gather_and_to_the_same_numbers(
    device: XlaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under SPMD PyTorch/XLA reads PJRT_DEVICE each time it lowers an operation; it need not be the client's device."""
    import torch_xla

    drawn = np.random.default_rng(0)
    hidden = drawn.random((8, 16, 4), dtype=np.float32)
    positions = drawn.integers(0, 16, (8, 3))
    batch = device.stage({"hidden": hidden, "positions": positions})
    programs, found = [], []
    for kind in ("CPU", "TPU"):
        monkeypatch.setenv("PJRT_DEVICE", kind)
        learnt = batch["hidden"].clone().requires_grad_()
        taken = gathered(learnt, batch["positions"], traced=True)
        (gradient,) = torch.autograd.grad((taken * taken).sum(), learnt)
        programs.append(torch_xla._XLAC._get_xla_tensors_hlo([taken]))
        found.append([taken.detach().cpu(), gradient.cpu()])
    assert [" gather(" in program for program in programs] == [True, False], "it lowers for a TPU as for others"
    np.testing.assert_array_equal(found[1][0], np.take_along_axis(hidden, positions[:, :, None], 1))
    for cpu, tpu in zip(*found, strict=True):
        torch.testing.assert_close(tpu, cpu)


def test_reading_the_state_only_on_rank_0_compiles_no_program(device: XlaDevice) -> None:
    """A program over all devices would wait for the other hosts, which read nothing; the state is replicated."""
    model = device.place(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=device.make_scalar(0.1), momentum=0.9)
    for _ in range(2):
        rows = device.feed(device.stage({"rows": np.ones((8, 8), dtype=np.float32)}))["rows"]
        (model(rows) ** 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        device.launch()
    device.synchronise()
    before = device.figures()
    state = [*model.state_dict().values(), *(found["momentum_buffer"] for found in optimizer.state.values())]
    assert len([tensor.cpu() for tensor in state]) == 4
    after = device.figures()
    assert (after["executions"], after["compiles"]) == (before["executions"], before["compiles"])
    assert after["transfers_from_devices"] > before["transfers_from_devices"]


def test_a_synchronised_device_has_finished_what_was_launched(device: XlaDevice) -> None:
    """The count of executions grows at the end of each."""
    products = device.place(nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))))
    rows = device.feed(device.stage({"rows": np.ones((1024, 1024), dtype=np.float32)}))["rows"]
    device.synchronise()
    before = device.figures()["executions"]
    results = [products(rows)]
    device.launch()
    results.append(products(results[0]))
    device.synchronise()
    assert device.figures()["executions"] == before + 2


def test_the_compilers_error_of_full_memory_is_explained() -> None:
    code = f"""
import numpy as np, torch, torch_xla
from relm import limits
from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.recipes.run import Run
device = open_device(Run(device="tpu", threads=1))
rows = device.stage({{"rows": np.ones((8, 2), dtype=np.float32)}})["rows"]
try:
    with device.translate_errors():
        kernel = torch_xla._XLAC._xla_tpu_custom_call([rows], "{{}}", [[8, 2]], [torch.float32])[0]
        device.read([kernel.sum()])
except Exception as error:
    print(type(error).__name__, error)
    refused = type(error)
try:
    with device.translate_errors():
        raise refused({FULL_WHEN_COMPILED!r})
except RelmError as error:
    print("in words:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "CPU_NUM_DEVICES": "2"}, capture_output=True, text=True
    )
    assert "ValueError No registered implementation for untyped custom call to tpu_custom_call" in done.stdout, done.stderr
    assert (
        "in words: run.device: tpu: a step does not fit into the memory of a device: XLA:TPU compile permanent" in done.stdout
    )


def test_changing_scalars_compile_no_new_program(device: XlaDevice) -> None:
    scalar = device.make_scalar(2.0)
    found = []
    for value in (3.0, 2.0, 1.0, 0.0, 5.0):
        product = scalar * device.make_scalar(value)
        device.launch()
        found.append((device.read([product])[0], device.programs()))
    assert [value for value, _ in found] == [6.0, 4.0, 2.0, 0.0, 10.0]
    assert len({programs for _, programs in found}) == 1


def test_the_same_seed_draws_the_same_numbers(device: XlaDevice) -> None:
    ones = device.stage({"x": np.ones((8, 64), dtype=np.float32)})["x"]
    drawn = []
    for number in (1, 2, 1):
        device.seed(number)
        dropped = nn.functional.dropout(ones, 0.5)
        device.launch()
        drawn.append(dropped.cpu())
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert 0.4 < drawn[0].count_nonzero() / drawn[0].numel() < 0.6


def test_float16_is_refused(device: XlaDevice) -> None:
    with pytest.raises(RelmError, match="TPUs do not support float16; set the phase's precision to bfloat16"):
        device.autocast("float16")


def opened(**environment: str) -> str:
    """Return the output of a process that opens the TPU in this environment."""
    code = """
from relm import limits
from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.recipes.run import Run
try:
    print("opened", open_device(Run(device="tpu")).describe())
except RelmError as error:
    print("refused:", error)
"""
    kept = {name: value for name, value in os.environ.items() if name not in ("PJRT_DEVICE", "CPU_NUM_DEVICES")}
    done = subprocess.run([sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("environment", [{}, pytest.param({"PJRT_DEVICE": "TPU"}, marks=pytest.mark.full)])
def test_the_error_without_a_tpu_says_what_to_do(environment: dict[str, str]) -> None:
    output = opened(**environment)
    assert "refused: run.device: tpu needs a TPU, found none on this machine. Run the same command on a TPU VM" in output
    assert "PJRT_DEVICE=CPU" in output


def test_copies_to_the_host_are_one_transfer_and_share_nothing(device: XlaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = device.place(nn.Linear(3, 2))
    step = torch.ones(1)
    device.materialise(layer.parameters())
    before = [tensor.tolist() for tensor in (layer.weight.cpu(), layer.bias.cpu(), step)]
    transfers = device.figures()["transfers_from_devices"]
    copies = device.copy_to_host([layer.weight, layer.bias, step])
    assert copies is not None
    assert device.figures()["transfers_from_devices"] == transfers + 1
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias, step):
            tensor.zero_()
    device.launch()
    assert layer.weight.abs().sum().item() == 0
    assert [copy.tolist() for copy in copies] == before
    assert {copy.device.type for copy in copies} == {"cpu"}
    monkeypatch.setattr(limits, "available_memory", lambda: 4 * (2 * 3 + 2 + 1))
    assert device.copy_to_host([layer.weight, layer.bias, step]) is None, "XLA needs twice the memory"
