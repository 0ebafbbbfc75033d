"""The graph starts a run of several IPU instances by PopRun, and every other run as before."""

import re
from pathlib import Path

from small_project import shipped_project


def line_of_training(target: str, folder: Path, **environment: str) -> str:
    done = shipped_project(folder).snakemake(target, "-n", "-p", **environment)
    assert done.returncode == 0, done.stdout
    (line,) = re.findall(r"^.*python -m relm pretrain .*$", done.stdout, flags=re.MULTILINE)
    return line


def test_several_instances_are_started_by_poprun_with_the_options_of_the_installation(tmp_path: Path) -> None:
    line = line_of_training("results/gpt2_large_poprun_pod64", tmp_path, RELM_POPRUN_OPTIONS="--host a,b")
    assert re.search(
        r"env 'POPLAR_TARGET_OPTIONS=\{\"gatewayMode\":\"true\"\}' poprun --num-instances \d+ --num-replicas 8"
        r" --ipus-per-replica 8 --host a,b python -m relm pretrain gpt2_large_poprun_pod64 ",
        line,
    )


def test_the_smoke_twin_is_one_process(tmp_path: Path) -> None:
    line = line_of_training("results/smoke/gpt2_large_poprun_pod64", tmp_path)
    assert "poprun" not in line.partition("python -m relm")[0]
