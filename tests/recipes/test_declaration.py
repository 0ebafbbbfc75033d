"""A registry of declarations, names of it in a recipe, and sections that get a key for a new declaration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS, NameIn, Registry, add_options, load, load_extensions
from relm.recipes.section import Section, validate


@dataclass(frozen=True)
class Colour:
    name: str


COLOURS: Registry[Colour] = Registry("colour")
for name in ("red", "green"):
    COLOURS.register(Colour(name))


class Named(Section):
    colour: Annotated[str, NameIn(COLOURS)]


class Listed(Section):
    colour: Literal["red", "green"]


class Inner(Section):
    length: int = 1


class Longer(Inner):
    width: int = 2


class Outer(Section):
    inside: dict[str, Longer]


class Tint(Section):
    strength: float = 0.5


@pytest.mark.parametrize("value", ["blue", 3, True, None])
def test_a_name_that_is_not_registered_is_refused_as_a_literal_would_be(value: object) -> None:
    messages = []
    for kind in (Named, Listed):
        with pytest.raises(RelmError) as error:
            validate(kind, {"colour": value}, Path("a.yaml"))
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_the_schema_is_that_of_a_literal_and_follows_the_registry() -> None:
    assert Named.model_json_schema()["properties"] == Listed.model_json_schema()["properties"]
    registry: Registry[Colour] = Registry("colour")
    marked = Annotated[str, NameIn(registry)]

    class Later(Section):
        colour: marked  # type: ignore[valid-type]

    registry.register(Colour("blue"))
    assert Later.model_json_schema()["properties"]["colour"]["enum"] == ["blue"]
    assert Later(colour="blue").model_dump(mode="json") == {"colour": "blue"}


def test_a_name_is_registered_once_and_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(RelmError, match="colour red: is declared already"):
        COLOURS.register(Colour("red"))
    with pytest.raises(RelmError, match="there is no colour 'blue'; known: red, green"):
        COLOURS["blue"]


def test_a_section_and_those_around_it_get_a_key_for_new_options() -> None:
    add_options(Inner, "tint", Tint, "How strong the colour is.")
    found = Outer.model_validate({"inside": {"a": {"tint": {"strength": 0.25}}}})
    assert found.model_dump(exclude_defaults=True) == {"inside": {"a": {"tint": {"strength": 0.25}}}}
    assert "tint" in Outer.model_json_schema()["$defs"]["Longer"]["properties"]
    with pytest.raises(RelmError, match=r"inside\.a\.tint\.strenth: unknown key; did you mean strength"):
        validate(Outer, {"inside": {"a": {"tint": {"strenth": 1}}}}, Path("a.yaml"))


def test_a_reference_is_a_module_and_a_name() -> None:
    assert load("relm.recipes.section:Section") is Section


def test_an_extension_that_is_not_there_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTENSIONS, "no_such_module")
    load_extensions.cache_clear()
    with pytest.raises(RelmError, match="RELM_EXTENSIONS: cannot import no_such_module"):
        load_extensions()
    load_extensions.cache_clear()
