"""Sources of files: what they state of themselves, and what of it decides the identity of a file."""

from typing import Any

import pytest
from pydantic import ValidationError

from relm.recipes.files.remote_files import RemoteFile, Source

ARCHIVE = {"url": "https://one.example/pack.zip", "member": "thing"}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"url": "https://one.example/thing", "size": 5}, "size: needs member or decompress"),
        ({**ARCHIVE, "size": 0}, "greater than 0"),
        ({"url": "http://[::1/thing"}, "expected a whole address"),
        ({"url": "http://one.example:port/thing"}, "expected a whole address"),
        ({"url": "http:///thing"}, "expected a whole address"),
    ],
)
def test_a_source_that_cannot_be_right_is_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Source.model_validate(keys)


def test_the_size_of_an_archive_does_not_change_the_identity_of_a_file() -> None:
    plain, sized = (
        RemoteFile.model_validate({"sha256": "first_download", "at_most": 9, "sources": [{**ARCHIVE, **more}]})
        for more in ({}, {"size": 5})
    )
    assert plain.identity == sized.identity
    assert sized.sources[0].size == 5
