"""`make images`: build roles' images with Docker or podman and write their ids into the lock's override.

python -m relm.containers.build ROLE... [--base NAME=IMAGE]
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relm.containers.context import Context, lay_out
from relm.containers.lock import ROLES, Built, Role, image_of, record_built
from relm.containers.run_line import Engine
from relm.containers.shim import engine
from relm.errors import RelmError


def build_line(asked: Engine, context: Context, tag: str, id_file: Path, options: Sequence[str] = ()) -> list[str]:
    """The words of `docker build` or `podman build`."""
    line = [asked, "build", "--iidfile", str(id_file), "--tag", tag, *options]
    for name, value in context.arguments.items():
        line += ["--build-arg", f"{name}={value}"]
    return [*line, str(context.folder)]


def build(role: Role, given_bases: dict[str, str], options: Sequence[str] = (), checkout: Path = Path()) -> Built:
    """Build one role's image and write down its id; the engine's own words go to the terminal.

    Raises:
        RelmError: no engine, unverified bases, wheels that cannot be fetched, or a build that failed.
    """
    asked, entry = engine(), image_of(role, checkout)
    with tempfile.TemporaryDirectory(prefix=f"relm-{role}-") as scratch:
        context = lay_out(role, Path(scratch) / "context", checkout, given_bases)
        id_file = Path(scratch) / "id"
        line = build_line(asked, context, f"{entry.image}:{entry.tag}", id_file, options)
        if status := subprocess.run(line).returncode:
            raise RelmError(f"{role}: {asked} build ended with {status}, its message is above; nothing was written down")
        made = Built(
            id=id_file.read_text().strip() if ":" in id_file.read_text() else f"sha256:{id_file.read_text().strip()}",
            bases={name: value for name, value in context.arguments.items() if name in entry.bases},
            built=datetime.datetime.now(datetime.UTC).date(),
            commit=None if context.arguments["COMMIT"] == "unknown" else context.arguments["COMMIT"],
        )
    record_built(role, made, checkout)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the roles that are named, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roles", nargs="+", choices=ROLES, metavar="ROLE", help=", ".join(ROLES))
    parser.add_argument("--base", action="append", default=[], metavar="NAME=IMAGE", help="an image instead of the lock's base")
    parser.add_argument("--option", action="append", default=[], metavar="WORD", help="one more word for the engine's build")
    given = parser.parse_args(arguments)
    try:
        bases = dict(word.split("=", 1) for word in given.base)
        for role in given.roles:
            made = build(role, bases, given.option)
            print(f"{role}: {made.id}, written into containers/lock.local.yaml")
    except RelmError as error:
        print(f"relm.containers.build: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
