"""A name from outside the package is known where it is registered, with its options in the schema, and nowhere else."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from extended_process import run_extended

from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.recipe import Recipe
from relm.recipes.section import Section, validate
from relm.reporting.json_schema import schema_of
from tiny_runs import RECIPE

Content = dict[str, Any]
MODEL = {"architecture": "averager", "layers": 1, "heads": 1, "hidden_size": 24, "window": 3}
POEMS = {"title": "Some poems", "licence": "CC0-1.0", "language": "en", "folder": "poems", "stanzas": {"separator": "***"}}


def with_phase(**keys: Any) -> Content:
    """Return the tiny recipe with other keys of its phase."""
    return {**RECIPE, "pretrain": {"main": {**RECIPE["pretrain"]["main"], **keys}}}


def with_optimizer(**keys: Any) -> Content:
    return with_phase(optimizer={"learning_rate": 1, **keys})


class Extended(NamedTuple):
    """An extension's additions to a section of the top level."""

    section: type[Section]
    schema: Content
    """Place in the schema -> what is there."""
    faults: list[tuple[Content, str]]
    """Contents with faults, and what their errors say where the extension is registered."""
    unknown: tuple[Content, str]
    """A sound content, and what its error says where the extension is not registered."""


EXTENSIONS = {
    "averager": Extended(
        Recipe,
        {"$defs.AveragerSizes.properties.window.default": 4, "properties.model.oneOf.-1.$ref": "#/$defs/AveragerSizes"},
        [
            ({**RECIPE, "model": {**MODEL, "architecture": "mean"}}, "modded_gpt, bert, roberta, t5, mt5 or averager"),
            ({**RECIPE, "model": {**MODEL, "windw": 3}}, "model.windw: unknown key; did you mean window?"),
        ],
        ({**RECIPE, "model": MODEL}, "expected architecture: gpt2, llama, modded_gpt, bert, roberta, t5 or mt5"),
    ),
    "staged_device": Extended(
        Recipe,
        {"$defs.Run.properties.device.enum": ["cpu", "cuda", "tpu", "ipu", "ipu_simulator", "staged"]},
        [
            ({**RECIPE, "run": {"device": "stage"}}, "'ipu', 'ipu_simulator' or 'staged'"),
            ({**RECIPE, "run": {"device": "cpu", "topology": "stage-2"}}, "device: cpu expected none; found stage-2"),
            ({**RECIPE, "run": {"device": "staged", "topology": "stage-3"}}, "expected one of stage-2; found stage-3"),
        ],
        ({**RECIPE, "run": {"device": "staged"}}, "'ipu' or 'ipu_simulator'"),
    ),
    "stanzas": Extended(
        Dataset,
        {"properties.format.enum.-1": "stanzas", "$defs.Stanzas.properties.separator.default": "%%"},
        [
            ({**POEMS, "format": "stanza"}, "'nanogpt_tokens' or 'stanzas'; found 'stanza'"),
            ({**POEMS, "format": "text_files"}, "stanzas: read with format: stanzas only"),
        ],
        ({**POEMS, "format": "stanzas"}, "'llm_c_tokens' or 'nanogpt_tokens'; found 'stanzas'"),
    ),
    "backwards": Extended(
        Recipe,
        {"$defs.Phase.properties.objective.enum.-1": "backwards", "$defs.Backwards.properties.unscored.default": 0},
        [
            (with_phase(objective="backward"), "'three_classes', 'score' or 'backwards'; found 'backward'"),
            (with_phase(objective="masked"), "architecture gpt2 trains with causal or backwards, found masked"),
            (with_phase(backwards={"unscored": 1}), "backwards: read with objective: backwards only"),
        ],
        (with_phase(objective="backwards"), "'three_classes' or 'score'"),
    ),
    "backwards_script": Extended(
        Recipe, {}, [], (with_phase(as_published={"builder": "backwards_script"}), "'run_mlm' or 't5x_diacritics'")
    ),
    "sign_descent": Extended(
        Recipe,
        {"$defs.Schedule.properties.name.enum.-1": "stairs", "$defs.SignDescent.properties.share.default": 1.0},
        [
            (with_optimizer(name="sgn"), "'lamb', 'adafactor', 'muon', 'sgd' or 'sign_descent'"),
            (with_optimizer(sign_descent={"share": 2}), "sign_descent only, found {'share': 2.0} with name: adamw"),
        ],
        (with_optimizer(name="sign_descent"), "'adafactor', 'muon' or 'sgd'"),
    ),
    "largest_weight": Extended(
        Recipe,
        {"$defs.LargestWeight.properties.factor.exclusiveMinimum": 0},
        [],
        ({**RECIPE, "largest_weight": {"factor": 3}}, "largest_weight: unknown key"),
    ),
}


def errors_of(section: type[Section], contents: list[Content]) -> list[str]:
    """Return the errors of contents with faults."""
    found = []
    for content in contents:
        with pytest.raises(RelmError) as error:
            validate(section, content, Path("toy.yaml"))
        found.append(str(error.value))
    return found


def schema_and_errors(section: type[Section], contents: list[Content]) -> tuple[Content, list[str]]:
    return schema_of(section), errors_of(section, contents)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_name_from_outside_is_known_only_where_it_is_registered(name: str) -> None:
    added = EXTENSIONS[name]
    schema, errors = run_extended(name, schema_and_errors, added.section, [content for content, _ in added.faults])
    for place, expected in added.schema.items():
        found: Any = schema
        for key in place.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        assert found == expected, place
    assert [words for (_, words), error in zip(added.faults, errors, strict=True) if words not in error] == []
    content, words = added.unknown
    assert words in errors_of(added.section, [content])[0]
