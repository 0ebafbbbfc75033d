"""Draw docs/quickstart-loss.svg from a finished quickstart: `make quickstart && python docs/draw_quickstart.py`."""

import re
from pathlib import Path

from relm.artifact import atomic_file, read_json
from relm.reporting import plots

CHECKOUT = Path(__file__).resolve().parent.parent
RESULTS = CHECKOUT / "results" / "quickstart"


def main() -> None:
    figures = read_json(RESULTS / "eval" / "held_out.json")["figures"]
    drawing = plots.loss_curve(plots.read_log({"main": RESULTS / "train.jsonl"}), figures)
    # A page may show it on black: it needs its own background.
    background = '<rect width="100%" height="100%" fill="white"/>'
    with atomic_file(CHECKOUT / "docs" / "quickstart-loss.svg", "w") as file:
        file.write(re.sub(r"(<svg[^>]*>)", rf"\1{background}", drawing, count=1))


if __name__ == "__main__":
    main()
