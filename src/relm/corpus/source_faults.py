"""Reasons why one source does not give a file, which send a download to the next source."""

from relm.errors import RelmError

# Keys below files.NAME of a dataset: the sha256 of the file, and that of what one source sends, which may be an archive.
FILE_HASH, SOURCE_HASH = "sha256", "sources[].sha256"


class SourceFault(RelmError):
    """This source does not have the file; the next one may."""


class WrongHash(SourceFault):
    """The bytes of a source are not those whose sha256 the recipe has."""

    def __init__(self, message: str, key: str = FILE_HASH) -> None:
        """Name what is wrong, and the key that has the expected hash."""
        super().__init__(message)
        self.key = key


class TemporaryFault(SourceFault):
    """This source may have the file on another attempt."""


class Unreachable(TemporaryFault):
    """No connection at all: another attempt helps less than after a fault in mid-transfer."""
