"""The name under which Snakemake looks for a logger called relm; the logger itself is in `relm.terminal`."""

from relm.terminal.handler import LogHandler, LogHandlerSettings

__all__ = ["LogHandler", "LogHandlerSettings"]
