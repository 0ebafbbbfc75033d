"""Run recipes from dump to verdict while faults strike at random times, and compare the bytes with those of undisturbed runs.

    make chaos MINUTES=60 [SEED=7]

The seed, which is printed, decides what happens and when; processes do not take the same time twice, so another run with the
same seed is similar, not equal. A round is one project: attempts with faults, one after the other, then one without, which has
to succeed. It is *lost* if it does not, or if a product has other bytes. The exit status is 1 if a round was lost or a command
waited for ever. A traceback is reported, and no reason to fail: Python itself prints one where it loads or ends without memory.
"""

import argparse
import collections
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from disturbances import BETWEEN, RUNNING, Disturbance
from disturbed_calls import DisturbedCalls
from disturbed_project import RECIPES, DisturbedProject, Ended, Server, make_project, serving_halves, small_disk

from run_products import hash_products

ATTEMPTS = 5
"""Attempts with faults in a round, at most."""
OUTCOMES = ("finished", "stopped", "traceback", "waited for ever")


@dataclass
class Tally:
    """The faults and how the commands ended that met them, and what was lost."""

    ended: dict[str, collections.Counter[str]] = field(default_factory=lambda: collections.defaultdict(collections.Counter))
    rounds: int = 0
    lost: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)
    """Descriptions of commands that ended with a traceback or did not end."""

    def format(self) -> str:
        """Return a table in Markdown: a line for each kind of fault, and their sums."""
        lines = ["| fault | struck | " + " | ".join(OUTCOMES) + " |", "|---|" + "---|" * (len(OUTCOMES) + 1)]
        sums: collections.Counter[str] = collections.Counter()
        for name, counts in sorted(self.ended.items()):
            lines.append(self._format_row(name.replace("_", " "), counts))
            sums += counts
        return "\n".join([*lines, self._format_row("all", sums)])

    @staticmethod
    def _format_row(name: str, counts: Mapping[str, int]) -> str:
        return f"| {name} | {sum(counts.values())} | " + " | ".join(str(counts.get(each, 0)) for each in OUTCOMES) + " |"


def judge(ended: Ended) -> str:
    """Return the outcome of a command, one of `OUTCOMES`."""
    if ended.code is None:
        return "waited for ever"
    if ended.has_traceback:
        return "traceback"
    return "stopped" if ended.code else "finished"


def find_other(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the products with other bytes than expected, and the published ones that are absent.

    A file of `work` that a fault deleted is made again only if something still needs it.
    """
    published = {name for name in expected if name.startswith("results/")}
    return sorted(name for name in published | expected.keys() & found.keys() if found.get(name) != expected.get(name))


class Chaos:
    """A number of rounds from one seed."""

    def __init__(self, folder: Path, calls: DisturbedCalls, server: Server, seed: int, reports: Path) -> None:
        self.folder, self.calls, self.server, self.reports = folder, calls, server, reports
        self.draw = random.Random(seed)
        self.tally = Tally()
        self.expected: dict[str, dict[str, str]] = {}
        self.longest: dict[str, float] = {}

    def run_undisturbed(self, recipe: str) -> None:
        """Run a recipe in one go, and note its products' hashes and its time."""
        project = make_project(self.folder / f"undisturbed-{recipe}", recipe, self.calls, self.server)
        start = time.monotonic()
        project.begin()
        ended = project.end()
        assert ended.code == 0, ended.printed
        self.expected[recipe], self.longest[recipe] = hash_products(project.folder, recipe), time.monotonic() - start
        print(f"{recipe}: {len(self.expected[recipe])} products in {self.longest[recipe]:.0f} s without faults", flush=True)
        shutil.rmtree(project.folder)

    def run_round(self, number: int) -> None:
        """Run one project with faults until none is left, and compare its products."""
        recipe = self.draw.choice(list(RECIPES))
        if recipe not in self.expected:
            self.run_undisturbed(recipe)
        disk = self.folder / f"round-{number}"
        start = time.monotonic()
        with small_disk(disk):
            project = make_project(disk / "project", recipe, self.calls, self.server)
            story, finished = [], False
            while len(story) < ATTEMPTS and not finished:
                struck, finished = self.disturbed_attempt(project)
                story.append(" + ".join(struck) or "nothing")
            self.finish(project, f"round {number} ({recipe}, {time.monotonic() - start:.0f} s): {'; '.join(story)}")

    def disturbed_attempt(self, project: DisturbedProject) -> tuple[list[str], bool]:
        """Give the command once with up to three faults; return the names of those that struck, and whether it finished."""
        struck, lasting = [], contextlib.ExitStack()
        with lasting:
            if self.draw.random() < 0.4:
                struck += self.strike(BETWEEN, project, lasting)
            project.begin()
            for _ in range(self.draw.choice((1, 1, 2))):
                self.wait(project, self.draw.uniform(0.2, self.longest[project.recipe] / 2))
                struck += self.strike(RUNNING, project, lasting)
            self.wait(project, self.draw.choice((1, 4, 15)))
        ended = project.end()
        self.note(struck, ended, project)
        return struck, ended.code == 0

    def strike(self, kinds: Mapping[str, Disturbance], project: DisturbedProject, lasting: contextlib.ExitStack) -> list[str]:
        """Begin a fault, which lasts until the attempt is over; return its name, or none if there was nothing to harm."""
        for name in self.draw.sample(sorted(kinds), len(kinds)):
            if kinds is RUNNING and not project.is_running():
                break
            harm = kinds[name](project, self.draw)
            for _ in harm:
                lasting.callback(next, harm, None)
                return [name]
        return []

    @staticmethod
    def wait(project: DisturbedProject, seconds: float) -> None:
        """Wait for these seconds, or until the command ends."""
        end = time.monotonic() + seconds
        while project.is_running() and time.monotonic() < end:
            time.sleep(0.05)

    def note(self, struck: list[str], ended: Ended, project: DisturbedProject) -> None:
        """Count how a command ended, and keep what it printed if it should not have ended so."""
        outcome = judge(ended)
        for name in struck:
            self.tally.ended[name][outcome] += 1
        if outcome in ("traceback", "waited for ever"):
            self.tally.faulty.append(f"{outcome} after {' + '.join(struck) or 'no fault'} ({project.recipe})")
            self.report(ended.printed, project)
        if outcome == "waited for ever":
            print(f"{self.tally.faulty[-1]}:\n{ended.printed[-6000:]}", flush=True)

    def report(self, printed: str, project: DisturbedProject) -> None:
        """Keep what a command printed, and its logs."""
        folder = self.reports / f"{len(self.tally.faulty) + len(self.tally.lost):03}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "printed").write_text(printed)
        if (project.folder / "work" / "logs").exists():
            shutil.copytree(project.folder / "work" / "logs", folder / "logs", dirs_exist_ok=True)

    def finish(self, project: DisturbedProject, story: str) -> None:
        """Give the command without a fault, once no process of an earlier attempt is left, and compare the products."""
        project.wait_for_processes()
        project.begin()
        ended = project.end()
        self.tally.rounds += 1
        found = hash_products(project.folder, project.recipe) if ended.code == 0 else {}
        other = find_other(self.expected[project.recipe], found)
        verdict = "the same bytes"
        if ended.code != 0 or other:
            verdict = f"LOST: exit status {ended.code}; other bytes: {', '.join(other[:5])}"
            self.tally.lost.append(f"{story}: {verdict}")
            self.report(ended.printed, project)
        left = sorted(str(path.relative_to(project.folder)) for path in project.folder.glob("work/**/.*.partial"))
        print(f"{story}: {verdict}{f'; left: {left}' if left else ''}", flush=True)


def main() -> int:
    """Run rounds until the time is over, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="begin no new round after so many minutes (5)")
    parser.add_argument("--seed", type=int, default=None, help="decides what happens and when (drawn, and printed)")
    parser.add_argument("--reports", type=Path, default=Path("work/chaos"), help="what failed commands printed (work/chaos)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"chaos: --minutes {options.minutes:g} --seed {seed}", flush=True)
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as made, serving_halves() as server:
        folder = Path(made) / "projects"
        folder.mkdir()
        chaos = Chaos(folder, DisturbedCalls(Path(made), folder), server, seed, options.reports)
        number = 0
        while time.monotonic() < end:
            number += 1
            chaos.run_round(number)
    tally = chaos.tally
    print(f"\n{tally.format()}\n\n{tally.rounds} rounds, {len(tally.lost)} lost", *tally.lost, *tally.faulty, sep="\n")
    return int(bool(tally.lost or sum(counts[OUTCOMES[-1]] for counts in tally.ended.values())))


if __name__ == "__main__":
    sys.exit(main())
