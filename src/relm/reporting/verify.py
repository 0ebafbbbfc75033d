"""The verdict on a measured figure: an equivalence test against the published one, with its power.

The figure of one run is drawn from N(m, s^2), so the difference of our mean over n runs (n = 1 here) and a published mean
over p runs has the standard error

    e(n) = s * sqrt(1/n + 1/p),

and with s estimated from k runs, (difference - true difference) / e(n) is Student's t with k - 1 degrees of freedom. The 95 %
interval of the true difference is therefore

    difference -+ t(0.975) * e(1).

The verdict is `consistent` only if that whole interval lies inside [-tolerance, +tolerance], which is two one-sided tests at
2.5 % each (Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657); `not consistent` only if the whole interval lies outside; and
otherwise `undecided`.

Power: `not consistent` needs |difference| > tolerance + t(0.975) * e(1), so a true difference of

    tolerance + (t(0.975) + t(0.80)) * e(1)

gets that verdict in about 80 % of repetitions: the minimum detectable effect (Bloom 1995, Evaluation Review 19, 547), plus the
tolerance. If the difference stays the same, n seeds of our own decide as soon as t(0.975) * e(n) falls below the
margin |tolerance - |difference||, that is from

    n = 1 / ((margin / (t(0.975) * s))^2 - 1/p)

on; if the bracket is not positive, the published mean alone is too uncertain for any count of them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.recipes.expectations import Expectation, Noise
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import MACHINES
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


def verify(recipe: Recipe, fingerprint: str | None, evaluations: Mapping[str, Path], model: Path, output: Path) -> str:
    """Judge every row of the recipe's `expect` and write `verify.json`; bad figures are a result, not an error.

    Args:
        fingerprint: the recipe's current fingerprint; None: others trained the model, and only its figures are judged.
        evaluations: `eval/TASK.json` by task.
        model: the weights, `model.safetensors`, with their sidecar.

    Raises:
        RelmError: the model was trained from another fingerprint, or a task evaluated another model, or a file is damaged.
    """
    sidecar = checked_model(model)
    read = {task: _evaluation(path, task) for task, path in evaluations.items()}
    integrity = _integrity(fingerprint, sidecar, read, model, evaluations)
    machines = find_machines(read) or [recipe.run.machine]
    rows = [judge_row(expectation, read, machines) for expectation in recipe.expect]
    word, sentence = overall(rows)
    verdict = {"verdict": word, "sentence": sentence, "fingerprint": fingerprint, "model_sha256": sidecar["sha256"]}
    write_json(output, verdict | {"rows": rows, "integrity": integrity})
    return f"verified {len(rows)} published figures and {len(integrity)} identities: {word}. {sentence}"


# --- one row ---------------------------------------------------------------------------------------------------------------


def find_machines(evaluations: Mapping[str, Mapping[str, Any]]) -> list[str | None]:
    """Return the machines that trained, in order and each once, as evaluations of the log list them; none without one."""
    protocols = [evaluation.get("protocol", {}).get(MACHINES, {}) for evaluation in evaluations.values()]
    stretches = [stretch for protocol in protocols for phase in protocol.values() for stretch in phase]
    return list(dict.fromkeys(stretch["machine"] for stretch in stretches))


def judge_row(
    expectation: Expectation, evaluations: Mapping[str, Mapping[str, Any]], machines: Sequence[str | None] = (None,)
) -> Row:
    """Return one row of `verify.json`: the published figure, ours, and the verdict on their difference.

    Args:
        machines: the machines that trained, one after another; None for one without a name.
    """
    ours, absence = _figure(expectation.metric, evaluations)
    row = expectation.model_dump(mode="json", exclude={"value", "comparable", "measured_on"})
    row = {"metric": row.pop("metric"), "ours": ours, "published": expectation.value, **row}
    if not expectation.comparable:
        absence = "the published protocol differs from ours (comparable: false in the recipe)"
    elif expectation.measured_on is not None and set(machines) != {expectation.measured_on}:
        absence = f"it was measured on {expectation.measured_on}, and this run {_format_machines(machines)}"
    if absence or ours is None:
        return row | {"verdict": NOT_COMPARABLE, "sentence": f"{expectation.metric}: not comparable: {absence}."}
    row["difference"] = ours - expectation.value
    if expectation.noise is None:
        return row | {"verdict": NO_NOISE, "sentence": f"{_shown(row)}; without known noise nothing follows from it."}
    return _test_row(row, expectation, expectation.noise)


def _format_machines(machines: Sequence[str | None]) -> str:
    """Return the end of a sentence on the machines of a run."""
    if len(machines) > 1:
        return f"was trained on {', then on '.join(str(machine or 'a machine without a name') for machine in machines)}"
    return "names no machine" if machines[0] is None else f"is on {machines[0]}"


def _figure(metric: str, evaluations: Mapping[str, Mapping[str, Any]]) -> tuple[float | None, str | None]:
    """Return the measured figure that ``metric`` names, or the reason why there is none."""
    task, *keys = metric.split(".")
    if task not in evaluations:
        return None, f"task {task} was not evaluated; add it to `evaluate` in the recipe"
    value: Any = evaluations[task]["figures"]
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None, f"task {task} gives no figure {'.'.join(keys)} (found {value!r})"
    return float(value), None


def interval_half_width(noise: Noise, published_runs: int) -> float:
    """Return t(0.975) * e(1) of this module's formulas, for one run of ours."""
    return _quantile(0.975, noise) * standard_error(noise, 1, published_runs)


def standard_error(noise: Noise, our_runs: int, published_runs: int) -> float:
    """Return e(n), for the difference of two means whose single runs have the noise's standard deviation."""
    return noise.standard_deviation * math.sqrt(1 / our_runs + 1 / published_runs)


def noticeable_difference(noise: Noise, published_runs: int, tolerance: float) -> float:
    """Return the true difference that would give `not consistent` four times in five."""
    quantiles = _quantile(0.975, noise) + _quantile(0.80, noise)
    return tolerance + quantiles * standard_error(noise, 1, published_runs)


def deciding_seeds(noise: Noise, published_runs: int, tolerance: float, difference: float) -> int | None:
    """Return how many seeds of our own would decide an undecided row if the difference stayed the same; None: none would."""
    margin = abs(tolerance - abs(difference))
    bracket = (margin / (_quantile(0.975, noise) * noise.standard_deviation)) ** 2 - 1 / published_runs
    return max(2, math.ceil(1 / bracket)) if bracket > 0 else None


def _quantile(probability: float, noise: Noise) -> float:
    from scipy.stats import t  # takes a second to import

    return float(t.ppf(probability, noise.runs - 1))


def _test_row(row: Row, expectation: Expectation, noise: Noise) -> Row:
    """Return the row with its interval, its verdict, its power and the count of seeds that would decide."""
    half, difference, tolerance = (
        interval_half_width(noise, expectation.published_runs),
        row["difference"],
        expectation.tolerance,
    )
    low, high = difference - half, difference + half
    if -tolerance <= low and high <= tolerance:
        verdict, relation = CONSISTENT, "inside"
    elif low > tolerance or high < -tolerance:
        verdict, relation = NOT_CONSISTENT, "outside"
    else:
        verdict, relation = UNDECIDED, "partly outside"
    seeds: int | None = 1
    if verdict == UNDECIDED:
        seeds = deciding_seeds(noise, expectation.published_runs, tolerance, difference)
    noticeable = noticeable_difference(noise, expectation.published_runs, tolerance)
    row |= {
        "standard_error": standard_error(noise, 1, expectation.published_runs),
        "interval": [low, high],
        "verdict": verdict,
        "would_have_noticed": noticeable,
        "seeds_that_would_decide": seeds,
    }
    sentence = (
        f"{_shown(row)}, 95 % interval {low:+.3g} to {high:+.3g}, {relation} the tolerance of {tolerance:g}: {verdict}. "
        f"It would have noticed a difference of {noticeable:.3g} four times in five; {_format_seeds(seeds, expectation)}."
    )
    return row | {"sentence": sentence}


def _shown(row: Row) -> str:
    ours, published, difference = row["ours"], row["published"], row["difference"]
    return f"{row['metric']}: {ours:.5g} here, {published:.5g} published ({row['place']}), difference {difference:+.3g}"


def _format_seeds(seeds: int | None, expectation: Expectation) -> str:
    if seeds is None:
        runs = "one run" if expectation.published_runs == 1 else f"{expectation.published_runs} runs"
        return f"no number of seeds of ours would decide, since the published figure is of {runs} only"
    return "this one seed decides" if seeds == 1 else f"{seeds} seeds of ours would decide if it stays"


# --- the whole ---------------------------------------------------------------------------------------------------------------


def overall(rows: list[Row]) -> tuple[str, str]:
    """Return the verdict and the sentence for all rows together: one bad row outweighs good ones."""
    if not rows:
        return NOTHING_PUBLISHED, "There is no published figure to compare with."
    counts = Counter(row["verdict"] for row in rows)
    word = next(word for word in PRECEDENCE if counts[word])
    if len(rows) == 1:
        return word, rows[0]["sentence"]
    summary = "; ".join(f"{counts[each]} {each}" for each in PRECEDENCE if counts[each])
    return word, f"Of {len(rows)} published figures: {summary}."


def _evaluation(path: Path, task: str) -> Mapping[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("figures"), dict) or content.get("task") != task:
        raise RelmError(f"{path}: expected the figures of task {task}; delete it and evaluate it again")
    return content


def _integrity(
    fingerprint: str | None,
    sidecar: Mapping[str, Any],
    evaluations: Mapping[str, Mapping[str, Any]],
    model: Path,
    paths: Mapping[str, Path],
) -> list[Row]:
    """Return the comparisons that ensure that recipe, model and figures belong together."""
    if fingerprint is not None and sidecar.get("fingerprint") != fingerprint:
        raise RelmError(
            f"{model}: was trained from fingerprint {sidecar.get('fingerprint')}, the recipe now has {fingerprint}: "
            "the recipe or its data changed since; run the recipe's command again to train the current version"
        )
    rows = []
    if fingerprint is not None:
        rows.append({"what": "fingerprint of the model", "expected": fingerprint, "found": sidecar["fingerprint"]})
    for task, evaluation in evaluations.items():
        found = evaluation.get("model_sha256")
        if found != sidecar["sha256"]:
            raise RelmError(
                f"{paths[task]}: evaluated the model with sha256 {found}, but {model} has {sidecar['sha256']}; "
                "delete the file and evaluate again"
            )
        rows.append({"what": f"model that {task} evaluated", "expected": sidecar["sha256"], "found": found})
    return rows
