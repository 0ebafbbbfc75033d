"""The sequences of a forward pass of fine-tuning, on one device and on several that share it."""

from typing import Any

import numpy as np
import pytest

from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.tuning_batches import ScoredBatches, count_devices, require_even_batches, tokens_at_once
from relm.recipes.devices import DEVICES
from relm.recipes.evaluation.fine_tuning import Glue


class Cores:
    """The facts of a device that decide its batches."""

    def __init__(self, devices: int = 1) -> None:
        self.devices, self.traces = devices, devices > 1

    def describe(self) -> dict[str, Any]:
        return {"devices": self.devices} if self.traces else {}


def split(batches: ScoredBatches, count: int) -> list[list[int]]:
    return [batch["input_ids"][:, 0].tolist() for batch in batches.split({"input_ids": np.arange(count).reshape(count, 1)})]


def test_the_last_batch_of_a_device_without_programs_is_short() -> None:
    batches = ScoredBatches.on(Cores(), Execution(batch_tokens=100), 7, 32)  # type: ignore[arg-type]
    assert split(batches, 7) == [[0, 1, 2], [3, 4, 5], [6]]
    assert split(ScoredBatches.on(Cores(), Execution(batch_tokens=10), 2, 32), 2) == [[0], [1]]  # type: ignore[arg-type]


def test_cores_share_batches_of_one_shape() -> None:
    tokens = DEVICES["tpu"].fine_tuning_tokens
    batches = ScoredBatches.on(Cores(4), Execution("tpu"), 9, tokens // 2)  # type: ignore[arg-type]
    assert split(batches, 9) == [[0, 1, 2, 3, 4, 5, 6, 7], [8] * 8]
    few = ScoredBatches.on(Cores(4), Execution("tpu"), 5, 1)  # type: ignore[arg-type]
    assert split(few, 5) == [[0, 1, 2, 3, 4, 4, 4, 4]]
    assert tokens_at_once(Execution("tpu"), 4) == 4 * tokens
    assert tokens_at_once(Execution("cuda", batch_tokens=5), 1) == 5


def test_a_batch_that_cores_cannot_share_is_refused() -> None:
    require_even_batches(Glue(batch_size=16), 8, 8, "tpu")
    require_even_batches(Glue(batch_size=5), 5, 1, "cpu")
    with pytest.raises(RelmError, match="--batch-size is 20, but the tpu has 8 devices, which share each forward pass evenly"):
        require_even_batches(Glue(batch_size=20), 8, 8, "tpu")
    with pytest.raises(RelmError, match="--micro-batch-size is 4, but the tpu has 8 devices"):
        require_even_batches(Glue(batch_size=16), 4, 8, "tpu")


def test_several_hosts_are_refused_before_a_tpu_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RelmError, match="WORLD_SIZE is 4, but one process on one host fine-tunes"):
        count_devices(Execution("tpu"), tmp_path)
    assert count_devices(Execution("cpu"), tmp_path) == 1
