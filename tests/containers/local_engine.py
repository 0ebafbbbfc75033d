"""A real podman at a socket of its own, which shares no image with others on the machine, and a tiny image to run in it."""

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Says what it sees from inside; stands for relm in an image that takes no time to build.
PROBE = r"""
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void ended(int number) { _exit(number == SIGTERM ? 75 : 76); }
static int writes(const char *path) { FILE *file = fopen(path, "w"); if (!file) return 0; fclose(file); return 1; }
int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "fail")) { fputs("it is broken\n", stderr); return 3; }
    if (count > 1 && !strcmp(words[1], "wait")) {
        signal(SIGTERM, ended); signal(SIGINT, ended);
        puts("waiting"); fflush(stdout);
        for (;;) pause();
    }
    for (int i = 1; i < count; i++) printf("word %s\n", words[i]);
    printf("image %s\nuser %d:%d\n", getenv("RELM_IMAGE"), getuid(), getgid());
    printf("secret %s\n", getenv("HF_TOKEN") ? getenv("HF_TOKEN") : "-");
    printf("root %d\nscratch %d\nhere %d\n", writes("/x"), writes("/tmp/x"), writes("made"));
    printf("beside %d\n", writes("../beside"));
    struct if_nameindex *interfaces = if_nameindex();
    int others = 0;
    for (int i = 0; interfaces && interfaces[i].if_name; i++) others += strcmp(interfaces[i].if_name, "lo") != 0;
    printf("network %d\n", others > 0);
    return 0;
}
"""
DOCKERFILE = 'FROM scratch\nCOPY relm /relm\nENTRYPOINT ["/relm"]\n'


def program(name: str, package: str) -> str:
    """Where a program is, or the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} on this machine (apt-get install {package})")
    return found


@contextlib.contextmanager
def podman_socket(folder: Path) -> Iterator[Path]:
    """The socket of a podman with its storage below ``folder``; ended by its number, its mounts and files removed."""
    podman, files = program("podman", "podman runc"), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=16384:16384"]\nnetns = "host"\n'
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    )
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n')
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    path = folder / "engine.sock"
    with open(folder / "podman.log", "w") as log:
        command = [podman, "system", "service", "--time", "0", f"unix://{path}"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        for _ in range(400):
            with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
                probe.connect(str(path))
                break
            if process.poll() is not None:
                pytest.skip(f"podman does not run here: {(folder / 'podman.log').read_text()[-300:]}")
            time.sleep(0.05)
        yield path
    finally:
        process.terminate()
        process.wait()
        subprocess.run([podman, "rm", "--all", "--force", "--time", "0"], env=environment, capture_output=True)
        subprocess.run([podman, "rmi", "--all", "--force"], env=environment, capture_output=True)


def probe_context(folder: Path) -> Path:
    """A build context of the probe alone."""
    folder.mkdir()
    (folder / "relm.c").write_text(PROBE)
    compiler = program("cc", "gcc libc6-dev")
    built = subprocess.run([compiler, "-static", "-o", "relm", "relm.c"], cwd=folder, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"no static program can be made here: {built.stderr[-300:]}")
    (folder / "relm.c").unlink()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return folder
