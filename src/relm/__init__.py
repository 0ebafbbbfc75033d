"""relm: reproducible language-model pretraining, from the raw dump to a verdict. Read the package in the order of the data."""

import os

# OpenMP's idle threads spin by default, which on shared cores makes a step many times slower; asleep they cost next to
# nothing. The library reads this once, when it is loaded, so it is set before anything here imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
