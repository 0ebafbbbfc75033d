"""An engine's output while it builds becomes one line for each instruction, or its last lines where it fails."""

from typing import Any

import pytest

from relm.containers.build import log_steps
from relm.errors import RelmError


def test_each_instruction_is_logged_with_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """As Docker's own builder and podman print it, in pieces that end anywhere."""
    output = ["Step 1/2 : FROM scr", "atch\n ---> abc\n", "[2/2] STEP 1/1: COPY a b\n", "--> 5", "\nSuccessfully built\n"]
    with caplog.at_level("INFO"):
        log_steps(
            [{"stream": piece} for piece in [*output, "Step 2/2 : RUN " + "x" * 100 + "\n"]] + [{"aux": {"ID": "x"}}], "cpu"
        )
    stages = [record.getMessage().split(" s  ")[1] for record in caplog.records]
    assert stages == ["1/2 FROM scratch", "2/2: 1/1 COPY a b", f"2/2 RUN {'x' * 75}…"]


def test_an_error_of_the_engine_comes_with_the_output_of_that_instruction() -> None:
    output: list[dict[str, Any]] = [
        {"stream": "Step 1/2 : RUN one\nfrom one\n"},
        {"stream": "Step 2/2 : RUN two\nfrom two\nhalf"},
    ]
    with pytest.raises(RelmError) as caught:
        log_steps([*output, {"error": "it returned 1\n", "errorDetail": {}}], "cpu")
    assert str(caught.value) == "the build failed; the engine's last words:\n  from two\n  half\n  it returned 1"
