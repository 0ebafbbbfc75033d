"""Suppress Snakemake's first line, which names the profile, if that profile chooses this logger."""

import builtins
import re
import sys
from pathlib import Path
from typing import Any

_NOTICE = re.compile(r"^Using workflow specific profile (.+) for setting default command line arguments\.$")
_CHOICE = re.compile(r"^logger:.*\brelm\b", re.MULTILINE)
ALL_IS_SHOWN = frozenset({"--verbose", "--logger-relm-frames"})


def drop_profile_notice() -> None:
    """Make Snakemake's command line skip its notice of a profile that chooses this logger.

    It prints this before it makes a logger, so only replacing its `print` helps.
    """
    import snakemake.cli

    def print_other(*words: Any, **options: Any) -> None:
        notice = _NOTICE.match(" ".join(map(str, words)))
        if notice is None or ALL_IS_SHOWN & set(sys.argv) or not _chooses_relm(Path(notice[1])):
            builtins.print(*words, **options)

    snakemake.cli.print = print_other


def _chooses_relm(profile: Path) -> bool:
    path = profile / "config.yaml"
    return path.is_file() and _CHOICE.search(path.read_text(encoding="utf-8", errors="replace")) is not None
