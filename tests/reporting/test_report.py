"""The report page needs no other file, shows the verdict first and every step after, and is the same bytes each time."""

import hashlib
import json
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from finished_runs import FinishedRun
from relm.artifact import read_json, seal, write_json
from relm.provenance.step_record import record_of
from relm.reporting.findings import gather
from relm.reporting.report import scale, write_report


class Page(HTMLParser):
    """The text of a page, its tags, and the addresses that a browser would load by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "srcset", "action", "data", "poster")]
        self.loaded += [str(value) for name, value in attrs if name == "href" and tag != "a"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page(run: FinishedRun) -> Page:
    return Page((run.report() / "report.html").read_text(encoding="utf-8"))


EXPECT = {"metric": "held_out.nats_per_token", "tolerance": 1.0, "basis": "b", "place": "table 1"}
NOISE = {"standard_deviation": 0.01, "runs": 5, "source": "s"}


def test_the_page_loads_nothing_from_outside(run: FinishedRun) -> None:
    shown = page(run)
    assert [address for address in shown.loaded if not address.startswith("#")] == []
    assert not shown.tags & {"script", "link", "iframe", "object", "img"}
    style = (Path(__file__).parents[2] / "src/relm/reporting/templates/page.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_identifiers_on_the_page_are_unique_and_what_is_referred_to_is_there(run: FinishedRun) -> None:
    text = (run.report() / "report.html").read_text()
    identifiers = re.findall(r'\bid="([^"]+)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(identifiers)


def test_without_expectations_the_page_says_first_what_the_model_beat(run: FinishedRun) -> None:
    text = page(run).text
    first = text.index("0.75 nats per token better than bigram counts, 1.88 bits per byte")
    assert first < text.index("training tokens 12.8 k in 50 steps") < text.index("ends at")
    assert "4.2500 nats per token, against 5.0000 for bigram counts and 6.5000 for unigram counts." in text
    assert "The recipe names no published figure to compare with." in text


@pytest.mark.parametrize(
    ("value", "extra", "headline"),
    [
        (4.2, {"noise": NOISE}, "Consistent with the published figures"),
        (9.0, {"noise": NOISE}, "Not consistent with the published figures"),
        (4.2, {"noise": {**NOISE, "standard_deviation": 9.0}}, "Undecided"),
        (4.2, {}, "Difference shown, no noise known"),
        (4.2, {"comparable": False}, "Not comparable with the published figures"),
    ],
)
def test_the_verdict_stands_before_everything_else(
    finished_run: Callable[..., Any], recipe: Callable[..., Any], value: float, extra: dict[str, Any], headline: str
) -> None:
    run = finished_run(recipe(expect=[{**EXPECT, "value": value, **extra}]))
    text = page(run).text
    assert 0 < text.index(headline) < text.index("Figures")
    assert headline in (run.plan.report_folder / "README.md").read_text().split("## ")[0]


def test_text_that_the_model_wrote_is_no_html(run: FinishedRun) -> None:
    html = (run.report() / "report.html").read_text()
    assert "&lt;b&gt;the&lt;/b&gt; river &amp; its towns." in html
    assert "<b>The history of</b> &lt;b" in html


def test_every_step_stands_on_the_page_with_its_command_and_hashes(run: FinishedRun) -> None:
    text = page(run).text.replace(" ", "")
    for each in gather(run.plan, run.verify, run.evaluations).records:
        assert "".join(each["argv"]) in text
        assert all(entry["sha256"][:12] in text for entry in (*each["inputs"], *each["outputs"]))


def test_a_smoke_twin_says_that_its_figures_mean_nothing(finished_run: Callable[..., Any]) -> None:
    run = finished_run(name="smoke/tiny")
    text = page(run).text
    assert "Smoke twin: its figures mean nothing" in text
    assert "Smoke twin: these figures mean nothing." in text
    assert 'model="results/smoke/tiny"' in text
    assert "Smoke twin: its figures mean nothing" in (run.plan.report_folder / "README.md").read_text()


def test_a_missing_record_is_named_on_the_page(run: FinishedRun) -> None:
    record_of(run.plan.tokenizer).unlink()
    text = page(run).text
    assert "their origin is not known" in text
    assert str(run.plan.tokenizer) in text
    sentence = write_report(run.plan, run.verify, run.evaluations, run.plan.report_folder)
    assert "1 files without a record" in sentence


def test_each_step_has_its_docker_line_on_the_page_and_in_the_provenance(run: FinishedRun, checkout: Path) -> None:
    lock = Path("containers/lock.yaml")
    lock.parent.mkdir()
    lock.write_bytes((checkout / lock).read_bytes())
    text = page(run).text
    steps = read_json(run.plan.report_folder / "provenance.json")["steps"]
    lines = [step["docker"]["line"] for step in steps]
    assert len(lines) > 10
    assert all(line.startswith("docker run --rm") and shlex.split(line)[-1] in line for line in lines)
    bare = text.replace(" ", "")
    assert [line for line in lines if line.replace(" ", "") not in bare] == []
    assert "relm/cpu:0.1.0 is not pinned by a digest, because it was never published" in text


def test_the_page_shows_where_steps_ran_and_with_which_packages(run: FinishedRun) -> None:
    records = sorted(Path("work").rglob("*.record.json"))
    inside = {"engine": "podman", "role": "cpu", "image": f"relm/cpu:0.1.0@sha256:{'4' * 64}", "digest": f"sha256:{'4' * 64}"}
    for number, path in enumerate(records):
        record = read_json(path) | {"container": inside if number < 2 else None}
        write_json(path, seal({key: value for key, value in record.items() if number != 2 or key != "container"}))
    text = page(run).text
    assert f"2 steps in the image relm/cpu:0.1.0@sha256:{'4' * 64} (relm's for cpu) by podman" in text
    assert f"{len(records) - 3} steps outside any container" in text
    assert "1 step not recorded" in text
    provenance = read_json(run.plan.report_folder / "provenance.json")
    (sha256, installed), *others = provenance["packages"].items()
    assert not others
    assert {step["packages"] for step in provenance["steps"]} == {sha256}
    assert hashlib.sha256("".join(f"{line}\n" for line in installed).encode()).hexdigest() == sha256
    assert f"The {len(installed)} packages that were installed" in text
    assert " ".join(installed[:5]) in text


def test_writing_the_report_again_gives_the_same_bytes(run: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    first = {path.name: path.read_bytes() for path in run.report().iterdir()}
    assert sorted(first) == ["README.md", "provenance.json", "recipe.json", "report.html", "ro-crate-metadata.json"]
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert {path.name: path.read_bytes() for path in run.report().iterdir()} == first


def test_a_run_without_any_record_is_dated_by_its_verdict(run: FinishedRun) -> None:
    for path in Path("work").rglob("*.record.json"):
        path.unlink()
    assert gather(run.plan, run.verify, run.evaluations).date.startswith("20")
    assert "not recorded" in page(run).text


def test_the_resolved_recipe_holds_defaults_and_what_it_names(run: FinishedRun) -> None:
    document = read_json(run.report() / "recipe.json")
    assert document["fingerprint"] == run.plan.fingerprint
    assert document["recipe"]["pretrain"]["main"]["optimizer"]["betas"] == [0.9, 0.999]
    assert document["dataset"]["files"]["a.xml"]["size"] == 5
    assert document["tokenizer_model"]["licence"] == "MIT"
    assert document["init_model"] is None


def test_the_diagram_places_band_interval_and_point() -> None:
    diagram = scale({"difference": 1.0, "tolerance": 2.0, "interval": [-2.0, 4.0]})
    # 4.6 is the reach: 50 + 50 * x / 4.6
    assert diagram == {"band": [28.26, 71.74], "span": [28.26, 93.48], "point": 60.87}
    assert scale({"tolerance": 2.0}) == {}


# --- the crate -----------------------------------------------------------------------------------------------------------


def graph(folder: Path) -> dict[str, dict[str, Any]]:
    document = json.loads((folder / "ro-crate-metadata.json").read_text())
    assert document["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    return {entity["@id"]: entity for entity in document["@graph"]}


def test_the_crate_lists_every_file_of_the_folder_with_its_hash(published: Path) -> None:
    entities = graph(published)
    files = {path.relative_to(published).as_posix(): path for path in published.rglob("*") if path.is_file()}
    assert {part["@id"] for part in entities["./"]["hasPart"]} == set(files) - {"ro-crate-metadata.json", "SHA256SUMS"}
    for name in set(files) - {"ro-crate-metadata.json", "SHA256SUMS"}:
        assert entities[name]["sha256"] == hashlib.sha256(files[name].read_bytes()).hexdigest()
        assert entities[name]["contentSize"] == str(files[name].stat().st_size)


def test_the_crate_describes_itself_and_its_root_as_the_specification_asks(published: Path) -> None:
    entities = graph(published)
    descriptor = entities["ro-crate-metadata.json"]
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = entities["./"]
    assert root["@type"] == "Dataset"
    assert root["license"] == {"@id": "https://spdx.org/licenses/CC-BY-SA-3.0"}
    assert root["conformsTo"] == {"@id": "https://w3id.org/ro/wfrun/process/0.5"}
    assert entities[root["conformsTo"]["@id"]]["name"] == "Process Run Crate"
    author = entities[root["author"]["@id"]]
    assert (author["@type"], author["name"]) == ("Organization", "The relm maintainers")
    assert root["publisher"] == root["author"]
    assert {entity["agent"]["@id"] for entity in entities.values() if entity["@type"] == "CreateAction"} == {author["@id"]}
    assert root["datePublished"] == max(step["ended"] for step in read_json(published / "provenance.json")["steps"])


def test_everything_the_crate_refers_to_is_in_it(published: Path) -> None:
    entities = graph(published)

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [value["@id"]] if set(value) == {"@id"} else [each for inner in value.values() for each in references(inner)]
        return [each for inner in value for each in references(inner)] if isinstance(value, list) else []

    outside = {"https://w3id.org/ro/crate/1.1"}
    assert set(references(list(entities.values()))) - outside <= set(entities)


def test_each_step_is_an_action_from_sources_to_results(published: Path) -> None:
    entities = graph(published)
    actions = [entity for entity in entities.values() if entity["@type"] == "CreateAction"]
    assert len(actions) == len(read_json(published / "provenance.json")["steps"])
    training = next(action for action in actions if action["name"] == "pretrain")
    assert training["result"] == {"@id": "model.safetensors"}
    assert entities[training["instrument"]["@id"]]["@type"] == "SoftwareApplication"
