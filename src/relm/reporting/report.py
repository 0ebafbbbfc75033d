"""The files of a report: the report page, the model card, the resolved recipe, the provenance and the crate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import atomic_file, write_json
from relm.formatting import format_count, format_duration, format_price
from relm.plan.products import SEEDS, name_files, published_files
from relm.provenance.citation import read_citation
from relm.provenance.crate import PublishedRun, build_crate
from relm.recipes.devices import HOST
from relm.recipes.plan import Plan
from relm.recipes.run_folder import METADATA, REPORT_FILES
from relm.reporting.curve import compare_with_curve
from relm.reporting.findings import Findings, gather
from relm.reporting.model_card import model_card
from relm.reporting.oracles import describe_oracles
from relm.reporting.pages import template
from relm.reporting.replaced_results import keep_replaced
from relm.reporting.training_charts import tabulate_values, training_charts
from relm.reporting.training_log import read_log


def write_report(
    plan: Plan,
    verify: Path,
    evaluations: Mapping[str, Path],
    output_folder: Path,
    before: Mapping[str, Path] | None = None,
    other_seeds: Sequence[Mapping[str, Path]] = (),
) -> str:
    """Write `report.html`, `README.md`, `recipe.json`, `provenance.json` and `ro-crate-metadata.json`.

    Times come from the steps' records, so writing the report of the same run again gives the same bytes.

    Args:
        evaluations: task -> figures of the trained model.
        before: task -> figures of the starting weights.
        other_seeds: the evaluations of each of the recipe's other seeds.
    """
    findings = gather(plan, verify, evaluations, before, other_seeds)
    _write(output_folder / "report.html", report_page(findings))
    _write(output_folder / "README.md", model_card(findings))
    write_json(output_folder / "recipe.json", findings.resolved | {"report": plan.report_key})
    write_json(output_folder / "provenance.json", provenance(findings, keep_replaced(plan)))
    files = published_files(plan) | {name: output_folder / name for name in REPORT_FILES}
    files |= name_files("evaluation", evaluations) | name_files("evaluation before", before or {})
    files["verify.json"] = verify
    for run, figures in zip(plan.runs[1:], other_seeds, strict=True):
        files |= {f"{SEEDS}/{run.recipe.seed}/{name}": path for name, path in name_files("evaluation", figures).items()}
    del files[METADATA]
    write_json(output_folder / METADATA, build_crate(_published_run(findings), files))
    missing = sum(1 for record in findings.records if not record["step"])
    gaps = f", {missing} files without a record" if missing else ""
    return f"reported {len(findings.figures)} figures and {len(findings.records) - missing} steps{gaps}: {findings.headline}"


def _write(path: Path, text: str) -> None:
    with atomic_file(path, "w") as file:
        file.write(text)


def provenance(findings: Findings, replaced: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of `provenance.json`.

    It has the records of all steps in order of the data flow, and each list of packages once, by its sha256.
    """
    steps = [
        record | ({"packages": record["packages"]["sha256"]} if "packages" in record else {}) for record in findings.records
    ]
    run = {"name": findings.plan.published_name, "fingerprint": findings.plan.fingerprint, "steps": steps}
    before = {"replaces": replaced} if replaced else {}
    return run | before | {"packages": findings.installed}


class Fact(NamedTuple):
    """One figure at the top of the page, with a note below."""

    name: str
    value: str
    note: str = ""


def list_facts(findings: Findings, seconds: float | None) -> list[Fact]:
    """Return what a run is: parameters, tokens, time, throughput, hardware, and the cost on one machine with a price."""
    plan, facts = findings.plan, list[Fact]()
    if (parameters := findings.model.get("parameters")) is not None:
        facts.append(Fact("parameters", format_count(parameters), plan.recipe.model.architecture))
    steps = sum(phase.steps for phase in plan.recipe.pretrain.values())
    facts.append(Fact("training tokens", format_count(findings.tokens), f"in {steps:,} steps"))
    if seconds:
        facts.append(Fact("training time", format_duration(seconds), "without evaluation"))
        facts.append(Fact("throughput", format_rate(findings.tokens / seconds), "tokens per second"))
    if plan.machine is None or plan.machine.device == HOST:
        facts.append(Fact("hardware", "; ".join(findings.trained_by) or "not recorded"))
    else:
        facts.append(Fact("hardware", str(plan.recipe.run.machine), plan.machine.title))
    if plan.machine is not None and (price := plan.machine.price) is not None and seconds and len(findings.trained_on) < 2:
        cost = format_price(price.usd_per_hour * seconds / 3600)
        facts.append(Fact("cost", cost, f"at ${price.usd_per_hour:g} an hour, {price.date}"))
    return facts


def format_rate(value: float) -> str:
    """Return a count per second with at least three digits.

    >>> format_rate(13884.2), format_rate(3.14159)
    ('13,884', '3.14')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def report_page(findings: Findings) -> str:
    """Return the report as one HTML page that needs nothing else."""
    log = read_log(findings.logs)
    levels = findings.evaluations.get("held_out", {}).get("figures", {})
    watched = compare_with_curve(findings.plan, findings.logs)
    published, sentence = (watched.drawn, watched.verdict) if watched else (None, "")
    return template("report.html").render(
        findings=findings,
        plan=findings.plan,
        recipe=findings.plan.recipe,
        facts=list_facts(findings, log.total_seconds),
        rows=[row | scale(row) for row in findings.verdict["rows"]],
        charts=training_charts(log, levels, published, sentence),
        values=tabulate_values(log),
        watched=watched,
        oracles=describe_oracles(findings.plan.name),
    )


def scale(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's tolerance, interval and difference as positions from 0 to 100; {} without a difference."""
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
        identifier=f"{findings.plan.published_name}-{findings.plan.fingerprint}",
        description=f"{findings.headline}. {findings.summary}",
        date=findings.date,
        origins=findings.origins,
        records=[record for record in findings.records if record["step"]],
        citation=read_citation(),
    )
