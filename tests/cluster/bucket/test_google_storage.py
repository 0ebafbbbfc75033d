"""gs:// through gcsfs to a local server with Google Cloud Storage's API; the real service is not tested."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_bucket import SmallBucket, small_bucket

from relm.artifact import sha256_of
from small_project import Commands

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gcsfs") is None, reason="gcsfs is in the TPU's environment alone: make test-xla"
)


@pytest.fixture
def bucket() -> Iterator[SmallBucket]:
    with small_bucket() as server:
        yield server


def relm(project: Commands, bucket: SmallBucket, *words: str) -> "subprocess.CompletedProcess[str]":
    """Return a command to which gs:// is the server here, without credentials."""
    here = {"STORAGE_EMULATOR_HOST": bucket.address, "FSSPEC_GCS_TOKEN": "anon", "FSSPEC_GS_TOKEN": "anon"}
    command = [sys.executable, "-m", "relm", *words]
    everything = {**project.environment, **here}
    return subprocess.run(command, cwd=project.folder, env=everything, text=True, capture_output=True, timeout=240)


def downloaded(project: Commands) -> Path:
    """Return the project's data: the dump, of over 5 MB, which is sent in pieces, and something small."""
    sha256 = sha256_of(project.folder / "mirror" / "sample.xml")
    folder = project.folder / "work" / "downloads" / "data" / "sample" / sha256[:12]
    shutil.copytree(project.folder / "mirror", folder)
    (folder / "sample.xml.record.json").write_text("{}")
    return folder / "sample.xml"


def test_data_goes_to_a_bucket_and_comes_back(project: Commands, bucket: SmallBucket, tmp_path: Path) -> None:
    dump = downloaded(project)
    sha256, content = sha256_of(dump), dump.read_bytes()
    done = relm(project, bucket, "push", "gs://mine/relm", "tiny")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny: 2 files, 2 of them sent (5.")
    assert bucket.objects[f"relm/objects/{sha256}"] == content
    assert not [name for name in bucket.objects if "partial" in name]
    assert "0 of them sent" in relm(project, bucket, "push", "gs://mine/relm", "tiny").stdout
    shutil.rmtree(project.folder / "work")
    done = relm(project, bucket, "pull", "gs://mine/relm", "tiny")
    assert done.returncode == 0, done.stderr
    assert dump.read_bytes() == content
    assert os.path.getsize(dump) > 5 * 2**20


@pytest.mark.parametrize(
    ("store", "message"),
    [("gs://closed/relm", "permission denied"), ("gs://nowhere/relm", "no such bucket, folder or object")],
)
def test_a_bucket_that_refuses_or_is_not_there_is_reported_in_a_sentence(
    store: str, message: str, project: Commands, bucket: SmallBucket
) -> None:
    downloaded(project)
    done = relm(project, bucket, "push", store, "tiny")
    assert done.returncode == 1
    assert done.stderr.startswith(f"relm push: {store}: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
