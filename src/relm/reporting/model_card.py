"""`README.md` of `results/NAME`: the model card, with the verdict on top and front matter for the Hugging Face hub."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from relm.reporting.figures import FIGURES
from relm.reporting.findings import Findings
from relm.reporting.oracles import describe_oracles
from relm.reporting.pages import template

# https://huggingface.co/docs/hub/repositories-licenses; others are written as `other` with their name.
LICENCES = """
    apache-2.0 mit bsd bsd-2-clause bsd-3-clause cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0
    cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
    cc-by-nc-sa-4.0 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc mpl-2.0 odc-by odbl pddl unlicense zlib unknown
    """.split()  # noqa: SIM905 - forty pairs of quotes otherwise


def model_card(findings: Findings) -> str:
    """Return the card as Markdown."""
    return template("README.md").render(
        front_matter=front_matter(findings),
        findings=findings,
        recipe=findings.plan.recipe,
        oracles=describe_oracles(findings.plan.name),
    )


# A figure of an evaluation -> its metric, by the hub's name where the hub has one.
METRICS = {
    "perplexity_per_token": "perplexity",
    "masked_perplexity": "perplexity",
    "redrawn_perplexity": "perplexity",
    "lambada_openai_perplexity": "perplexity",
    "nats_per_token": "loss",
    "loss": "loss",
    "masked_nats_per_token": "loss",
    "bits_per_byte": "bits_per_byte",
    "perplexity_per_word": "word_perplexity",
    "exact_match": "exact_match",
    "f1": "f1",
    "accuracy": "accuracy",
    "accuracy_mismatched": "accuracy",
    "matthews_correlation": "matthews_correlation",
    "pearson_correlation": "pearsonr",
    "spearman_correlation": "spearmanr",
}


def front_matter(findings: Findings) -> str:
    """Return the YAML between the two lines of dashes."""
    dataset = findings.plan.dataset
    hub = sorted(set(_list_repositories(dataset, "dataset")))
    base = next(_list_repositories(findings.plan.init_model, "model"), None)
    matter: dict[str, Any] = {
        "language": dataset.language,
        **licence(dataset.licence),
        "library_name": "transformers",
        "pipeline_tag": findings.plan.recipe.model.declaration.pipeline,
        "tags": ["relm", findings.plan.recipe.model.architecture],
        **({"datasets": hub} if hub else {}),
        **({"base_model": base} if base else {}),
        **({"model-index": index} if (index := list_results(findings)) else {}),
    }
    return yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=1000).strip()


def _list_repositories(named: Any, kind: str) -> Iterator[str]:
    """Yield the hub repositories that the files of a dataset or model come from."""
    for source in (source for remote in (named.files.values() if named is not None else ()) for source in remote.sources):
        if source.huggingface and source.repository_type == kind:
            yield str(source.huggingface)


def list_results(findings: Findings) -> list[dict[str, Any]]:
    """Return the measured figures in the hub's form: a result for each evaluation. A smoke twin has none."""
    if findings.is_smoke:
        return []
    results = []
    for name, evaluation in findings.evaluations.items():
        figures = evaluation["figures"]
        metrics = [
            {"type": METRICS.get(key, "accuracy"), "value": figures[key], "name": FIGURES[key][0]}
            for key in FIGURES
            if (key in METRICS or key.endswith("accuracy")) and isinstance(figures.get(key), int | float)
        ]
        if metrics:
            task = {"type": findings.plan.recipe.model.declaration.pipeline}
            results.append({"task": task, "dataset": _evaluated_on(findings, name), "metrics": metrics})
    return [{"name": findings.plan.recipe.title, "results": results}] if results else []


def _evaluated_on(findings: Findings, task: str) -> dict[str, str]:
    """Return the published test of an evaluation, or the documents that were held out of training."""
    if (test := findings.plan.tests.get(task)) is not None:
        return {"type": task, "name": test.title}
    dataset = findings.plan.recipe.data.dataset
    return {"type": dataset, "name": findings.plan.dataset.title, "split": "held out of training"}


def licence(name: str) -> dict[str, str]:
    """Return the front matter's keys for an SPDX identifier or a licence's name; the weights take the training text's licence.

    >>> licence("CC-BY-SA-3.0"), licence("GFDL-1.2-or-later")
    ({'license': 'cc-by-sa-3.0'}, {'license': 'gfdl'})
    """
    plain = re.sub(r"-(only|or-later)$", "", name.lower().replace(" ", "-"))
    for key in (plain, re.sub(r"^(gfdl)-.*", r"\1", plain)):
        if key in LICENCES:
            return {"license": key}
    return {"license": "other", "license_name": re.sub(r"[^a-z0-9.-]+", "-", plain).strip("-")}
