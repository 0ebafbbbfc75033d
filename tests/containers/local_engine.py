"""A real podman or Docker at a socket, and an image that takes no time to build, in which a program tells what it sees."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import docker, podman

# Stands for relm in the image.
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
    printf("container %s\n", getenv("container") ? getenv("container") : "-");
    struct if_nameindex *interfaces = if_nameindex();
    int others = 0;
    for (int i = 0; interfaces && interfaces[i].if_name; i++) others += strcmp(interfaces[i].if_name, "lo") != 0;
    printf("network %d\n", others > 0);
    return 0;
}
"""
DOCKERFILE = 'FROM scratch\nCOPY relm /relm\nENTRYPOINT ["/relm"]\n'


@contextlib.contextmanager
def podman_socket(folder: Path) -> Iterator[Path]:
    """The socket of a podman whose files all lie below ``folder``, which is gone afterwards; ended by its number."""
    with podman(folder) as engine:
        path = folder / "engine.sock"
        command = ["podman", "system", "service", "--time", "0", f"unix://{path}"]
        with open(folder / "service.log", "w") as log:
            process = subprocess.Popen(command, env=os.environ | engine.environment, stdout=log, stderr=log)
        try:
            for _ in range(400):
                with contextlib.suppress(OSError), contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
                    probe.connect(str(path))
                    break
                assert process.poll() is None, (folder / "service.log").read_text()[-2000:]
                time.sleep(0.05)
            yield path
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def docker_socket(folder: Path) -> Iterator[Path]:
    """The same of Docker's daemon."""
    with docker(folder) as engine:
        yield Path(engine.environment["DOCKER_HOST"].removeprefix("unix://"))


SOCKETS = {"podman": podman_socket, "docker": docker_socket}


def probe_context(folder: Path) -> Path:
    """A build context of the probe alone."""
    folder.mkdir()
    (folder / "relm.c").write_text(PROBE)
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler on this machine (apt-get install gcc libc6-dev)")
    built = subprocess.run(["cc", "-static", "-o", "relm", "relm.c"], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (folder / "relm.c").unlink()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return folder
