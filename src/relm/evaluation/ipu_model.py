"""relm's own GPT-2 on IPUs, or on their simulator, for evaluations and generation.

The worker computes the head's input (`relm.devices.ipu.inference`), and this process the head, in float32 as on all devices. To
write whole texts the worker has the head too. An IPU's program has one shape, which the first batch decides: smaller batches
are padded, larger ones divided.
"""

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from relm.devices.ipu.decoding import TokenRule
from relm.errors import RelmError
from relm.evaluation.causal_model import CausalModel
from relm.evaluation.execution import Execution
from relm.evaluation.ipu_worker import open_worker, read_layers
from relm.evaluation.model_checks import NOT_FINITE
from relm.models.gpt2 import Gpt2

# A program takes prompts up to a multiple of this, the default of Graphcore's --input-len, so that few lengths need a new one.
PROMPT_STEP = 64


class WritingProgram(NamedTuple):
    """The shape of a program that writes texts, and its rule."""

    sequences: int
    prompt: int
    """Tokens of the longest prompt."""
    tokens: int
    """Tokens after each prompt."""
    rule: TokenRule

    def covers(self, other: "WritingProgram") -> bool:
        """Return whether this program can replace another one, in parts if need be."""
        return self.rule == other.rule and self.prompt >= other.prompt and self.tokens >= other.tokens


class IpuCausalModel(CausalModel):
    """A GPT-2 whose body is on IPUs."""

    def __init__(self, folder: Path, sha256: str, model: Gpt2, execution: Execution) -> None:
        self.folder, self.sha256 = folder, sha256
        self.positions, self.vocabulary_size = model.config.positions, model.config.vocabulary_size
        self._model = model.eval()
        self.sequences, self.length = 0, 0
        """Shape of the program for the head's input; zeros: no program yet."""
        self.writing: WritingProgram | None = None
        self.ipus = len(read_layers(folder, model, execution))
        self._worker = open_worker(folder, "gpt2", model, execution)
        weakref.finalize(self, self._worker.close)

    def hidden(self, input_ids: Tensor) -> Tensor:
        sequences, length = input_ids.shape
        if length > self.length:
            self.sequences, self.length = sequences, length
        parts = [self._compute(part) for part in input_ids.split(self.sequences)]  # type: ignore[no-untyped-call]
        return torch.cat(parts)[:, :length]

    def _compute(self, input_ids: Tensor) -> Tensor:
        """Return the head's input of at most the program's sequences, (sequences, length of the program, width)."""
        padded = np.zeros((self.sequences, self.length), dtype=np.int64)
        padded[: input_ids.shape[0], : input_ids.shape[1]] = input_ids.numpy()
        answer = self._worker.request("hidden", arrays={"input_ids": padded})
        return torch.from_numpy(answer.arrays["hidden"])[: input_ids.shape[0]]

    def prepare_writing(self, program: WritingProgram) -> None:
        """Compile a program that writes texts and run it once, unless the present one covers it."""
        if self.writing is None or not self.writing.covers(program):
            self.writing = program._replace(prompt=self._round_up(program.prompt, program.tokens))
            noise = torch.zeros(1, program.tokens, program.rule.top_k) if program.rule.draws else None
            self._write([[0]], noise)

    def _round_up(self, prompt: int, tokens: int) -> int:
        """Return the next multiple of `PROMPT_STEP`, or less where the positions limit it."""
        rounded = -(-prompt // PROMPT_STEP) * PROMPT_STEP
        return rounded if self.positions is None else max(prompt, min(rounded, self.positions - tokens + 1))

    def write(self, texts: Sequence[Sequence[int]], tokens: int, rule: TokenRule, noise: Tensor | None) -> Tensor:
        """Return ids that one call of the device writes after each text, (texts, tokens).

        `noise` has Gumbel draws, (texts, tokens, top_k) float32, unless the rule draws nothing.
        """
        self.prepare_writing(WritingProgram(len(texts), max(map(len, texts)), tokens, rule))
        assert self.writing is not None, "it has been prepared"
        size = self.writing.sequences
        parts = range(0, len(texts), size)
        written = [self._write(texts[n : n + size], None if noise is None else noise[n : n + size]) for n in parts]
        return torch.cat(written)[:, :tokens]

    def _write(self, texts: Sequence[Sequence[int]], noise: Tensor | None) -> Tensor:
        """Return the ids after at most the program's number of texts, (texts, tokens of the program)."""
        assert self.writing is not None, "a program has been chosen"
        sequences, prompt, tokens, rule = self.writing
        arrays = {"input_ids": np.zeros((sequences, prompt), dtype=np.int64), "lengths": np.ones(sequences, dtype=np.int64)}
        for row, text in enumerate(texts):
            arrays["input_ids"][row, : len(text)], arrays["lengths"][row] = text, len(text)
        if noise is not None:
            arrays["noise"] = np.zeros((sequences, tokens, rule.top_k), dtype=np.float32)
            arrays["noise"][: noise.shape[0], : noise.shape[1]] = noise.numpy()
        answer = self._worker.request("write", {"rule": rule._asdict(), "tokens": tokens}, arrays)
        if not np.isfinite(answer.arrays["largest"][: len(texts)]).all():
            raise RelmError(NOT_FINITE)
        return torch.from_numpy(answer.arrays["tokens"])[: len(texts)]

    def head(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            return self._model.head(hidden)
