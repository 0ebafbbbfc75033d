"""Declarations: one for each objective, optimizer, evaluation or other choice that a recipe makes by name.

It has the choice's options, facts for other packages, and references ``"module:name"`` to its code, which reading a recipe does
not import. `RELM_EXTENSIONS` names modules with further declarations.
"""

import functools
import importlib
import os
import traceback
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from relm.errors import RelmError
from relm.recipes.section import Section

EXTENSIONS = "RELM_EXTENSIONS"


class Declaration(Protocol):
    """Anything with a name in recipes."""

    @property
    def name(self) -> str: ...


class Choice(Declaration, Protocol):
    """A declaration whose options, if it has any, have a key of its name in recipes."""

    @property
    def options(self) -> type[Section] | None: ...


D = TypeVar("D", bound=Declaration)
C = TypeVar("C", bound=Choice)


class Registry(Generic[D]):
    """The known declarations of one kind, by name, in the order in which they were registered."""

    def __init__(self, kind: str, *declarations: D) -> None:
        """Register the package's own declarations; errors name the kind, such as "objective"."""
        self.kind = kind
        self._declarations: dict[str, D] = {}
        for declaration in declarations:
            self.register(declaration)

    def register(self, declaration: D) -> D:
        """Add a declaration, whose name must be new, and return it."""
        self.require_new(declaration)
        self._declarations[declaration.name] = declaration
        return declaration

    def require_new(self, declaration: D) -> None:
        """Raise an error if the name of a declaration is taken."""
        if declaration.name in self._declarations:
            raise RelmError(f"{self.kind} {declaration.name}: is declared already; give the new one another name")

    def __getitem__(self, name: str) -> D:
        """Return the declaration of a name; the error for an unknown one lists all."""
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
        """Names of all declarations."""
        return tuple(self._declarations)


class NameIn:
    """Annotation of a text that must be a name in a registry when it is validated; the JSON Schema lists the names."""

    def __init__(self, registry: Registry[Any]) -> None:
        """Store the registry."""
        self.registry = registry

    def _check(self, value: Any) -> str:
        if isinstance(value, str) and value in self.registry:
            return value
        *most, last = [repr(name) for name in self.registry.names]
        expected = f"{', '.join(most)} or {last}" if most else last
        raise PydanticCustomError("literal_error", "expected {expected}", {"expected": expected})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check, serialization=core_schema.to_string_ser_schema())

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.registry.names), "type": "string"}


def register_with_options(registry: Registry[C], declaration: C, owner: type[Section], description: str) -> None:
    """Add a declaration; its options become a key of its name in `owner` and all that inherit it. All or nothing."""
    registry.require_new(declaration)
    key, options = declaration.name, declaration.options
    if options is not None:
        owners = [owner, *_subclasses(owner)]
        if taken := [kind.__name__ for kind in owners if key in kind.model_fields or hasattr(kind, key)]:
            raise RelmError(f"{key}: its options cannot have this key, which {taken[0]} has already; give another name")
        default = options()
        owner.__annotations__[key] = options  # sections that are defined later inherit it
        for kind in owners:
            kind.__pydantic_fields__[key] = FieldInfo(annotation=options, default=default, description=description)
        rebuild_sections()
    registry.register(declaration)


def refuse_keys_of_others(section: Section, choice: str, keys: Mapping[str, Collection[str]]) -> None:
    """Raise for a key that is set although only other values of `choice` read it; `keys` has value -> its keys."""
    chosen = getattr(section, choice)
    for key, known in type(section).model_fields.items():
        names, value = [name for name, own in keys.items() if key in own], getattr(section, key)
        if names and chosen not in names and value != known.get_default(call_default_factory=True):
            shown = value.model_dump(exclude_defaults=True) if isinstance(value, Section) else value
            raise ValueError(
                f"{key}: read with {choice}: {' or '.join(names)} only, found {shown!r} with {choice}: {chosen}; remove it, "
                f"or change {choice}"
            )


def rebuild_sections() -> None:
    """Rebuild the validators of all sections, with the names and keys that are registered now."""
    for _ in range(2):  # twice, because a section is built from those inside it and the order is arbitrary
        for kind in _subclasses(Section):
            kind.model_rebuild(force=True)


def _subclasses(kind: type[Section]) -> Iterator[type[Section]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


@functools.cache
def load(reference: str) -> Any:
    """Import the module of ``"module:name"``, and return its attribute of that name."""
    module, _, name = reference.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the module
        raise RelmError(f"{reference}: {error}; correct the reference in the declaration, or PYTHONPATH") from None
    if not hasattr(found, name):
        raise RelmError(f"{reference}: the module has no {name!r}; the declaration refers to code as module:name")
    return getattr(found, name)


def list_extensions(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the modules in `RELM_EXTENSIONS`, which commas separate."""
    return [name for name in map(str.strip, environment.get(EXTENSIONS, "").split(",")) if name]


@functools.cache
def load_extensions() -> None:
    """Import the modules that `RELM_EXTENSIONS` names; each registers its declarations."""
    for module in list_extensions(os.environ):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise RelmError(
                f"{EXTENSIONS}: cannot import {module} ({error}); name modules that Python finds, as on PYTHONPATH"
            ) from None
        except RelmError as error:
            raise RelmError(f"{EXTENSIONS}: {module}: {error}") from None
        except Exception as error:
            raise RelmError(f"{EXTENSIONS}: {module}: {_describe_fault(error)}; correct or remove it") from error


def _describe_fault(error: Exception) -> str:
    """Return the kind and message of an error with the file and line that it is in."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    file, line = (error.filename, error.lineno) if isinstance(error, SyntaxError) else (last.filename, last.lineno)
    words = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{file}, line {line}: {type(error).__name__}: {words}"
