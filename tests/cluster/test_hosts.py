"""Two and four hosts, as network namespaces, train one run by torchrun: killed and replaced, cut off, and of another number."""

import re
import subprocess
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from shared_run import SharedRun, train_undisturbed
from small_network import SmallNetwork, find_obstacle, small_network

from small_project import CHECKOUT, Commands

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def undisturbed(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    return train_undisturbed(finished_project, tmp_path_factory.mktemp("undisturbed") / "project")


@pytest.fixture
def run(finished_copy: Commands) -> SharedRun:
    return SharedRun(finished_copy)


@pytest.fixture
def network() -> Iterator[SmallNetwork]:
    if obstacle := find_obstacle():
        pytest.skip(obstacle)
    with small_network(4) as made:
        yield made


def start_on(
    network: SmallNetwork, hosts: Sequence[int], run: SharedRun, **environment: str
) -> "list[subprocess.Popen[bytes]]":
    """Give the command of docs/cluster.md on some hosts, the first of which the others look for."""
    page = (CHECKOUT / "docs" / "cluster.md").read_text()
    (line,) = re.findall(r"^(torchrun .*?relm pretrain NAME)", page, re.M)
    started = []
    for rank, host in enumerate(hosts):
        values = {"HOSTS": len(hosts), "RANK": rank, "FIRST": network.address(hosts[0]), "NAME": "shared"}
        words = [str(values.get(word, word)) for word in line.split()]
        own = {"GLOO_SOCKET_IFNAME": "eth0", **environment}
        started.append(run.start(network.command(host, words), f"host{host}.out", **own))
    return started


def told(run: SharedRun, *hosts: int) -> str:
    return "\n".join(run.read(f"host{host}.out") for host in hosts)


def test_a_host_that_is_killed_and_replaced_changes_no_byte(
    network: SmallNetwork, run: SharedRun, undisturbed: SharedRun
) -> None:
    first, second = start_on(network, [0, 1], run)
    run.wait_for_checkpoint(first, second)
    network.kill(1)
    assert first.wait(timeout=60) == 1
    assert "another process of this run (rank 1 on 10.77.0.2) has ended or cannot be reached" in told(run, 0)
    assert [host.wait(timeout=300) for host in start_on(network, [0, 2], run)] == [0, 0], told(run, 0, 2)
    assert run.sha256() == undisturbed.sha256()
    assert run.order() == undisturbed.order()
    assert '"resumed_after"' in (run.phase / "train.jsonl").read_text()


def test_after_a_cut_no_host_waits_for_ever_and_four_go_on_where_two_were(
    network: SmallNetwork, run: SharedRun, undisturbed: SharedRun
) -> None:
    hosts = start_on(network, [0, 1], run, RELM_RANK_TIMEOUT="20")
    run.wait_for_checkpoint(*hosts)
    network.cut(1)
    began = time.monotonic()
    assert [host.wait(timeout=180) for host in hosts] == [1, 1], told(run, 0, 1)
    assert time.monotonic() - began < 150
    for host in (0, 1):
        assert "has ended or cannot be reached, and this one ends with it" in told(run, host)

    run.set_processes(4)
    for _ in range(2):
        network.add()
    assert [host.wait(timeout=300) for host in start_on(network, [0, 2, 3, 4], run)] == [0] * 4, told(run, 0, 2, 3, 4)
    assert "processes was 2, is 4; resuming, but the last bits will differ" in told(run, 0)
    assert run.order() == undisturbed.order()
    np.testing.assert_allclose(run.losses(), undisturbed.losses(), rtol=1e-3)


def test_a_signal_to_one_host_stops_all_after_the_checkpoint(network: SmallNetwork, run: SharedRun) -> None:
    hosts = start_on(network, [0, 1], run)
    run.wait_for_checkpoint(*hosts)
    hosts[1].terminate()
    assert [host.wait(timeout=60) for host in hosts] == [1, 1]
    assert re.search("stopped by another process after step .* saved in", told(run, 0)), told(run, 0)
