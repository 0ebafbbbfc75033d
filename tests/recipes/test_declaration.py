"""A registry of declarations, names of it in a recipe, and sections that get a key for a new declaration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS, NameIn, Registry, load_extensions, register_with_options
from relm.recipes.section import Section, validate


@dataclass(frozen=True)
class Colour:
    name: str
    options: type[Section] | None = None


COLOURS: Registry[Colour] = Registry("colour")
for name in ("red", "green"):
    COLOURS.register(Colour(name))
PAINTS: Registry[Colour] = Registry("paint", Colour("white"))


class Named(Section):
    colour: Annotated[str, NameIn(COLOURS)]


class Listed(Section):
    colour: Literal["red", "green"]


class Inner(Section):
    length: int = 1


class Longer(Inner):
    width: int = 2

    def area(self) -> int:
        return self.length * self.width


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


def test_a_choice_is_registered_with_its_options_in_one_call() -> None:
    register_with_options(PAINTS, Colour("tint", Tint), Inner, "How strong the colour is.")
    assert "tint" in PAINTS
    found = Outer.model_validate({"inside": {"a": {"tint": {"strength": 0.25}}}})
    assert found.model_dump(exclude_defaults=True) == {"inside": {"a": {"tint": {"strength": 0.25}}}}
    schema = Outer.model_json_schema()["$defs"]["Longer"]["properties"]
    assert schema["tint"]["description"] == "How strong the colour is."
    with pytest.raises(RelmError, match=r"inside\.a\.tint\.strenth: unknown key; did you mean strength"):
        validate(Outer, {"inside": {"a": {"tint": {"strenth": 1}}}}, Path("a.yaml"))


def test_a_choice_without_options_is_registered_without_a_key() -> None:
    register_with_options(PAINTS, Colour("plain"), Inner, "Nothing.")
    assert "plain" in PAINTS
    assert "plain" not in Longer.model_fields


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Colour("white", Tint), "paint white: is declared already; give the new one another name"),
        (Colour("width", Tint), "width: its options cannot have this key, which Longer has already; give another name"),
        (Colour("area", Tint), "area: its options cannot have this key, which Longer has already; give another name"),
    ],
)
def test_a_choice_with_a_fault_registers_nothing(choice: Colour, message: str) -> None:
    names, keys = PAINTS.names, [list(kind.model_fields) for kind in (Inner, Longer)]
    with pytest.raises(RelmError) as error:
        register_with_options(PAINTS, choice, Inner, "Options.")
    assert str(error.value) == message
    assert PAINTS.names == names
    assert [list(kind.model_fields) for kind in (Inner, Longer)] == keys


def test_an_extension_that_is_not_there_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTENSIONS, "no_such_module")
    load_extensions.cache_clear()
    with pytest.raises(RelmError, match="RELM_EXTENSIONS: cannot import no_such_module"):
        load_extensions()
    load_extensions.cache_clear()
