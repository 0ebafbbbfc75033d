"""`relm accept`: the checks of a device on this machine, `accept.json`, and an entry for docs/where-it-ran.yaml."""

import datetime
import importlib.metadata
import platform
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

import relm
from relm.artifact import atomic_file, require_regular_file, write_json
from relm.errors import RelmError
from relm.forecast.acceptance.check_run import CheckResult, CheckRun, hide_names, temporary_folder
from relm.forecast.acceptance.checks import Checks, is_stand_in
from relm.forecast.acceptance.twins import list_recipes
from relm.recipes.checkout import read_commit
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.project import Project

LIMITS = {"losses": 360, "formats": 180, "resume": 180, "determinism": 150, "evaluation": 90, "speed": 240}
"""Check -> its seconds without --full, 20 minutes together; what a check leaves is the next one's."""
HEADINGS = {"cuda": "GPU", "tpu": "TPU", "ipu": "IPU"}


def find_device() -> str:
    """Return the first accelerator that this machine has."""
    lines = []
    for declaration in DEVICES:
        if declaration.accelerators:
            line = load(declaration.check)()
            if line.startswith("yes"):
                return declaration.name
            lines.append(f"  {declaration.name}: {line}")
    raise RelmError("\n".join(["no accelerator found; --device cpu tries the checks without one:", *lines]))


def require_device(device: str) -> None:
    """Raise RelmError if neither the device nor what stands in for it is here."""
    declaration = DEVICES[device]
    if is_stand_in(device) and declaration.simulator is None and declaration.emulation is not None:
        missing = load(declaration.lacks)() if declaration.lacks else None
        line = f"no: {missing}" if missing else "yes"
    else:
        line = load(declaration.check)()
    if not line.startswith("yes"):
        raise RelmError(f"--device {device}: {line.removeprefix('no: ')}")


def require_output(output: Path) -> None:
    """Raise RelmError if the two files could not be written at the end."""
    if output.suffix != ".json":
        raise RelmError(f"--output {output}: expected a name that ends with .json; the entry has the same name with .yaml")
    for path in (output, output.with_suffix(".yaml")):
        require_regular_file(path)
        if path.is_dir():
            raise RelmError(f"--output {output}: {path} is a folder; choose another name")
    try:
        tempfile.TemporaryFile(dir=output.parent).close()
    except OSError as error:
        raise RelmError(f"--output {output}: cannot write in {output.parent}: {error.strerror}; choose another path") from None


def accept(project: Project, device: str | None, names: Sequence[str], full: bool, output: Path) -> str:
    """Run all checks, write accept.json and the entry, and return a sentence; raise RelmError if a check failed."""
    require_output(output)
    recipes = {name: project.plan(name).recipe for name in names}
    device = device or find_device()
    require_device(device)
    if DEVICES[device].pipelined and (whole := [name for name, recipe in recipes.items() if recipe.run.pipeline is None]):
        raise RelmError(f"{whole[0]}: has no pipeline, which --device {device} needs; give a recipe or machine that has one")
    names = names or list_recipes(project, device)
    if not names:
        raise RelmError(f"--device {device}: no recipe trains on it; give NAME")
    checks = Checks(project, device)
    print(f"accepting {device}{' (a stand-in)' if is_stand_in(device) else ''}, recipes: {len(names)}", flush=True)
    with temporary_folder() as folder:
        run = CheckRun(device, folder, full)
        evaluated = next((name for name in names if _objective(project, name) in ("causal", "masked")), names[0])
        run.run_check("losses", LIMITS["losses"], names, checks.compare_losses)
        run.run_check("formats", LIMITS["formats"], names, checks.compare_formats)
        run.run_check("resume", LIMITS["resume"], [evaluated], checks.resume)
        run.run_check("determinism", LIMITS["determinism"], [evaluated], checks.repeat)
        run.run_check("evaluation", LIMITS["evaluation"], [evaluated], checks.evaluate)
        run.run_check("speed", LIMITS["speed"], names, checks.measure)
    facts = describe(run)
    entry = describe_entry(device, facts, run.results)
    with atomic_file(output.with_suffix(".yaml"), "w") as file:
        file.write(entry)
    write_json(output, {**facts, "results": [asdict(result) for result in run.results], "entry": entry})
    return conclude(run.results, output)


def conclude(results: Sequence[CheckResult], output: Path) -> str:
    """Return the last sentence; raise it as a RelmError if a check failed or none passed."""
    count = Counter(result.outcome for result in results)
    sentence = f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
    where = f"{output} has the figures, {output.with_suffix('.yaml')} the entry for docs/where-it-ran.yaml"
    if count["failed"]:
        names = dict.fromkeys(f"{result.check} of {result.recipe}" for result in results if result.outcome == "failed")
        raise RelmError(f"NOT accepted: {sentence}: {', '.join(names)}. {where}")
    if not count["passed"]:
        raise RelmError(f"NOT accepted: {sentence}. {where}")
    return f"accepted: {sentence}; {where}"


def describe(run: CheckRun) -> dict[str, Any]:
    """Return the facts on device, software and commit, without names of hosts and users."""
    code = read_commit()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {
        "device": run.device,
        "stand_in": is_stand_in(run.device),
        "full": run.full,
        "date": now,
        "commit": code["commit"],
        "changed": code["changed"],
        "relm": importlib.metadata.version("relm"),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "made_on": run.made_on,
        "limits": LIMITS,
    }
    hidden: dict[str, Any] = hide_names(facts)
    return hidden


def describe_entry(device: str, facts: Mapping[str, Any], results: Sequence[CheckResult]) -> str:
    """Return an entry for docs/where-it-ran.yaml: one row under the heading of the device."""
    named = next((other.name for other in DEVICES if other.simulator == device), device)
    made_on, count = facts["made_on"], Counter(result.outcome for result in results)
    outcomes = Counter((result.check, result.outcome) for result in results)
    speeds = [f"{result.recipe}: {result.sentence}" for result in results if result.check == "speed" and result.figures]
    where = ", ".join([str(made_on.get("name", device)), *(f"{key} {made_on[key]}" for key in ("torch",) if key in made_on)])
    row: dict[str, Any] = {
        "what": "`relm accept`: " + ", ".join(dict.fromkeys(check for check, outcome in outcomes if outcome == "passed")),
        "where": f"{where}, in place of the device" if facts["stand_in"] else where,
        **({"device": named} if named in (HOST, *HEADINGS) else {}),
        "state": "stand_in" if facts["stand_in"] else "ran",
        "commands": [f"relm accept --device {device}"],
        "tests": ["tests/forecast/test_acceptance.py"],
    }
    if facts["commit"]:
        row |= {"date": _date_of(facts["commit"]), "commit": facts["commit"][:7]}
    note = f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped."
    row["note"] = " ".join([note, *(f"{speed}." for speed in speeds)])
    text = yaml.safe_dump({HEADINGS.get(named, "CPU"): [row]}, sort_keys=False, allow_unicode=True, width=120)
    return str(text)


def _date_of(commit: str) -> str:
    """Return the date of a commit, as docs/where-it-ran.yaml needs it; today's if git does not know it."""
    root = Path(relm.__file__).resolve().parents[2]
    asked = ["git", "-C", str(root), "log", "-1", "--format=%ad", "--date=short", commit]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found = ""
    return found or datetime.datetime.now(datetime.UTC).date().isoformat()


def _objective(project: Project, name: str) -> str:
    recipe = project.plan(name).recipe
    return recipe.pretrain[next(iter(recipe.pretrain))].objective
