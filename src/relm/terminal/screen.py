"""Lines that stay, and below them lines that change, on a terminal; in a file only those that stay."""

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
        """True if lines can be drawn again."""
        self._drawn = 0

    @property
    def width(self) -> int:
        """Return the columns that a line may take without being wrapped."""
        return max(shutil.get_terminal_size().columns - 1, 20)

    def write(self, text: str = "", changing: Sequence[str] = ()) -> None:
        """Write lines that stay, and the changing ones below them; an empty text writes none."""
        parts = [_UP.format(self._drawn), _CLEAR_BELOW] if self._drawn else []
        parts += [f"{text}\n"] if text else []
        self._drawn = len(changing) if self.is_live else 0
        parts += [f"{line[: self.width]}\n" for line in changing[: self._drawn]]
        if not parts:
            return
        try:
            self.stream.write("".join(parts))
            self.stream.flush()
        except (BrokenPipeError, ValueError):  # its reader has ended, as in `snakemake -n results/NAME | head`
            self._drawn = 0
