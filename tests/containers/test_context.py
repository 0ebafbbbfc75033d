"""The build context of an image: its locks, the wheels that they name, and relm's sources."""

from pathlib import Path

import pytest

from relm.containers import context
from relm.containers.context import hash_locks, lay_out, list_locks


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wheel for each lock, instead of what pip would fetch, and none built of relm."""

    def fetch(lock: Path, wanted: str) -> Path:
        folder = tmp_path / "fetched" / lock.stem
        folder.mkdir(parents=True)
        (folder / f"{lock.stem}.whl").write_text(wanted)
        return folder

    monkeypatch.setattr(context, "fetch_wheels", fetch)
    monkeypatch.setattr(context, "build_wheel", lambda checkout, folder: folder.mkdir())


@pytest.mark.parametrize("loggers", [False, True])
def test_an_image_has_loggers_with_what_they_need_only_where_they_are_requested(
    loggers: bool, fetched: None, checkout: Path, tmp_path: Path
) -> None:
    made = lay_out("cpu", tmp_path / "context", checkout, {"BASE": "python"}, loggers=loggers)
    lines = (made.folder / "locks/packages.txt").read_text().splitlines()
    packages = {line.partition("==")[0] for line in lines if "==" in line}
    assert ({"tensorboard", "wandb", "gitpython"} & packages == {"tensorboard", "wandb", "gitpython"}) == loggers
    assert {"transformers", "pydantic"} < packages
    assert "snakemake" not in packages
    wheels = sorted(path.name for path in (made.folder / "wheels/packages").iterdir())
    assert wheels == (["cpu.whl", "loggers.whl"] if loggers else ["cpu.whl"])
    assert [path.name for path in (made.folder / "wheels/torch").iterdir()] == ["torch-cpu.whl"]
    assert made.arguments["LOCK"] == hash_locks(list_locks("cpu", checkout, loggers))
