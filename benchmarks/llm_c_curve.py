"""The published curve of llm.c's GPT-2 of 124M parameters, from its log: the source of `recipes/curves/gpt2_124m_llmc.tsv`.

    python benchmarks/llm_c_curve.py main.log > recipes/curves/gpt2_124m_llmc.tsv

LOG is records/track_1_short/2024-10-13_llmc/main.log of KellerJordan/modded-nanogpt at f411b3d3. llm.c counts steps from 0, and
validates before the update of a step: its `s:250 tel` is the validation loss after step 250 here.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

HEADER = """\
# Training loss of llm.c's GPT-2 of 124M parameters on FineWeb, 10 billion tokens, on eight H100
# source: github.com/KellerJordan/modded-nanogpt
# commit: f411b3d346aa52d3504324ca93c230fd84c6c07f
# path: records/track_1_short/2024-10-13_llmc/main.log, thinned by benchmarks/llm_c_curve.py
# licence: MIT
# smoothing: none; every step up to 1,000, then every tenth; step s of the log is step s + 1
# runs: one
# columns: nats per token; learning rate; norm of the gradient before clipping; nats per token of the validation shard
"""
TRAINED = re.compile(r"s:(\d+) trl:(\S+) lr:(\S+) norm:(\S+)")
VALIDATED = re.compile(r"s:(\d+) tel:(\S+)")
DENSE, EVERY = 1000, 10


def thinned(log: str) -> Iterator[str]:
    """Yield the lines of the curve."""
    validated = dict(VALIDATED.findall(log))
    yield "step\tloss\tlearning_rate\tgradient_norm\tvalidation_loss"
    for before, loss, rate, norm in TRAINED.findall(log):
        step = int(before) + 1
        if step <= DENSE or not step % EVERY:
            yield f"{step}\t{loss}\t{rate}\t{norm}\t{validated.get(str(step), '')}"


if __name__ == "__main__":
    print(HEADER + "\n".join(thinned(Path(sys.argv[1]).read_text())))
