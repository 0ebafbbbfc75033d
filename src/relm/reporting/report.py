"""What a finished run tells: the report page, the model card, the resolved recipe, the provenance and the crate."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file, write_json
from relm.provenance.crate import PublishedRun, build_crate
from relm.recipes.plan import Plan
from relm.recipes.run_folder import METADATA
from relm.reporting import plots
from relm.reporting.findings import Findings, gather
from relm.reporting.model_card import model_card
from relm.reporting.pages import template
from relm.reporting.publish import COMPILATION, REPORT_FILES, evaluation_names, published_files


def write_report(
    plan: Plan,
    verify: Path,
    evaluations: Mapping[str, Path],
    output_folder: Path,
    before: Mapping[str, Path] | None = None,
) -> str:
    """Write `report.html`, `README.md`, `recipe.json`, `provenance.json` and `ro-crate-metadata.json`, and `compile.json` as it
    was told of, where the recipe was compiled.

    Times come from the steps' records, so writing the report of the same run again gives the same bytes.

    Raises:
        RelmError: a file of the run is absent or damaged.
    """
    findings = gather(plan, verify, evaluations, before)
    _write(output_folder / "report.html", report_page(findings))
    _write(output_folder / "README.md", model_card(findings))
    write_json(output_folder / "recipe.json", findings.resolved)
    write_json(output_folder / "provenance.json", provenance(findings))
    files = published_files(plan) | {name: output_folder / name for name in REPORT_FILES}
    files.pop(COMPILATION, None)  # of an earlier report
    files |= _kept_compilation(findings, output_folder / COMPILATION)
    files |= evaluation_names(evaluations, before or {}) | {"verify.json": verify}
    del files[METADATA]
    write_json(output_folder / METADATA, build_crate(_published_run(findings), files))
    missing = sum(1 for record in findings.records if not record["step"])
    gaps = f", {missing} files without a record" if missing else ""
    return f"reported {len(findings.figures)} figures and {len(findings.records) - missing} steps{gaps}: {findings.headline}"


def _write(path: Path, text: str) -> None:
    with atomic_file(path, "w") as file:
        file.write(text)


def _kept_compilation(findings: Findings, place: Path) -> dict[str, Path]:
    """A copy of what the page tells of, which is published, whatever is compiled later; {} where there is nothing."""
    if findings.compiled is None or findings.compiled.told is None:
        place.unlink(missing_ok=True)
        return {}
    with atomic_file(place) as file:
        file.write(findings.compiled.content)
    return {COMPILATION: place}


def provenance(findings: Findings) -> dict[str, Any]:
    """`provenance.json`: the records of all steps, in order of the data's way; each list of packages once, by its sha256; and
    what was compiled, by which compiler.
    """
    steps = [
        record | ({"packages": record["packages"]["sha256"]} if "packages" in record else {}) for record in findings.records
    ]
    told = {"name": findings.plan.name, "fingerprint": findings.plan.fingerprint, "steps": steps}
    compiled = {"compiled": findings.compiled.provenance} if findings.compiled and findings.compiled.told else {}
    return told | compiled | {"packages": findings.installed}


def report_page(findings: Findings) -> str:
    """The report as one HTML page that needs nothing else."""
    log = plots.read_log(findings.logs)
    levels = findings.evaluations.get("held_out", {}).get("figures", {})
    return template("report.html").render(
        findings=findings,
        plan=findings.plan,
        recipe=findings.plan.recipe,
        rows=[row | scale(row) for row in findings.verdict["rows"]],
        wide=plots.loss_curve(log, levels),
        narrow=plots.loss_curve(log, levels, narrow=True),
        described=plots.in_words(log),
    )


def scale(row: Mapping[str, Any]) -> dict[str, Any]:
    """Where a row's tolerance, interval and difference lie on a line from 0 to 100, for the page's little diagram; {} without a
    difference.
    """
    if "difference" not in row:
        return {}
    low, high = row.get("interval", (row["difference"], row["difference"]))
    reach = 1.15 * max(row["tolerance"], abs(low), abs(high))

    def at(value: float) -> float:
        return round(float(50 + 50 * value / reach), 2)

    return {
        "band": [at(-row["tolerance"]), at(row["tolerance"])],
        "span": [at(low), at(high)],
        "point": at(row["difference"]),
    }


def _published_run(findings: Findings) -> PublishedRun:
    """Return the facts that the crate states."""
    return PublishedRun(
        title=findings.plan.recipe.title,
        identifier=f"{findings.plan.name}-{findings.plan.fingerprint}",
        description=f"{findings.headline}. {findings.summary}",
        date=findings.date,
        origins=findings.origins,
        records=[record for record in findings.records if record["step"]],
    )
