"""The wheel of relm: two builds give the same bytes, wherever, whenever and by whomever they are made."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from relm.artifact import sha256_of
from relm.containers.wheel import build_wheel
from small_project import CHECKOUT

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "src", "envs")


def copy_checkout(folder: Path) -> Path:
    """Copy what the wheel is built from."""
    for name in BUILT_FROM:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.txt"))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CHECKOUT / name, folder / name)
    return folder


def pip_wheel(checkout: Path, folder: Path, umask: int, **environment: str) -> Path:
    """Build the wheel as `make wheel` does."""
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(checkout)]
    command = [sys.executable, "-m", "pip", *words]
    done = subprocess.run(command, umask=umask, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built in a copy of it."""
    folder = tmp_path_factory.mktemp("first")
    return pip_wheel(copy_checkout(folder / "checkout"), folder / "dist", umask=0o022, TZ="UTC")


def test_a_second_build_has_the_same_bytes_with_other_folders_times_modes_and_leftovers(wheel: Path, tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "elsewhere" / "a checkout")
    for number, path in enumerate(sorted(checkout.rglob("*"), reverse=True)):
        os.utime(path, (1_500_000_000 + 1000 * number,) * 2)
        path.chmod(0o700 if path.is_dir() or number % 2 else 0o600)
    left = checkout / "build/lib/relm/removed_module.py"  # of an earlier build
    left.parent.mkdir(parents=True)
    left.write_text("x = 1\n")
    (checkout / "src/relm/notes.json").write_text("{}")
    (checkout / "src/relm.egg-info").mkdir()
    (checkout / "src/relm.egg-info/SOURCES.txt").write_text("src/relm/notes.json\n")
    surroundings = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1700000000", "LC_ALL": "C"}
    again = pip_wheel(checkout, tmp_path / "dist", umask=0o077, **surroundings)
    assert again.name == wheel.name
    assert sha256_of(again) == sha256_of(wheel)


def test_images_get_the_same_wheel(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    built = build_wheel(checkout, tmp_path)
    assert (built.name, sha256_of(built)) == (wheel.name, sha256_of(wheel))
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]


def test_the_wheel_has_each_module_and_template_and_nothing_else(wheel: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/relm", "src/snakemake_logger_plugin_relm"]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.split()
    expected = {name.removeprefix("src/") for name in listed if (CHECKOUT / name).exists()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
        record = archive.read(archive.namelist()[-1]).decode()
        metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    assert packed == expected
    assert set(re.findall(r"^([^,]+),", record, re.M)) == {
        *packed,
        *(name for name in archive.namelist() if ".dist-info/" in name),
    }
    assert "Provides-Extra: loggers" in metadata
    assert 'Requires-Dist: tensorboard; extra == "loggers"' in metadata
