"""The lock of images: nothing pretends to be pinned that is not, and every refusal names the command that helps."""

import datetime
import re
from pathlib import Path

import pytest
import yaml

from relm.containers.lock import (
    LOCK,
    OVERRIDE,
    Built,
    find_bases,
    find_image,
    find_reference,
    find_role,
    read_lock,
    read_override,
    record_built,
)
from relm.errors import RelmError
from relm.recipes.devices import list_image_roles

DIGEST = f"sha256:{'a' * 64}"
PINNED = {"digest": DIGEST, "source": "https://example.org/digests", "checked": "2026-11-20"}


def written(folder: Path, image: dict[str, object] | None = None, base: dict[str, object] | None = None) -> Path:
    """Return a folder whose lock has one image and one base."""
    content = {
        "images": {"cpu": {"image": "relm/cpu", "tag": "1", "bases": {"BASE": "python"}, **(image or {})}},
        "bases": {"python": {"image": "docker.io/library/python", "tag": "3.11", **(base or {})}},
    }
    (folder / "containers").mkdir(exist_ok=True)
    (folder / LOCK).write_text(yaml.safe_dump(content))
    return folder


def test_every_digest_of_the_shipped_lock_says_where_it_is_from(checkout: Path) -> None:
    lock = read_lock(checkout)
    assert set(lock.images) == set(list_image_roles())
    for pinned in (*lock.images.values(), *lock.bases.values()):
        assert pinned.digest is None or (pinned.source and pinned.source.startswith("https://") and pinned.checked)


def test_no_image_of_ours_claims_a_digest_before_it_is_published(checkout: Path) -> None:
    assert [role for role, image in read_lock(checkout).images.items() if image.digest or image.verified] == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"digest": DIGEST}, "add its `source` and the day it was `checked`"),
        ({"digest": DIGEST, "source": "https://example.org"}, "add its `source` and the day it was `checked`"),
        ({"verified": True}, "expected only with a digest"),
        ({**PINNED, "digest": "sha256:abc"}, "bases.python.digest"),
    ],
)
def test_a_digest_without_a_source_is_refused(fault: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=re.escape(message)):
        read_lock(written(tmp_path, base=fault))


def test_a_base_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="unknown base debian; expected one of python"):
        read_lock(written(tmp_path, {"bases": {"BASE": "debian"}}))


def test_an_image_that_was_never_published_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"was never published. Build it here: make images ROLES=cpu"):
        find_reference("cpu", written(tmp_path))


def test_an_unverified_digest_is_refused_with_the_command_that_asks_the_registry(tmp_path: Path) -> None:
    folder = written(tmp_path, PINNED, PINNED)
    with pytest.raises(RelmError, match=r"not verified \(from https://example.org/digests.*docker://relm/cpu:1 \| sha256sum"):
        find_reference("cpu", folder)
    with pytest.raises(RelmError, match=r"docker\.io/library/python:3\.11 \| sha256sum; or .*make images ROLES=cpu BASE=NAME"):
        find_bases("cpu", folder)


def test_an_engine_gets_the_verified_digest(tmp_path: Path) -> None:
    folder = written(tmp_path, {**PINNED, "verified": True}, {**PINNED, "verified": True})
    assert find_reference("cpu", folder) == f"relm/cpu:1@{DIGEST}"
    assert find_bases("cpu", folder)["BASE"].pinned == f"docker.io/library/python:3.11@{DIGEST}"
    assert find_role(f"relm/cpu:1@{DIGEST}", folder) == "cpu"


def test_an_image_built_here_replaces_the_locks(tmp_path: Path) -> None:
    folder = written(tmp_path, {**PINNED, "verified": True})
    built = Built(id=f"sha256:{'b' * 64}", bases={"BASE": "localhost/python"}, built=datetime.date(2026, 11, 20))
    record_built("cpu", built, folder)
    assert read_override(folder).images == {"cpu": built}
    assert find_reference("cpu", folder) == built.id
    assert find_role(built.id, folder) == "cpu"


def test_a_strange_image_has_no_role_and_so_no_flags(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"not in .* or .*, so its device flags are unknown"):
        find_role("docker.io/library/debian:12", written(tmp_path))


def test_a_role_without_an_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match="no image for tpu; expected one of cpu"):
        find_image("tpu", written(tmp_path))


def test_git_ignores_what_was_built_here(checkout: Path) -> None:
    assert f"/{OVERRIDE}" in (checkout / ".gitignore").read_text().splitlines()
