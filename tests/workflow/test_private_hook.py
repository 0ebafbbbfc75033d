"""The one private function of Snakemake that is replaced: it was read in the version that is named here."""

import re

import snakemake

from small_project import CHECKOUT

READ_IN = "9.27.1"
HOOK = {"graph/refusals.py": ["workflow._build_dag"]}
# Assignments to attributes of Snakemake's objects and classes, and uses of what is no part of its interface.
PRIVATE = re.compile(
    r"workflow\._\w+|\bdag\.forcefiles|\bdag_settings\.\w+ = |\bconfig_args\b|\bpersistence\b|"
    r"\b(?:Job|JobScheduler|PersistenceBase|DAG|Workflow)\.\w+ = |import (?:Job|JobScheduler|PersistenceBase|DAG)\b"
)


def test_the_private_hook_was_read_in_this_version_of_snakemake() -> None:
    assert snakemake.__version__ == READ_IN, (
        f"Snakemake {snakemake.__version__} is installed; `Workflow._build_dag` was read in {READ_IN}. Look whether it still "
        "builds the graph before images are pulled, also in a dry-run; then change READ_IN"
    )
    from snakemake.api import Workflow

    assert callable(Workflow._build_dag)


def test_no_other_private_part_of_snakemake_is_used() -> None:
    files = [*(CHECKOUT / "src").rglob("*.py"), *(CHECKOUT / "src").rglob("*.smk"), CHECKOUT / "Snakefile"]
    found = {
        str(path.relative_to(CHECKOUT / "src" / "relm") if "relm" in path.parts[-3:] else path.name): sorted(set(uses))
        for path in files
        if (uses := PRIVATE.findall(path.read_text()))
    }
    assert found == HOOK
