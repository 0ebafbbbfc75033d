"""Write the batches of relm's side of an oracle, for an original whose own draws are replaced by them.

python tests/oracles/write_batches.py NAME FILE.npz
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from golden_files import STEPS
from originals import BY_NAME
from our_runs import twin_of

from relm.devices.contract import open_device
from relm.training.phase_run import open_reader


def main() -> None:
    """Write the arrays of every step, (steps, batch, ...), and the examples' numbers."""
    oracle = BY_NAME[sys.argv[1]]
    recipe = twin_of(oracle)
    with tempfile.TemporaryDirectory() as folder:
        manifest = oracle.write_examples(Path(folder))
        reader = open_reader(recipe, oracle.phase, manifest, "train", open_device(recipe.run))
        print(f"{len(reader.examples)} examples")
        steps = range(1, STEPS + 1)
        batches = [reader.batch(step) for step in steps]
        numbers = [reader.numbers(step)[0] for step in steps]
    np.savez_compressed(
        sys.argv[2], numbers=numbers, **{name: np.stack([batch[name] for batch in batches]) for name in oracle.arrays}
    )


if __name__ == "__main__":
    main()
