"""The worker process of an IPU run: it computes updates in the Python of Graphcore's SDK, as the training loop requests.

It reads requests from its standard input and answers each on its standard output (`relm.devices.ipu.channel`). The first
request is `hello`, which names the backend; the second `open`, with the fields of a `WorkerSpec`, or `open_inference`, with
those of an `InferenceSpec`. The answer to a failed request is of the kind `error`. Runs on Python 3.8, and imports numpy and
torch only after a check that they are installed.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from typing import Any, BinaryIO, Callable

from relm.devices.ipu.channel import ChannelError, Message, receive, send

BACKENDS = {
    "simulator": "relm.devices.ipu.simulator:SimulatorBackend",
    "poptorch": "relm.devices.ipu.poptorch_backend:PoptorchBackend",
}
INFERENCES = {
    "simulator": "relm.devices.ipu.inference:SimulatedInference",
    "poptorch": "relm.devices.ipu.poptorch_inference:PoptorchInference",
}
# Versions of PopTorch -> the torch they are compiled for. With another torch the front-end does not import, or trains with a
# wrong optimizer.
TORCH_OF_POPTORCH = {"3.3": "2.0.1", "3.4": "2.0.1"}
_PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    """Answer requests until the pipe is closed or `close` is requested."""
    requests, answers = take_pipes()
    for number in (signal.SIGINT, signal.SIGTERM):  # the training loop receives them too, and decides when the worker ends
        signal.signal(number, signal.SIG_IGN)
    # Linux kills this process with its parent, also during a call; otherwise it would notice only at its next request.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        hello = receive(requests)
        name = str(hello.fields.get("backend"))
        fault = find_fault(name)
        if fault is not None:
            send_error(answers, fault, known=True)
            return
        try:
            worker, facts = Worker(name), load_reference(BACKENDS[name]).describe()
        except Exception as error:
            traceback.print_exc()
            send_error(answers, f"{type(error).__name__}: {error}", known=False)
            return
        send(answers, Message("hello", facts, {}))
        worker.serve(requests, answers)
    except (ChannelError, BrokenPipeError):
        pass  # the training loop has ended


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Return standard input and output for messages; other output goes to standard error, so that no print breaks a message."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return requests, answers


def find_fault(backend: str) -> str | None:
    """Return why this Python cannot run a backend, or None."""
    where = f"{sys.executable} (Python {sys.version.split()[0]})"
    if backend not in BACKENDS:
        return f"unknown backend {backend!r} of IPU runs; expected {' or '.join(BACKENDS)}"
    for package in ("numpy", "torch"):
        if fault := find_import_fault(package):
            return f"{where} {fault}; set RELM_IPU_PYTHON to a Python that has {package}"
    return find_poptorch_fault(where) if backend == "poptorch" else None


def find_import_fault(package: str) -> str | None:
    """Return why a package cannot be imported, or None."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a broken installation raises any error
        return f"cannot import {package}: {type(error).__name__}: {error}"
    return None


def find_poptorch_fault(where: str) -> str | None:
    """Return why PopTorch cannot run in this Python, which `where` names, or None."""
    import torch

    way_out = "enable Graphcore's SDK 3.3 or 3.4 (`source SDK/enable`), and set RELM_IPU_PYTHON to the Python that has it"
    version = find_version("poptorch")
    wanted = TORCH_OF_POPTORCH.get(".".join(version.split(".")[:2])) if version else None
    if version and wanted is None:
        return f"{where} has poptorch {version}, expected {' or '.join(TORCH_OF_POPTORCH)}; {way_out}"
    found = torch.__version__.split("+")[0]
    if version and found != wanted:
        return f"{where} has torch {found}, but its poptorch {version} needs torch {wanted}; {way_out}"
    fault = find_import_fault("poptorch")
    return f"{where} {fault}; {way_out}" if fault else None


def find_version(package: str) -> str | None:
    """Return the version of an installed package without importing it; None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def load_reference(reference: str) -> Any:
    """Import a module, and return the object that `module:name` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Worker:
    """The answers to requests, by a backend."""

    def __init__(self, name: str) -> None:
        """Import the backend of a name."""
        self._name, self._class = name, load_reference(BACKENDS[name])
        self._backend: Any = None
        self._answers: dict[str, Callable[[Message], Message]] = {
            "open": self._open,
            "open_inference": self._open_inference,
            "hidden": self._hidden,
            "write": self._write,
            "load": self._load,
            "compile": self._compile,
            "take": self._take,
            "save": self._save,
            "sum": self._sum,
        }

    def serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
        """Answer requests until one is `close`."""
        from relm.devices.ipu.backend import BackendError

        try:
            while True:
                request = receive(requests)
                if request.kind == "close":
                    break
                try:
                    answer = self._answers[request.kind](request)
                except BackendError as error:
                    send_error(answers, str(error), known=True)
                except Exception as error:
                    traceback.print_exc()
                    send_error(answers, f"{type(error).__name__}: {error}", known=False)
                else:
                    send(answers, answer)
        finally:
            if self._backend is not None:
                self._backend.close()
        send(answers, Message("closed", {}, {}))

    def _open(self, request: Message) -> Message:
        from relm.devices.ipu.backend import WorkerSpec

        self._backend = self._class(WorkerSpec(**request.fields))
        return Message("opened", {}, {})

    def _open_inference(self, request: Message) -> Message:
        import torch

        from relm.devices.ipu.inference import InferenceSpec

        weights = {name: torch.from_numpy(array) for name, array in request.arrays.items()}
        self._backend = load_reference(INFERENCES[self._name])(InferenceSpec(**request.fields), weights)
        return Message("opened", {}, {})

    def _hidden(self, request: Message) -> Message:
        import torch

        hidden = self._backend.hidden({name: torch.from_numpy(array) for name, array in request.arrays.items()})
        return Message("computed", {}, {"hidden": hidden.numpy()})

    def _write(self, request: Message) -> Message:
        import torch

        from relm.devices.ipu.decoding import TokenRule
        from relm.devices.ipu.inference import Beginnings

        given = {name: torch.from_numpy(array) for name, array in request.arrays.items()}
        rule = TokenRule(**request.fields["rule"])
        written = self._backend.write(Beginnings(**given), rule, request.fields["tokens"])
        return Message("written", {}, {name: tensor.numpy() for name, tensor in written._asdict().items()})

    def _load(self, request: Message) -> Message:
        import torch

        tensors = {name: torch.from_numpy(array) for name, array in request.arrays.items()}
        self._backend.load(select("weight.", tensors), select("state.", tensors))
        return Message("loaded", {}, {})

    def _compile(self, request: Message) -> Message:
        return Message("compiled", {"seconds": self._backend.compile(call_of(request))}, {})

    def _take(self, request: Message) -> Message:
        sums = self._backend.take(call_of(request))
        terms = {name: [float(nats), float(correct)] for name, (nats, correct) in sums.terms.items()}
        return Message("taken", {"terms": terms}, {"losses": sums.losses})

    def _save(self, request: Message) -> Message:
        weights, state = self._backend.save()
        tensors = {f"weight.{name}": tensor for name, tensor in weights.items()}
        tensors.update({f"state.{name}": tensor for name, tensor in state.items()})
        return Message("saved", {}, {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})

    def _sum(self, request: Message) -> Message:
        return Message("summed", {}, {"values": self._backend.sum(request.arrays["values"])})


def call_of(request: Message) -> Any:
    """Return the call in a request."""
    from relm.devices.ipu.backend import UpdateCall

    batch = select("batch.", request.arrays)
    return UpdateCall(batch, request.arrays["seeds"], request.fields["learning_rate"], request.fields["loss_scale"])


def select(prefix: str, named: dict[str, Any]) -> dict[str, Any]:
    """Return the values whose names have a prefix, without it.

    >>> select("weight.", {"weight.a": 1, "state.a": 2})
    {'a': 1}
    """
    return {name[len(prefix) :]: value for name, value in named.items() if name.startswith(prefix)}


def send_error(answers: BinaryIO, message: str, known: bool) -> None:
    """Answer a request with an error: for the user if `known`, otherwise a fault of this program."""
    send(answers, Message("error", {"message": message, "known": known}, {}))
