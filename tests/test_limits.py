"""Limits of the machine: enforced with a message, overridden on request, and read as the container sees them."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from relm import limits
from relm.errors import RelmError

HUGE = 10**18


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELM_IGNORE_LIMITS", raising=False)


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


# --- refusals --------------------------------------------------------------------------------------------------------------


def test_work_that_fits_is_not_refused(tmp_path: Path) -> None:
    limits.require_disk(tmp_path, 1, "a byte")
    limits.require_memory(1, "a byte")


def test_too_little_disk_is_refused_with_need_have_and_override(tmp_path: Path) -> None:
    with pytest.raises(RelmError) as caught:
        limits.require_disk(tmp_path / "not" / "yet", HUGE, "the dump")
    message = str(caught.value)
    assert message.startswith("the dump: needs 1,000,000 TB on the disk of ")
    assert " free; " in message
    assert "RELM_IGNORE_LIMITS=1" in message


def test_too_little_memory_is_refused_with_need_have_and_override() -> None:
    with pytest.raises(RelmError, match=r"the sort: needs 1,000,000 TB of memory, .* is available; .*RELM_IGNORE_LIMITS=1"):
        limits.require_memory(HUGE, "the sort")


def test_one_setting_overrides_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELM_IGNORE_LIMITS", "1")
    limits.require_disk(tmp_path, HUGE, "the dump")
    limits.require_memory(HUGE, "the sort")


# --- control groups: literal copies of what the kernel shows ---------------------------------------------------------------


def version_2(tmp_path: Path) -> tuple[Path, Path]:
    write(tmp_path, membership="0::/user/job\n")
    return tmp_path / "cgroup", tmp_path / "membership"


def version_1(tmp_path: Path) -> tuple[Path, Path]:
    write(tmp_path, membership="9:memory:/docker/job\n8:cpu,cpuacct:/docker/job\n1:name=systemd:/init\n")
    return tmp_path / "cgroup", tmp_path / "membership"


def test_the_strictest_memory_limit_of_version_2_counts_and_cache_is_free(tmp_path: Path) -> None:
    mount, membership = version_2(tmp_path)
    write(mount, memory__stat="anon 5\n")  # the root has no limit file
    write(mount / "user", memory__max="1000", memory__current="900", memory__stat="anon 500\ninactive_file 300\n")
    write(mount / "user" / "job", memory__max="max", memory__current="10", memory__stat="")
    assert limits.cgroup_memory(mount, membership) == 1000 - 900 + 300


def test_limits_of_version_1_are_read(tmp_path: Path) -> None:
    mount, membership = version_1(tmp_path)
    write(mount / "memory", **{"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "1"})
    write(mount / "cpu,cpuacct", **{"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert (limits.cgroup_cores(mount, membership), limits.cgroup_memory(mount, membership)) == (None, None)
    job = {"memory.limit_in_bytes": "2000", "memory.usage_in_bytes": "1500", "memory.stat": "total_inactive_file 100\n"}
    write(mount / "memory" / "docker" / "job", **job)
    assert limits.cgroup_memory(mount, membership) == 2000 - 1500 + 100


def test_a_container_that_sees_its_group_as_the_root_is_limited_too(tmp_path: Path) -> None:
    mount, membership = version_1(tmp_path)
    write(mount / "memory", **{"memory.limit_in_bytes": "2000", "memory.usage_in_bytes": "500"})
    write(mount / "cpu", **{"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"})
    assert limits.cgroup_memory(mount, membership) == 1500
    assert limits.cgroup_cores(mount, membership) == 3.0


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    mount, membership = version_2(tmp_path)
    write(mount / "user", memory__max="1000", memory__current="1200")
    assert limits.cgroup_memory(mount, membership) == 0


def test_without_limits_there_are_none(tmp_path: Path) -> None:
    mount, membership = version_2(tmp_path)
    write(mount / "user", memory__max="max", memory__current="900", cpu__max="max 100000")
    assert limits.cgroup_memory(mount, membership) is None
    assert limits.cgroup_cores(mount, membership) is None
    assert limits.cgroup_memory(tmp_path / "nowhere", tmp_path / "nothing") is None


def test_the_strictest_cpu_quota_counts(tmp_path: Path) -> None:
    mount, membership = version_2(tmp_path)
    write(mount / "user", cpu__max="150000 100000")
    write(mount / "user" / "job", cpu__max="800000 100000")
    assert limits.cgroup_cores(mount, membership) == 1.5


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("100000", 1), ("100000000", len(os.sched_getaffinity(0)))])
def test_usable_cores_respect_the_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int) -> None:
    mount, membership = version_2(tmp_path)
    write(mount, cpu__max=f"{quota} 100000")
    monkeypatch.setattr(limits, "CGROUPS", mount)
    monkeypatch.setattr(limits, "MEMBERSHIP", membership)
    assert limits.usable_cores() == cores


def test_available_memory_is_the_lesser_of_host_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mount, membership = version_2(tmp_path)
    write(mount, memory__max="1000", memory__current="300")
    monkeypatch.setattr(limits, "CGROUPS", mount)
    monkeypatch.setattr(limits, "MEMBERSHIP", membership)
    assert limits.available_memory() == 700
    with pytest.raises(RelmError, match="needs 701 B of memory, 700 B is available"):
        limits.require_memory(701, "the sort")


# --- this machine ----------------------------------------------------------------------------------------------------------


def test_usable_cores_respect_the_binding_of_this_process() -> None:
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{one}]); from relm.limits import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_this_machine_has_memory_and_cores() -> None:
    assert 0 < limits.available_memory() <= psutil.virtual_memory().total
    assert 1 <= limits.usable_cores() <= len(os.sched_getaffinity(0))


def test_total_memory_is_the_strictest_limit_of_the_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert 0 < limits.total_memory() <= psutil.virtual_memory().total
    mount, membership = version_2(tmp_path)
    write(mount / "user", memory__max="2000")
    write(mount / "user" / "job", memory__max="max")
    monkeypatch.setattr(limits, "CGROUPS", mount)
    monkeypatch.setattr(limits, "MEMBERSHIP", membership)
    assert limits.total_memory() == 2000


def test_free_disk_is_that_of_the_first_parent_that_exists(tmp_path: Path) -> None:
    assert limits.nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert limits.nearest_existing(tmp_path) == tmp_path
    assert limits.free_disk(tmp_path / "a" / "b") > 0
