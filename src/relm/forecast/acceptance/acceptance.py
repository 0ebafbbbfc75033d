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
from relm.forecast.acceptance.checks import Checks, is_stand_in
from relm.forecast.acceptance.session import Finding, Session, hide_names, temporary_folder
from relm.forecast.acceptance.twins import list_recipes
from relm.recipes.checkout import read_commit
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.project import Project

LIMITS = {"losses": 360, "formats": 180, "resume": 180, "determinism": 150, "evaluation": 90, "speed": 240}
"""Check -> its seconds without --full, 20 minutes together."""
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
    for name in names:
        project.plan(name)
    device = device or find_device()
    require_device(device)
    recipes = list(names) or list_recipes(project, device)
    if not recipes:
        raise RelmError(f"--device {device}: no recipe trains on it; give NAME")
    checks = Checks(project, device)
    print(f"accepting {device}{' (a stand-in)' if is_stand_in(device) else ''} with {len(recipes)} recipes", flush=True)
    with temporary_folder() as folder:
        session = Session(device, folder, full)
        evaluated = next((name for name in recipes if _objective(project, name) in ("causal", "masked")), recipes[0])
        session.run_check("losses", LIMITS["losses"], recipes, checks.compare_losses)
        session.run_check("formats", LIMITS["formats"], recipes, checks.compare_formats)
        session.run_check("resume", LIMITS["resume"], [evaluated], checks.resume)
        session.run_check("determinism", LIMITS["determinism"], [evaluated], checks.repeat)
        session.run_check("evaluation", LIMITS["evaluation"], [evaluated], checks.evaluate)
        session.run_check("speed", LIMITS["speed"], recipes, checks.measure)
    facts = describe(session)
    entry = describe_entry(device, facts, session.findings)
    with atomic_file(output.with_suffix(".yaml"), "w") as file:
        file.write(entry)
    write_json(output, {**facts, "findings": [asdict(finding) for finding in session.findings], "entry": entry})
    return conclude(session.findings, output)


def conclude(findings: Sequence[Finding], output: Path) -> str:
    """Return the last sentence; raise it as a RelmError if a check failed or none passed."""
    count = Counter(finding.outcome for finding in findings)
    sentence = f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped"
    where = f"{output} has the figures, {output.with_suffix('.yaml')} the entry for docs/where-it-ran.yaml"
    if count["failed"]:
        names = dict.fromkeys(f"{finding.check} of {finding.recipe}" for finding in findings if finding.outcome == "failed")
        raise RelmError(f"NOT accepted: {sentence}: {', '.join(names)}. {where}")
    if not count["passed"]:
        raise RelmError(f"NOT accepted: {sentence}. {where}")
    return f"accepted: {sentence}; {where}"


def describe(session: Session) -> dict[str, Any]:
    """Return the facts on device, software and commit, without names of hosts and users."""
    code = read_commit()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    facts = {
        "device": session.device,
        "stand_in": is_stand_in(session.device),
        "full": session.full,
        "date": now,
        "commit": code["commit"],
        "changed": code["changed"],
        "relm": importlib.metadata.version("relm"),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "made_on": session.made_on,
        "limits": LIMITS,
    }
    hidden: dict[str, Any] = hide_names(facts)
    return hidden


def describe_entry(device: str, facts: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Return an entry for docs/where-it-ran.yaml: one row under the heading of the device."""
    named = next((other.name for other in DEVICES if other.simulator == device), device)
    made_on, count = facts["made_on"], Counter(finding.outcome for finding in findings)
    outcomes = Counter((finding.check, finding.outcome) for finding in findings)
    speeds = [f"{finding.recipe}: {finding.sentence}" for finding in findings if finding.check == "speed" and finding.figures]
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
