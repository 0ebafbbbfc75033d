"""`README.md` of `results/NAME`: the model card, with the verdict on top and front matter for the Hugging Face hub."""

import re
from typing import Any

import yaml

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


def front_matter(findings: Findings) -> str:
    """Return the YAML that stands between two lines of dashes."""
    dataset = findings.plan.dataset
    hub = sorted(
        {
            str(source.huggingface)
            for remote in dataset.files.values()
            for source in remote.sources
            if source.huggingface and source.repository_type == "dataset"
        }
    )
    matter: dict[str, Any] = {
        "language": dataset.language,
        **licence(dataset.licence),
        "library_name": "transformers",
        "pipeline_tag": findings.plan.recipe.model.declaration.pipeline,
        "tags": ["relm", findings.plan.recipe.model.architecture],
        **({"datasets": hub} if hub else {}),
    }
    return yaml.safe_dump(matter, sort_keys=False, allow_unicode=True, width=1000).strip()


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
