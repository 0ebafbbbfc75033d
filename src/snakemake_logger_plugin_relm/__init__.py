"""The name under which Snakemake looks for a logger called relm; the logger itself is in `relm.terminal`."""

from relm.terminal.handler import LogHandler, LogHandlerSettings
from relm.terminal.profile_notice import drop_profile_notice

__all__ = ["LogHandler", "LogHandlerSettings"]

drop_profile_notice()
