"""Names of files that cannot be a recipe's or a machine's."""

from pathlib import Path

from relm.recipes.section import NAME

# Folders of `results/` that do not belong to a recipe.
NOT_RECIPES = ("smoke", "reference", "papers")


def is_recipe_name(stem: str) -> bool:
    """Return True if a recipe may have the name."""
    return NAME.fullmatch(stem) is not None and stem not in NOT_RECIPES


def describe_misnamed(path: Path) -> str:
    """Return an error message about a file whose name cannot be a recipe's."""
    return (
        f"{path.parent}/{path.name!r}: cannot be a recipe's name, which has letters, digits, '.', '_' and '-' and is none of "
        f"{', '.join(NOT_RECIPES)}; rename the file"
    )


def describe_misnamed_machine(path: Path) -> str:
    """Return an error message about a file whose name cannot be a machine's."""
    return (
        f"{path.parent}/{path.name!r}: cannot be a machine's name, which begins with a letter or digit and has letters, "
        "digits, '.', '_' and '-'; rename the file"
    )
