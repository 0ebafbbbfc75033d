"""Faults of one source, after which a download tries the next one."""

from collections.abc import Iterable

from relm.errors import RelmError


class SourceFault(RelmError):
    """This source does not have the file; the next one may."""


class WrongHash(SourceFault):
    """The bytes of a source have another sha256 than the recipe's."""


class TemporaryFault(SourceFault):
    """This source may have the file on another attempt."""


class Throttled(TemporaryFault):
    """The source got too many requests (HTTP 429) and wants the next one later."""

    def __init__(self, message: str, seconds: float | None) -> None:
        """Take the message, and the seconds that the source asks for; None: it names none."""
        super().__init__(message)
        self.seconds = seconds


class Stalled(TemporaryFault):
    """The source sent nothing, or too little, for a minute or two."""


class Unreachable(TemporaryFault):
    """No connection: another attempt helps less than after a fault in mid-transfer."""


def clip(text: str, most: int = 200) -> str:
    r"""Return a server's text for a message: at most `most` characters, without those that control a terminal.

    >>> clip("not\x1b[2J found", most=9)
    'not?[2J f...'
    """
    shown = "".join(character if character.isprintable() else "?" for character in text[:most])
    return shown + ("..." if len(text) > most else "")


def clip_list(names: Iterable[str], none: str = "nothing") -> str:
    """Return the first ten names of a server's list for a message, and of longer lists the number of names."""
    listed = list(names)
    shown = ", ".join(clip(name) for name in listed[:10])
    return f"{shown} and others, {len(listed):,} in all" if len(listed) > 10 else shown or none
