"""Log-likelihoods of lm_eval's model class, without tasks; the harness's own interpreter runs this program.

python -I harness_likelihoods.py REQUEST.json ANSWER.json
"""

import json
import sys
from pathlib import Path

import torch
from lm_eval.api.instance import Instance  # type: ignore[import-not-found]
from lm_eval.models.huggingface import HFLM  # type: ignore[import-not-found]


def likelihoods(folder: str, arguments: dict[str, object], pairs: list[list[str]], texts: list[str]) -> dict[str, object]:
    """Return ln P and correctness of each continuation after its context, and ln P of each whole text."""
    model = HFLM(pretrained=folder, dtype="float32", softmax_dtype="float32", device="cpu", batch_size=8, **arguments)
    requests = [Instance("loglikelihood", {}, tuple(pair), 0) for pair in pairs]
    rolling = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]
    return {
        "pairs": model.loglikelihood(requests, disable_tqdm=True),
        "texts": model.loglikelihood_rolling(rolling, disable_tqdm=True),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answer = [likelihoods(*one, request["pairs"], request["texts"]) for one in request["models"]]
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
