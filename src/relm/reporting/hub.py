"""A published run on the Hugging Face hub: files are compared with their hashes, and sent only if that is confirmed."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from relm.artifact import read_json
from relm.corpus.download.locations import read_hugging_face_endpoint
from relm.errors import RelmError
from relm.formatting import format_bytes, format_row
from relm.plan.published_files import format_checksums
from relm.recipes.redaction import mask_secrets
from relm.recipes.run_folder import CHECKSUMS, METADATA
from relm.reporting.check import require_whole

TOKEN = "HF_TOKEN"
CARD = "README.md"
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
Content = bytes | Path
"""The content of a file to send, or where it is."""


def publish_to_hub(folder: Path, repository: str, confirmed: bool) -> str:
    """Upload `results/NAME` as one commit, or, unless that is confirmed, return a list of what would be uploaded.

    The repository is made if there is none, as a private one. Files of an earlier commit that this run does not have stay.

    Args:
        repository: OWNER/NAME.

    Raises:
        RelmError: the folder is absent or a file of it differs from its hash, there is no token, or the hub refuses.
    """
    if not REPOSITORY.fullmatch(repository):
        raise RelmError(f"--hub {repository}: expected OWNER/NAME, a repository on the Hugging Face hub")
    files = prepare_files(folder, repository)
    sizes = {name: len(content) if isinstance(content, bytes) else content.stat().st_size for name, content in files.items()}
    total = f"{len(files)} files of {format_bytes(sum(sizes.values()))}"
    if not confirmed:
        rows = [format_row(format_bytes(size), name) for name, size in sizes.items()]
        again = f"nothing was sent; --yes sends them, with the token in {TOKEN}"
        return "\n".join([f"would upload {total} of {folder} to {repository}:", *rows, again])
    token = os.environ.get(TOKEN)
    if not token:
        raise RelmError(f"{TOKEN} is not set in the environment; set it to a token of yours that may write {repository}")
    return f"uploaded {total} of {folder} to {_upload(files, repository, token)}"


def prepare_files(folder: Path, repository: str) -> dict[str, Content]:
    """Return the files of a published run by name, after comparing each with its hash.

    The card's lines of Python name the repository instead of the folder, and the crate and the list of hashes have that card's.
    """
    if not (folder / METADATA).is_file():
        raise RelmError(f"{folder}: is no published run, for it has no {METADATA}; snakemake {folder} publishes it")
    require_whole(folder)
    crate = read_json(folder / METADATA)
    entities = {unquote(entity["@id"]): entity for entity in crate["@graph"] if entity["@type"] == "File"}
    if outside := [name for name in entities if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise RelmError(f"{folder / METADATA}: names {outside[0]}, which is outside its folder; publish the run again")
    card = (folder / CARD).read_text(encoding="utf-8").replace(f'"{folder.as_posix()}"', f'"{repository}"').encode()
    entities[CARD] |= {"sha256": hashlib.sha256(card).hexdigest(), "contentSize": str(len(card))}
    described = json.dumps(crate, indent=1, ensure_ascii=False).encode() + b"\n"
    hashes = {name: str(entity["sha256"]) for name, entity in entities.items()}
    checksums = format_checksums(hashes | {METADATA: hashlib.sha256(described).hexdigest()}).encode()
    files: dict[str, Content] = {name: folder / name for name in entities}
    return files | {CARD: card, METADATA: described, CHECKSUMS: checksums}


def _upload(files: Mapping[str, Content], repository: str, token: str) -> str:
    """Send files as one commit, and return its address."""
    import httpx2
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(read_hugging_face_endpoint(), token=token, library_name="relm")
    operations: list[Any] = [CommitOperationAdd(name, content) for name, content in files.items()]
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.create_commit(repository, operations, commit_message="A run published by relm")
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        reason = mask_secrets(str(error).replace(token, "***")).strip().splitlines() or [type(error).__name__]
        raise RelmError(
            f"{repository}: cannot be uploaded ({reason[0]}); does the token in {TOKEN} allow to write it, and is "
            f"{api.endpoint} reachable? The same command begins again"
        ) from None
    return str(commit.commit_url)
