"""The folder of a model that another program trained."""

import os
import tempfile
from pathlib import Path

from relm.artifact import write_sidecar
from relm.limits import require_disk
from relm.models.contract import LanguageModel


def write_imported(model: LanguageModel, output: Path) -> None:
    """Write a model's folder, with a sidecar for each file; the files appear when all are written."""
    output.mkdir(parents=True, exist_ok=True)
    require_disk(output, 4 * model.parameter_count(), "model.safetensors")
    with tempfile.TemporaryDirectory(prefix=".import.", dir=output) as partial:
        model.save_folder(Path(partial), {})
        for path in sorted(Path(partial).iterdir()):
            path.chmod(0o644)
            os.replace(path, output / path.name)
            write_sidecar(output / path.name)
