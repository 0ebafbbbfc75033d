import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP, whose settings this reads, comes with torch for Linux")
@pytest.mark.parametrize(("requested", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_idle_threads_sleep_unless_the_user_sets_another_policy(requested: str | None, policy: str) -> None:
    """OpenMP prints its settings when it is loaded; a later change would have no effect."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "TRUE"} | ({"OMP_WAIT_POLICY": requested} if requested else {})
    command = [sys.executable, "-c", "import relm.training.step"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"OMP_WAIT_POLICY = '{policy}'" in shown
