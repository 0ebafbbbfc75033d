"""A real Slurm cluster on one machine: munge, a controller and several node daemons, in a separate folder.

The daemons are Debian's (packages munge, slurmctld, slurmd, slurm-client), started as the current user on free ports, and
stopped at the end. All nodes are this machine, so a shared file system is its own.
"""

import contextlib
import getpass
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from relm.artifact import sha256_of
from small_project import CHECKOUT, Commands

OPTIONS = (
    "--cores",
    "2",
    "--slurm-no-account",
    "--slurm-status-command",
    "squeue",
    "--slurm-init-seconds-before-status-checks",
    "2",
)
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
SEARCHED = os.pathsep.join(["/usr/sbin", "/usr/local/sbin", os.environ.get("PATH", "")])
CONFIGURATION = """
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2,batch_sched_delay=0,requeue_delay=1
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=5
SlurmdTimeout=5
InactiveLimit=0
KillWait=10
MinJobAge=86400
OverTimeLimit=0
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=200000 State=UNKNOWN"


def find_lacking() -> list[str]:
    """Return the names of the programs that are not installed."""
    return [name for name in DAEMONS if shutil.which(name, path=SEARCHED) is None]


class SmallSlurm:
    """A cluster in a folder; see the module."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{folder / 'bin'}{os.pathsep}{SEARCHED}",
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(nodes + 1)
        self.nodes = [f"n{ports[0]}x{number}" for number in range(nodes)]  # `kill_node` must not find another cluster's node
        lines = [NODE.format(name=name, host=host, port=port) for name, port in zip(self.nodes, ports[1:], strict=True)]
        text = CONFIGURATION.format(
            host=host, user=getpass.getuser(), controller=ports[0], folder=folder, nodes="\n".join(lines)
        )
        (folder / "state").mkdir(parents=True)
        (folder / "slurm.conf").write_text(text)
        self._write_commands()
        (folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (folder / "munge.key").chmod(0o400)

    def _write_commands(self) -> None:
        """Write the commands that jobs give: Slurm passes SLURM_CONF on to no job, since each node has its own file."""
        commands = self.folder / "bin"
        commands.mkdir()
        for name in ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"):
            found = shutil.which(name, path=SEARCHED)
            (commands / name).write_text(f"#!/bin/sh\nSLURM_CONF='{self.folder}/slurm.conf' exec {found} \"$@\"\n")
            (commands / name).chmod(0o755)

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        where = {name: self.folder / f"munge.{name}" for name in ("socket", "log", "pid", "seed")}
        self._start(
            "munged", "--foreground", "--force", f"--key-file={self.folder / 'munge.key'}", f"--socket={where['socket']}",
            f"--log-file={where['log']}", f"--pid-file={where['pid']}", f"--seed-file={where['seed']}",
        )  # fmt: skip
        wait_until(where["socket"].exists, "munge's socket")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_until(lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(self.nodes), "idle nodes")

    def start_controller(self) -> None:
        """Start the controller, which reads the state that an earlier one saved."""
        self._start("slurmctld", "-D")

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._start("slurmd", "-D", "-N", name, key=name)

    def kill(self, name: str) -> None:
        """Kill a daemon by SIGKILL; `name` is that of a node, or slurmctld."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def kill_node(self, name: str) -> None:
        """Kill a node with all that runs on it, as a loss of power does."""
        started = _processes_of(name)
        parents = {int(_status(pid)["PPid"]) for pid in started} - {0}
        self.kill(name)
        for pid in [*(pid for pid in parents if _status(pid).get("Name") == "slurmstepd"), *started]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run(self, *command: str, **environment: str) -> str:
        """Run a command of Slurm's, and return what it prints."""
        done = subprocess.run(command, env={**self.environment, **environment}, text=True, capture_output=True, timeout=60)
        return done.stdout

    def stop(self) -> None:
        """Stop all jobs and daemons."""
        self.run("scancel", "--full", "--user", getpass.getuser())
        for name in list(self.processes):
            if name != "munged":
                self.kill_node(name) if name in self.nodes else self.kill(name)
        self.kill("munged")

    def _start(self, program: str, *arguments: str, key: str | None = None) -> None:
        path = shutil.which(program, path=SEARCHED)
        assert path is not None, program
        with open(self.folder / f"{key or program}.out", "ab") as out:
            self.processes[key or program] = subprocess.Popen(
                [path, *arguments], env=self.environment, stdout=out, stderr=subprocess.STDOUT
            )


@contextlib.contextmanager
def small_slurm(nodes: int = 2) -> Iterator[SmallSlurm]:
    """Start a cluster in a folder with a short path, as Slurm's sockets in it need, and stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        cluster = SmallSlurm(Path(folder), nodes)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


class OnSlurm(Commands):
    """A project whose jobs run on the cluster."""

    line = r"^snakemake results/NAME@MACHINE (--workflow-profile profiles/slurm) *#"
    """Pattern of the command's line."""

    def __init__(self, folder: Path, cluster: SmallSlurm) -> None:
        super().__init__(folder)
        self.environment["PATH"] = f"{cluster.folder / 'bin'}:{self.environment['PATH']}"

    def command(self, *targets: str) -> list[str]:
        """The command of docs/cluster.md, with the cores of this machine and fewer seconds between questions."""
        (line,) = re.findall(self.line, (CHECKOUT / "docs" / "cluster.md").read_text(), re.M)
        return ["snakemake", *targets, *shlex.split(line), "--nocolor", *OPTIONS]


def hash_data(work: Path) -> dict[str, str]:
    """Return the hashes of documents and examples in a work folder, without the records, which have times."""
    files = (path for name in ("documents", "examples") for path in (work / name).rglob("*") if path.is_file())
    return {str(path.relative_to(work)): sha256_of(path) for path in files if not path.name.endswith(".record.json")}


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: it does not in time.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


def _processes_of(node: str) -> list[int]:
    """Return the processes of jobs on a node."""
    found, marker = [], f"SLURMD_NODENAME={node}\0".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marker in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def _status(pid: int) -> Mapping[str, str]:
    """Return what the kernel says of a process; of one that has ended, that it has no parent."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {"PPid": "0"}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]
