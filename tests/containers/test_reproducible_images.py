"""Two builds of the cpu image: podman gives our layers the same bytes."""

import json
import os
import time
from pathlib import Path

import pytest
from engines import STAND_IN, Engine

from relm.containers.build import build_context
from relm.containers.context import lay_out

pytestmark = [pytest.mark.containers, pytest.mark.full, pytest.mark.timeout(3600)]


def list_layers(engine: Engine, image: str) -> list[str]:
    """Return the digests of an image's layers, the base's first."""
    layers: list[str] = json.loads(engine.run("image", "inspect", image).stdout)[0]["RootFS"]["Layers"]
    return layers


def rebuild(engine: Engine, folder: Path, checkout: Path) -> list[str]:
    """Build the cpu image without what the engine kept of an earlier build, and return the layers that are ours."""
    context = lay_out("cpu", folder, checkout, {"BASE": STAND_IN})
    for number, path in enumerate(sorted(folder.rglob("*"), reverse=True)):
        if path.parent.name == "relm":  # links to the cache of wheels keep their times
            os.utime(path, (time.time() - 1000 * number,) * 2)
    engine.run("rmi", "--force", "relm/cpu:0.1.0", check=False)
    engine.run("image", "prune", "--force")  # the layers of an earlier build
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine.environment.items():
            patch.setenv(name, value)
        identifier, _ = build_context(context, "cpu", checkout)
    base = list_layers(engine, STAND_IN)
    layers = list_layers(engine, identifier)
    assert layers[: len(base)] == base
    return layers[len(base) :]


def test_our_layers_of_the_cpu_image_have_the_same_bytes_at_each_build(
    podman_engine: Engine, checkout: Path, tmp_path: Path
) -> None:
    first = rebuild(podman_engine, tmp_path / "first", checkout)
    time.sleep(2)
    second = rebuild(podman_engine, tmp_path / "second", checkout)
    assert first
    assert second == first
