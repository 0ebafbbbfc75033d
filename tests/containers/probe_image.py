"""An image that takes no time to build, in which a program prints what it sees."""

import shutil
import subprocess
from pathlib import Path

import pytest

from relm.containers.context import Context

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
static int network(void) {
    struct if_nameindex *interfaces = if_nameindex();
    int others = 0;
    for (int i = 0; interfaces && interfaces[i].if_name; i++) others += strcmp(interfaces[i].if_name, "lo") != 0;
    return others > 0;
}
int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "offline")) return network() ? 4 : 0;
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
    printf("network %d\n", network());
    return 0;
}
"""
DOCKERFILE = 'FROM scratch\nCOPY relm /relm\nENTRYPOINT ["/relm"]\n'


def make_probe_context(folder: Path) -> Context:
    """Make a build context with only the probe."""
    folder.mkdir()
    (folder / "relm.c").write_text(PROBE)
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler on this machine (apt-get install gcc libc6-dev)")
    built = subprocess.run(["cc", "-static", "-o", "relm", "relm.c"], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (folder / "relm.c").unlink()
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return Context(folder, {}, {})
