"""Write lines that stay and, on a terminal, lines below them that change."""

import os
import shutil
from collections.abc import Sequence
from typing import TextIO

_UP, _CLEAR_BELOW = "\x1b[{}F", "\x1b[J"


class Screen:
    """A stream that may be a terminal."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a stream, which is a terminal or a file."""
        self.stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        """True if lines can be redrawn."""
        self._drawn = 0

    @property
    def width(self) -> int:
        """Return the width of the longest line that is not wrapped."""
        return max(shutil.get_terminal_size().columns - 1, 20)

    def write(self, text: str = "", changing: Sequence[str] = ()) -> None:
        """Write lines that stay, if any, and the changing ones below them."""
        parts = [_UP.format(self._drawn), _CLEAR_BELOW] if self._drawn else []
        parts += [f"{text}\n"] if text else []
        self._drawn = len(changing) if self.is_live else 0
        parts += [f"{line[: self.width]}\n" for line in changing[: self._drawn]]
        if not parts:
            return
        try:
            self.stream.write("".join(parts))
            self.stream.flush()
        except (BrokenPipeError, ValueError):  # the reader has closed it, as in `snakemake -n results/NAME | head`
            self._drawn = 0
