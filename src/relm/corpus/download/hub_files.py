"""Files on the Hugging Face hub (`resolve/REVISION/FILE`), at the address and with the token that its client is given."""

import os
import re
from urllib.parse import quote

from relm.corpus.download.locations import BearerToken, Location
from relm.errors import RelmError
from relm.recipes.files.remote_files import Source

HUGGING_FACE = "https://huggingface.co"


def locate_on_hugging_face(source: Source) -> Location:
    """Return the location of a file in a repository; the hub states no digest of it beforehand."""
    kind = "datasets/" if source.repository_type == "dataset" else ""
    revision, file = quote(str(source.revision), safe=""), quote(str(source.file))
    url = f"{read_hugging_face_endpoint()}/{kind}{source.huggingface}/resolve/{revision}/{file}"
    return Location(url, auth=read_hugging_face_token())


def read_hugging_face_endpoint() -> str:
    """Return HF_ENDPOINT, or the public hub's address, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")


def read_hugging_face_token() -> BearerToken | None:
    """Return the token of HF_TOKEN, if it is set."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        return None
    if not re.fullmatch(r"[!-~]+", token):
        raise RelmError("HF_TOKEN: holds spaces or characters that no token has; set it to the token alone, or unset it")
    return BearerToken(token)
