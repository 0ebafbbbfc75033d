"""The command line: a sub-command for each step, a help in groups, and the nearest name for a mistyped one."""

import argparse
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from relm.steps.contract import GROUPS, Arguments, Step, name_of

INTRODUCTION = "Reproducible language-model pretraining. `snakemake results/NAME` runs all steps of a recipe in order."
EPILOGUE = "`relm STEP --help` explains a step; `relm STEP NAME` runs a recipe's job, with --print it shows its command."
BY_NAME = (
    "`relm {} NAME [WHICH] [--set KEY=VALUE]` takes all of this from a recipe. WHICH: of several jobs, a number or a part of "
    "what it makes. --print [plain|docker]: show the command."
)
OF_RESULT = "`relm {} NAME` takes the model in results/NAME. --print [plain|docker]: show the command."
WIDEST = 100
SET_HELP = "a key of the recipe with another value for this run, such as pretrain.main.steps=600; may be given several times"


class MissingArguments(Exception):
    """Required arguments are absent; a recipe's name may replace them."""


class Once(argparse.Action):
    """Store the values of an option, which may be given once: a second list would replace the first."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Arguments, values: Any, option: str | None = None) -> None:
        """Store the values."""
        if option is not None and getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "is given twice; give all its values once, in order")
        setattr(namespace, self.dest, values)


class StepParser(argparse.ArgumentParser):
    """The parser of one step: an unknown option is answered with the nearest one."""

    def error(self, message: str) -> NoReturn:
        """End with the usage and a message, or raise MissingArguments if nothing else is wrong."""
        if message.startswith("the following arguments are required"):
            raise MissingArguments(message)
        super().error(message)

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """End with a message on arguments that the step does not have."""
        options = [option for action in self._actions for option in action.option_strings]
        near = suggest_name(words[0].partition("=")[0], options) if words[0].startswith("-") else None
        super().error(f"unknown argument {words[0]!r}{f'; did you mean {near}?' if near else ''}")


class Parser(argparse.ArgumentParser):
    """The parser of the whole command line."""

    def __init__(self, steps: Mapping[str, Step]) -> None:
        """Add a sub-command for each step."""
        super().__init__(prog="relm", description=INTRODUCTION, epilog=EPILOGUE)
        self.steps, self.parsers = steps, dict[str, StepParser]()
        commands = self.add_subparsers(dest="step", metavar="STEP", required=True, parser_class=StepParser)
        for name, step in steps.items():
            description = f"{step.help[:1].upper()}{step.help[1:]}."
            by_name = (OF_RESULT if step.reads_result else BY_NAME).format(name) if step.takes_name else ""
            command = commands.add_parser(name, description=description, epilog=f"{step.epilog} {by_name}".strip())
            for names, options in step.arguments:
                once = {"action": Once} if names[0].startswith("-") and options.get("nargs") in ("+", "*") else {}
                choices = {"choices": options["choices"]()} if callable(options.get("choices")) else {}  # with extensions'
                command.add_argument(*names, **{**once, **options, **choices})
            if any(name_of(argument) == "recipe" for argument in step.arguments):
                command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
            command.add_argument("--log", type=Path, metavar="PATH", help="also write the last line here")
            self.parsers[name] = command

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Return the arguments of a command line; end the process with 2 for a fault, but raise MissingArguments."""
        if argv and not argv[0].startswith("-") and argv[0] not in self.steps:
            near = suggest_name(argv[0], self.steps)
            hint = f"did you mean `relm {near}`?" if near else "`relm --help` lists the steps."
            self.exit(2, f"relm: there is no step {argv[0]!r}; {hint}\n")
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            self.parsers[arguments.step].refuse_unknown(unknown)
        return arguments

    def format_help(self) -> str:
        """Return the steps in groups, one line each."""
        width = min(shutil.get_terminal_size().columns, WIDEST)
        longest = max(map(len, self.steps))
        lines = ["usage: relm STEP ...", "", *textwrap.wrap(INTRODUCTION, width)]
        for group, heading in GROUPS.items():
            helps = {
                name: shorten_help(step.help, width - longest - 4) for name, step in self.steps.items() if step.group == group
            }
            lines += ["", f"{heading}:", *(f"  {name:<{longest}}  {text}".rstrip() for name, text in helps.items())]
        return "\n".join([*lines, "", *textwrap.wrap(EPILOGUE, width), ""])

    def print_missing(self, missing: MissingArguments, step: str) -> int:
        """Print that arguments are absent, after the step's usage, and return the exit status."""
        self.parsers[step].print_usage(sys.stderr)
        declared, hint = self.steps[step], ""
        if declared.takes_name:
            taken = "takes the model in results/NAME" if declared.reads_result else "fills them in from a recipe"
            hint = f"; `relm {step} NAME` {taken}"
        print(f"relm {step}: {missing}{hint}", file=sys.stderr)
        return 2


def suggest_name(word: str, names: Iterable[str]) -> str | None:
    """Return the name nearest to a mistyped one; None: none is near.

    >>> suggest_name("pretrian", ["pretrain", "publish"]), suggest_name("x", ["pretrain"])
    ('pretrain', None)
    """
    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)), None)


def shorten_help(text: str, width: int) -> str:
    """Return as much of a step's help as fits, up to the end of a part of the sentence.

    >>> shorten_help("fetch one file, from the first source that has the right bytes", 40)
    'fetch one file'
    """
    if len(text) <= width:
        return text
    for end_of_part in (r"[;:] | \(", r", (?!.*\b(and|or)\b)"):  # a comma of a list is none
        if ends := [found.start() for found in re.finditer(end_of_part, text) if found.start() <= width]:
            return text[: ends[-1]]
    return textwrap.shorten(text, width, placeholder=" ...")
