"""The code that declarations name is there."""

import dataclasses
import re
from typing import Any

import pytest

from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.as_published import BUILDERS
from relm.recipes.declaration import load
from relm.recipes.objectives import OBJECTIVES
from relm.recipes.optimization import OPTIMIZERS, SCHEDULES

REFERENCE = re.compile(r"relm(\.\w+)+:\w+")
DECLARATIONS = [*ARCHITECTURES, *BUILDERS, *OBJECTIVES, *OPTIMIZERS, *SCHEDULES]


@pytest.mark.parametrize("declaration", DECLARATIONS, ids=lambda declaration: declaration.name)
def test_every_reference_of_a_declaration_is_to_a_function_or_class(declaration: Any) -> None:
    values = [getattr(declaration, field.name) for field in dataclasses.fields(declaration)]
    references = [value for value in values if isinstance(value, str) and ":" in value]
    assert [reference for reference in references if not REFERENCE.fullmatch(reference)] == []
    assert [reference for reference in references if not callable(load(reference))] == []
