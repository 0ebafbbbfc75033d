"""The sentence for a job that failed without one."""

from pathlib import Path

import pytest

from relm.terminal import faults


@pytest.mark.parametrize(("free", "cause"), [(0, "is full"), (faults.LEAST_FREE - 1, "is full"), (1 << 30, "memory ran out?")])
def test_a_full_disk_is_not_taken_for_a_lack_of_memory(
    free: int, cause: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(faults, "free_disk", lambda folder: free)
    assert cause in faults.explain_silence(tmp_path / "absent" / "step.log")
    assert "memory ran out?" in faults.explain_silence(None)
