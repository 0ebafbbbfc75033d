"""`snakemake paper_defects` at tiny size, from the real text to the table: one defect of tpu_pretrain against its control."""

import re
import shutil
from pathlib import Path

import pytest

from small_project import CHECKOUT, Commands

RECIPES = ("masked", "words_in_part")
TINY = {
    r"\bsteps: \d+": "steps: 16",
    r"warmup_steps: \d+": "warmup_steps: 1",
    r"dataset: (\w+)": r"dataset: \1\n  documents: 300",
    r"seeds: 3": "seeds: 2",
    r"  machine: cpu\n": "",
}


@pytest.mark.full
def test_the_table_has_a_row_for_each_figure_of_those_with_a_control(project: Commands, shared_data: Path) -> None:
    for name in RECIPES:
        text = (CHECKOUT / "recipes" / f"defects_{name}.yaml").read_text()
        for pattern, tiny in TINY.items():
            text = re.sub(pattern, tiny, text)
        (project.folder / "recipes" / f"defects_{name}.yaml").write_text(text)
    shutil.copy(CHECKOUT / "recipes" / "data" / "tinyshakespeare.yaml", project.folder / "recipes" / "data")
    done = project.snakemake("paper_defects", RELM_MIRROR=str(shared_data))
    assert done.returncode == 0, done.stdout
    paper = project.folder / "results" / "papers" / "defects"
    rows = (paper / "differences.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["masked_lm.masked_nats_per_token"]
    assert re.search(r"[+-]\d\.\d{3}, [+-]\d+\.\d{3} to ", rows[0]), rows
    assert rows[0] in (paper / "README.md").read_text()
