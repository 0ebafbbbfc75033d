"""Declarations: one for each objective, optimizer, evaluation or other choice that a recipe makes by name.

A declaration has the choice's options, the facts that other packages need, and references such as
``"relm.examples.causal:CausalExamples"`` to the code that implements it. So a recipe is read without that code, and whoever
adds a choice declares it in one place: in this package, or in a module of their own that `RELM_EXTENSIONS` names.
"""

import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from relm.errors import RelmError
from relm.recipes.section import Section

EXTENSIONS = "RELM_EXTENSIONS"


class Declaration(Protocol):
    """Anything with the name that recipes use for it."""

    @property
    def name(self) -> str: ...


D = TypeVar("D", bound=Declaration)


class Registry(Generic[D]):
    """The known declarations of one kind, by name, in the order in which they were registered."""

    def __init__(self, kind: str, *declarations: D) -> None:
        """Register the package's own declarations.

        Args:
            kind: the field's word for what is declared, such as "objective"; errors use it.
        """
        self.kind = kind
        self._declarations: dict[str, D] = {}
        for declaration in declarations:
            self.register(declaration)

    def register(self, declaration: D) -> D:
        """Add a declaration, and return it.

        Raises:
            RelmError: the name is taken.
        """
        if declaration.name in self._declarations:
            raise RelmError(f"{self.kind} {declaration.name}: is declared already; give the new one another name")
        self._declarations[declaration.name] = declaration
        return declaration

    def __getitem__(self, name: str) -> D:
        """Return the declaration of a name.

        Raises:
            RelmError: there is none; lists the known names.
        """
        if name not in self._declarations:
            raise RelmError(f"there is no {self.kind} {name!r}; known: {', '.join(self._declarations)}")
        return self._declarations[name]

    def __contains__(self, name: object) -> bool:
        return name in self._declarations

    def __iter__(self) -> Iterator[D]:
        """Yield all declarations."""
        return iter(self._declarations.values())

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._declarations)


class NameIn:
    """An annotation of a text in a recipe: one of the names in a registry, as if it were a `Literal` of them.

    The names are looked up when a value is validated and when a JSON Schema is made, so registered ones count at once.
    """

    def __init__(self, registry: Registry[Any]) -> None:
        """Take the registry."""
        self.registry = registry

    def _check(self, value: Any) -> str:
        if isinstance(value, str) and value in self.registry:
            return value
        *most, last = [repr(name) for name in self.registry.names]
        expected = f"{', '.join(most)} or {last}" if most else last
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check, serialization=core_schema.to_string_ser_schema())

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.registry.names), "type": "string"}


def add_options(owner: type[Section], name: str, options: type[Section], description: str) -> None:
    """Give a section of recipes, and every section that has it inside, a key for the options of a new declaration.

    Args:
        owner: the section that gets the key.
        options: all its keys have defaults.
        description: a sentence for the schema.
    """
    owner.__annotations__[name] = options  # which sections that are defined later inherit
    for kind in (owner, *_subclasses(owner)):
        kind.__pydantic_fields__[name] = FieldInfo(annotation=options, default=options(), description=description)
    rebuild_sections()


def rebuild_sections() -> None:
    """Build the validators of all sections again, with the names and keys that are known now."""
    for _ in range(2):  # a section is built from those inside it, whatever the order
        for kind in _subclasses(Section):
            kind.model_rebuild(force=True)


def _subclasses(kind: type[Section]) -> Iterator[type[Section]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


@functools.cache
def load(reference: str) -> Any:
    """Import the module of ``"module:name"``, and return what has the name there."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def load_extensions() -> None:
    """Import the modules that `RELM_EXTENSIONS` names, separated by commas; each registers its declarations.

    Raises:
        RelmError: there is no such module.
    """
    for module in filter(None, os.environ.get(EXTENSIONS, "").split(",")):
        try:
            importlib.import_module(module.strip())
        except ModuleNotFoundError as error:
            raise RelmError(
                f"{EXTENSIONS}: cannot import {module.strip()} ({error}); name modules that Python finds, as on PYTHONPATH"
            ) from None
