"""The engines of the tests end the processes that they started, and no others."""

import subprocess
import time
from pathlib import Path

import pytest
from engines import STAND_IN, Engine, end_what_runs_in

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]


def test_what_runs_in_a_container_is_ended_and_nothing_that_only_sees_its_files(podman_engine: Engine) -> None:
    started = podman_engine.run("run", "--detach", "--network=none", STAND_IN, "sleep", "200").stdout.splitlines()[-1]
    bystander = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "200"])
    try:
        inside = int(podman_engine.run("inspect", "--format", "{{.State.Pid}}", started).stdout)
        mounts = Path(f"/proc/{bystander.pid}/mountinfo")
        for _ in range(100):
            if mounts.read_text() != Path("/proc/self/mountinfo").read_text():
                break
            time.sleep(0.05)
        assert f"{podman_engine.folder}/" in mounts.read_text()
        end_what_runs_in(podman_engine.folder)
        assert podman_engine.run("wait", started).stdout.strip() == "137"
        assert not Path(f"/proc/{inside}").exists()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        podman_engine.run("rm", "--force", "--time", "0", started)
