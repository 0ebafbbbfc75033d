"""The verdict on measured figures: `verify.json`, with a row for each published figure, and one for its original's program.

`equivalence.py` has the test and its formulas. Of several seeds, a row compares the mean of their figures.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.evaluation.result import MOST_TIED, tied_share
from relm.recipes.evaluation.expectations import Expectation, Noise
from relm.recipes.evaluation.reference_runs import LoadedRuns
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import MACHINES
from relm.reporting.equivalence import MeanDifference, Spread, measure_spread, pool_spreads
from relm.training.model_files import checked_model

CONSISTENT = "consistent"
NOT_CONSISTENT = "not consistent"
UNDECIDED = "undecided"
NO_NOISE = "difference shown, no noise known"
NOT_COMPARABLE = "not comparable"
NOTHING_PUBLISHED = "no published figure"

# The verdict on the whole recipe is the first of these that any row has.
PRECEDENCE = (NOT_CONSISTENT, UNDECIDED, NO_NOISE, CONSISTENT, NOT_COMPARABLE)

Row = dict[str, Any]
Evaluations = Mapping[str, Mapping[str, Any]]
"""Task -> content of eval/TASK.json."""


class JudgedRun(NamedTuple):
    """One run of those that are judged together."""

    seed: int
    fingerprint: str | None
    """The run's current fingerprint; None: others trained the model, and only its figures are judged."""
    model: Path
    """The weights, `model.safetensors`, with their sidecar."""
    evaluations: Mapping[str, Path]
    """`eval/TASK.json` by task."""


def verify(
    recipe: Recipe,
    runs: Sequence[JudgedRun],
    output: Path,
    key: str | None = None,
    reference_runs: Mapping[str, LoadedRuns] | None = None,
) -> str:
    """Judge every row of the recipe's `expect` and write `verify.json`; bad figures are a result, not an error.

    Args:
        recipe: the recipe with the expectations.
        runs: its runs, one for each seed; the first is published.
        output: the file to write.
        key: key of the verdict in its path, which is published with it.
        reference_runs: the runs of originals' own programs that `expect` names, by name.

    Raises:
        RelmError: a model was trained from another fingerprint, or a task evaluated another model, or a file is damaged.
    """
    read = {run.seed: {task: _evaluation(path, task) for task, path in run.evaluations.items()} for run in runs}
    sidecars = [checked_model(run.model) for run in runs]
    integrity = [row for run, sidecar in zip(runs, sidecars, strict=True) for row in _integrity(run, sidecar, read[run.seed])]
    machines = list(dict.fromkeys(machine for each in read.values() for machine in find_machines(each))) or [recipe.run.machine]
    rows = []
    for expectation in recipe.expect:
        reference = (reference_runs or {})[expectation.reference_runs] if expectation.reference_runs else None
        rows += judge_rows(expectation, read, machines, reference)
    word, sentence = overall(rows)
    stated = [
        {"seed": run.seed, "fingerprint": run.fingerprint, "model_sha256": sidecar["sha256"]}
        for run, sidecar in zip(runs, sidecars, strict=True)
    ]
    verdict = {"verdict": word, "sentence": sentence, **{name: stated[0][name] for name in ("fingerprint", "model_sha256")}}
    write_json(
        output,
        verdict | {"key": key} | {"seeds": [run.seed for run in runs], "runs": stated, "rows": rows, "integrity": integrity},
    )
    of = f" of {len(runs)} seeds" if len(runs) > 1 else ""
    return f"verified {len(recipe.expect)} published figures and {len(integrity)} identities{of}: {word}. {sentence}"


# --- one row ---------------------------------------------------------------------------------------------------------------


def find_machines(evaluations: Evaluations) -> list[str | None]:
    """Return the machines that trained, in order and each once, as evaluations of the log list them; none without one."""
    protocols = [evaluation.get("protocol", {}).get(MACHINES, {}) for evaluation in evaluations.values()]
    stretches = [stretch for protocol in protocols for phase in protocol.values() for stretch in phase]
    return list(dict.fromkeys(stretch["machine"] for stretch in stretches))


def judge_rows(
    expectation: Expectation,
    runs: Mapping[int, Evaluations],
    machines: Sequence[str | None],
    reference: LoadedRuns | None,
) -> list[Row]:
    """Return the row of a published figure and, where the recipe names runs of the original's own program, theirs.

    Runs of the program say more than one published figure, so if they decide, an `undecided` published row is shown and has no
    part in the verdict on the recipe. Any other published row keeps its part.
    """
    if reference is None:
        return [judge_row(expectation, runs, machines)]
    name, sha256, stated = reference
    spread = measure_spread(stated.values)
    assert spread is not None  # the file's schema
    noise = Noise(standard_deviation=spread.standard_deviation, runs=len(stated.runs), source=stated.place)
    expectation = expectation.model_copy(update={"noise": noise})
    changes = {"value": stated.mean, "published_runs": len(stated.runs), "place": stated.place, "comparable": True}
    published = judge_row(expectation, runs, machines)
    program = judge_row(
        expectation.model_copy(update=changes),
        runs,
        machines,
        {"name": name, "sha256": sha256, **stated.model_dump(mode="json", exclude={"metric"})},
    )
    if program["verdict"] in (NOT_CONSISTENT, CONSISTENT) and published["verdict"] == UNDECIDED:
        published["counts"] = False
    return [published, program]


def judge_row(
    expectation: Expectation,
    runs: Mapping[int, Evaluations],
    machines: Sequence[str | None] = (None,),
    reference: Mapping[str, Any] | None = None,
) -> Row:
    """Return one row of `verify.json`: the published figure, ours, and the verdict on their difference.

    `runs` maps a seed to the evaluations of its run; `machines` are those that trained, None for one without a name.
    `reference` has the runs of the original's own program, where the expectation's figure is their mean.
    """
    values, absence = _figures(expectation.metric, runs)
    row = expectation.model_dump(mode="json", exclude={"value", "comparable", "measured_on", "reference_runs"})
    ours = math.fsum(values.values()) / len(values) if values else None
    row = {"metric": row.pop("metric"), "ours": ours, "published": expectation.value, **row}
    if len(values) > 1:
        row["seeds"] = [{"seed": seed, "value": value} for seed, value in values.items()]
    if reference is not None:
        row["reference"] = reference
    if not expectation.comparable:
        absence = "the published protocol differs from ours (comparable: false in the recipe)"
    elif expectation.measured_on is not None and set(machines) != {expectation.measured_on}:
        absence = f"it was measured on {expectation.measured_on}, and this run {_format_machines(machines)}"
    if absence or ours is None:
        return row | {"verdict": NOT_COMPARABLE, "sentence": f"{expectation.metric}: not comparable: {absence}."}
    row["difference"] = ours - expectation.value
    spread, row["noise"] = _find_noise(expectation, values)
    if spread is None:
        equal = f"; all {len(values)} seeds gave the same figure" if len(values) > 1 else ""
        return row | {"verdict": NO_NOISE, "sentence": f"{_shown(row)}{equal}; without known noise nothing follows from it."}
    return _test_row(row, expectation, MeanDifference(spread, len(values), expectation.published_runs))


def _find_noise(expectation: Expectation, values: Mapping[int, float]) -> tuple[Spread | None, dict[str, Any] | None]:
    """Return the noise of a figure, from our own seeds, other runs that the recipe states or both, and its origin."""
    own, stated = measure_spread(list(values.values())), expectation.noise
    if own is None:
        found = None if stated is None else Spread(stated.standard_deviation, stated.runs - 1)
        return found, None if stated is None else stated.model_dump(mode="json")
    source = f"the recipe's own seeds {_format_list(list(values))}"
    if stated is None:
        return own, {"standard_deviation": own.standard_deviation, "runs": len(values), "source": source}
    pooled = pool_spreads([own, Spread(stated.standard_deviation, stated.runs - 1)])
    assert pooled is not None
    parts = f"{own.standard_deviation:.3g} of {source}, pooled with {stated.standard_deviation:g} of {stated.runs} other runs"
    return pooled, {
        "standard_deviation": pooled.standard_deviation,
        "runs": len(values) + stated.runs,
        "source": f"{parts}: {stated.source}",
    }


def _format_list(values: Sequence[object]) -> str:
    """Return values as in a sentence.

    >>> _format_list([1, 2, 3])
    '1, 2 and 3'
    """
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}" if first else last


def _format_machines(machines: Sequence[str | None]) -> str:
    """Return the end of a sentence on the machines of a run."""
    if len(machines) > 1:
        return f"was trained on {', then on '.join(str(machine or 'a machine without a name') for machine in machines)}"
    return "names no machine" if machines[0] is None else f"is on {machines[0]}"


def _figures(metric: str, runs: Mapping[int, Evaluations]) -> tuple[dict[int, float], str | None]:
    """Return seed -> the measured figure that ``metric`` names, and the reason why a seed has none or one of too many ties."""
    found: dict[int, float] = {}
    reason = None
    for seed, evaluations in runs.items():
        value, absence = _figure(metric, evaluations)
        if absence and len(runs) > 1:
            absence = f"{absence} with seed {seed}"
        if value is None:
            return {}, absence
        found[seed], reason = value, reason or absence
    return found, reason


def _figure(metric: str, evaluations: Evaluations) -> tuple[float | None, str | None]:
    """Return the measured figure that ``metric`` names, and the reason why there is none or why it is not compared."""
    task, *keys = metric.split(".")
    if task not in evaluations:
        return None, f"task {task} was not evaluated; add it to `evaluate` in the recipe"
    value: Any = evaluations[task]["figures"]
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None, f"task {task} gives no figure {'.'.join(keys)} (found {value!r})"
    share = tied_share(".".join(keys), evaluations[task]["figures"])
    many = f"{share:.2%} of its questions are ties or near-ties, above {MOST_TIED:.0%}"
    return float(value), many if share > MOST_TIED else None


def _test_row(row: Row, expectation: Expectation, comparison: MeanDifference) -> Row:
    """Return the row with its interval, its verdict, its power and the count of seeds that would decide."""
    half, difference, tolerance = comparison.half_width, row["difference"], expectation.tolerance
    low, high = difference - half, difference + half
    if -tolerance <= low and high <= tolerance:
        verdict, relation = CONSISTENT, "inside"
    elif low > tolerance or high < -tolerance:
        verdict, relation = NOT_CONSISTENT, "outside"
    else:
        verdict, relation = UNDECIDED, "partly outside"
    decided = verdict != UNDECIDED
    seeds = comparison.our_runs if decided else comparison.deciding_seeds(tolerance, difference)
    noticeable = comparison.noticeable_difference(tolerance)
    figure = "the program's mean" if "reference" in row else "the published figure"
    row |= {
        "standard_error": comparison.standard_error,
        "degrees_of_freedom": comparison.spread.degrees_of_freedom,
        "interval": [low, high],
        "verdict": verdict,
        "would_have_noticed": noticeable,
        "seeds_that_would_decide": seeds,
    }
    sentence = (
        f"{_shown(row)}, 95 % interval {low:+.3g} to {high:+.3g}, {relation} the tolerance of {tolerance:g}: {verdict}. "
        f"It would have noticed a difference of {noticeable:.3g} four times in five; "
        f"{_format_seeds(seeds, comparison, figure, decided=decided)}."
    )
    return row | {"sentence": sentence}


def _shown(row: Row) -> str:
    ours, published, difference = row["ours"], row["published"], row["difference"]
    mean = ""
    if values := [run["value"] for run in row.get("seeds", [])]:
        spread = measure_spread(values)
        mean = f" (mean of {len(values)} seeds{f', standard deviation {spread[0]:.3g}' if spread else ''})"
    other = f"published ({row['place']})"
    if "reference" in row:
        other = f"by the original's program (mean of {row['published_runs']} runs: {row['place']})"
    return f"{row['metric']}: {ours:.5g} here{mean}, {published:.5g} {other}, difference {difference:+.3g}"


def _format_seeds(seeds: int | None, comparison: MeanDifference, figure: str, *, decided: bool) -> str:
    if seeds is None:
        runs = "one run" if comparison.published_runs == 1 else f"{comparison.published_runs} runs"
        return f"no number of seeds of ours would decide, since {figure} is of {runs} only"
    if decided:
        return "this one seed decides" if seeds == 1 else f"these {seeds} seeds decide"
    return f"{seeds} seeds of ours would decide if it stays"


# --- the whole ---------------------------------------------------------------------------------------------------------------


def overall(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the verdict and the sentence for all rows together: one bad row outweighs good ones."""
    if not rows:
        return NOTHING_PUBLISHED, "There is no published figure to compare with."
    rows = [row for row in rows if row.get("counts", True)]
    counts = Counter(row["verdict"] for row in rows)
    word = next(word for word in PRECEDENCE if counts[word])
    if len(rows) == 1:
        return word, rows[0]["sentence"]
    summary = "; ".join(f"{counts[each]} {each}" for each in PRECEDENCE if counts[each])
    compared = "comparisons" if any("reference" in row for row in rows) else "published figures"
    return word, f"Of {len(rows)} {compared}: {summary}."


def _evaluation(path: Path, task: str) -> Mapping[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("figures"), dict) or content.get("task") != task:
        raise RelmError(f"{path}: expected the figures of task {task}; delete it and evaluate it again")
    return content


def _integrity(run: JudgedRun, sidecar: Mapping[str, Any], evaluations: Evaluations) -> list[Row]:
    """Return the comparisons that ensure that recipe, model and figures belong together."""
    if run.fingerprint is not None and sidecar.get("fingerprint") != run.fingerprint:
        raise RelmError(
            f"{run.model}: was trained from fingerprint {sidecar.get('fingerprint')}, the recipe now has {run.fingerprint}: "
            "the recipe or its data changed since; run the recipe's command again to train the current version"
        )
    rows = []
    if run.fingerprint is not None:
        rows.append({"what": "fingerprint of the model", "expected": run.fingerprint, "found": sidecar["fingerprint"]})
    for task, evaluation in evaluations.items():
        found = evaluation.get("model_sha256")
        if found != sidecar["sha256"]:
            raise RelmError(
                f"{run.evaluations[task]}: evaluated the model with sha256 {found}, but {run.model} has {sidecar['sha256']}; "
                "delete the file and evaluate again"
            )
        rows.append({"what": f"model that {task} evaluated", "expected": sidecar["sha256"], "found": found})
    return rows
