"""Links of YAML files: only whole addresses with the scheme http or https become links of a page."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_texts import content

from relm.errors import RelmError
from relm.recipes.datasets import load_dataset
from relm.recipes.evaluation.published_tests import load_test
from relm.recipes.files.web_address import require_web_address
from relm.recipes.machine.machines import load_machine
from relm.recipes.published_models import load_model
from relm.recipes.recipe import load_recipe

SURFACE = "links"
ADDRESSES = {
    "javascript": "javascript:alert(1)",
    "javascript with slashes": "javascript://example.org/%0aalert(1)",
    "data": "data:text/html,<script>alert(1)</script>",
    "file": "file:///etc/passwd",
    "ftp": "ftp://example.org/a",
    "no scheme": "example.org/a",
    "no scheme, slashes": "//example.org/a",
    "no host": "https://",
    "no slashes": "https:example.org",
    "space in front": " https://example.org",
    "another scheme in front": "xhttps://example.org",
    "end of a link": "https://example.org/> [x](javascript:alert(1)) <",
    "quotation mark": 'https://example.org/" onclick="alert(1)',
    "broken host": "https://[example.org",
}
SHIPPED_MACHINE = Path(__file__).resolve().parents[2] / "recipes/machines/h100.yaml"
LOADERS: dict[str, tuple[Any, str]] = {
    "recipe": (load_recipe, "paper.url"),
    "dataset": (load_dataset, "homepage"),
    "model": (load_model, "homepage"),
    "published test": (load_test, "homepage"),
    "file": (load_test, "files.a.jsonl.sources.0.url"),
    "machine": (load_machine, "peak.source"),
}
REFUSED = {f"{kind}: {name}": (kind, address) for kind in LOADERS for name, address in ADDRESSES.items()}
SURVIVED: dict[str, str] = {}


def written(path: Path, kind: str, address: str) -> Path:
    if kind == "machine":
        found = yaml.safe_load(SHIPPED_MACHINE.read_text())
        found["peak"]["source"] = address
    else:
        found = content("published test" if kind == "file" else kind)
        if kind == "recipe":
            found["paper"]["url"] = address
        elif kind == "file":
            found["files"]["a.jsonl"]["sources"] = [{"url": address}]
        else:
            found["homepage"] = address
    path.write_text(yaml.safe_dump(found, default_flow_style=False), encoding="utf-8")
    return path


@pytest.mark.parametrize(("kind", "address"), REFUSED.values(), ids=REFUSED)
def test_anything_but_a_whole_web_address_is_refused_by_its_key(kind: str, address: str, tmp_path: Path) -> None:
    load, key = LOADERS[kind]
    with pytest.raises(RelmError, match=rf"(?s)a\.yaml: [12] errors?\n  {key}: (expected a whole address|the address has)"):
        load(written(tmp_path / "a.yaml", kind, address))


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("address", ["https://example.org/a_(b)?c=d#e", "http://127.0.0.1:8000/a", "HTTPS://Example.org"])
def test_web_addresses_are_accepted(kind: str, address: str, tmp_path: Path) -> None:
    if address.startswith("HTTPS"):
        with pytest.raises(ValueError, match="whole address"):
            require_web_address(address)
    else:
        LOADERS[kind][0](written(tmp_path / "a.yaml", kind, address))
