"""Hosts on one machine: network namespaces, each with its own address, on one bridge in another namespace."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence


def find_obstacle() -> str | None:
    """Return the reason why there can be no network namespaces here; None if there can."""
    if shutil.which("ip") is None:
        return "ip is not installed (Debian's package iproute2)"
    name = f"relm{os.getpid()}probe"
    done = _ip("netns", "add", name, check=False)
    if done.returncode == 0:
        _ip("netns", "del", name)
        return None
    return f"no network namespaces: {done.stderr.strip()}"


class SmallNetwork:
    """Hosts `0` to `N - 1`, with the addresses 10.77.0.1 and following."""

    def __init__(self) -> None:
        self._prefix = f"relm{os.getpid()}"
        self._hub = f"{self._prefix}hub"
        self._hosts: list[str] = []
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")

    def add(self) -> int:
        """Connect another host, and return its number."""
        number = len(self._hosts)
        name = f"{self._prefix}h{number}"
        self._hosts.append(name)
        _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{number}", "netns", self._hub)
        _ip("-n", self._hub, "link", "set", f"port{number}", "master", "bridge", "up")
        _ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        return number

    def address(self, number: int) -> str:
        """Return a host's address."""
        return f"10.77.0.{number + 1}"

    def command(self, number: int, command: Sequence[str]) -> list[str]:
        """Return a command that runs another one on a host."""
        return ["ip", "netns", "exec", self._hosts[number], *command]

    def cut(self, number: int) -> None:
        """Cut a host off: what is sent to it or from it is lost, and no connection is closed."""
        _ip("-n", self._hub, "link", "set", f"port{number}", "down")

    def kill(self, number: int) -> None:
        """Kill all that runs on a host, as a loss of power does."""
        for pid in _ip("netns", "pids", self._hosts[number]).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Kill everything, and remove the hosts."""
        for number, name in enumerate(self._hosts):
            self.kill(number)
            _ip("netns", "del", name)
        _ip("netns", "del", self._hub)


@contextlib.contextmanager
def small_network(hosts: int) -> Iterator[SmallNetwork]:
    """Make a network of hosts, and remove it at the end."""
    network = SmallNetwork()
    try:
        for _ in range(hosts):
            network.add()
        yield network
    finally:
        network.remove()


def _ip(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(["ip", *words], text=True, capture_output=True)
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done
