"""The command line: a sub-command for each step."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.steps.contract import Step


def parser(steps: Mapping[str, Step]) -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="relm",
        description="Reproducible language-model pretraining, step by step. `snakemake results/NAME` runs them all in order.",
        epilog="`relm STEP --help` explains a step; `relm list` shows the recipes.",
    )
    commands = top.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, step in steps.items():
        command = commands.add_parser(
            name,
            help=step.help.replace("%", "%%"),
            description=f"{step.help[:1].upper()}{step.help[1:]}.",
            epilog=step.epilog,
        )
        for names, options in step.arguments:
            command.add_argument(*names, **_list_choices(options))
        command.add_argument("--log", type=Path, metavar="PATH", help="also write the last line here")
    return top


def _list_choices(options: dict[str, Any]) -> dict[str, Any]:
    """Return an argument's options with its choices; where they are a function, extensions may have added to them."""
    choices = options.get("choices")
    return {**options, "choices": choices()} if callable(choices) else options
