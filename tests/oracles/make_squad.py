"""Make the golden of SQuAD: features and answers of run_squad.py of google-research/bert, figures of evaluate-v1.1.py.

Their own code runs unchanged, without TensorFlow, of which only flags, files and the log are replaced:

    PYTHONPATH=tests python tests/oracles/make_squad.py BERT SCRIPT [VOCABULARY]

BERT is a clone of github.com/google-research/bert, SCRIPT is squad/evaluate-v1.1.py of allenai/bi-att-flow, which the README
of BERT names. VOCABULARY is vocab.txt of bert-base-uncased. It needs Python, six and numpy.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np

from question_files import made_file, misplaced_file, sample_file

TESTS = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).resolve().parent / "goldens" / "squad.json"
# Name of a case -> sequence length, doc_stride, max_query_length.
LENGTHS = {"long": (384, 128, 64), "short": (40, 12, 7), "tiny": (24, 30, 4), "wide": (160, 50, 10)}
FILES = {"sample": sample_file, "made": made_file, "misplaced": misplaced_file}
SEED, N_BEST, LONGEST = 1106, 20, 30


def tensorflow() -> types.ModuleType:
    """Return what the scripts take from TensorFlow when nothing is trained."""
    flags, values = types.ModuleType("flags"), types.SimpleNamespace()

    def define(name: str, default: Any, *_: Any) -> None:
        setattr(values, name, default)

    for kind in ("string", "bool", "integer", "float"):
        setattr(flags, f"DEFINE_{kind}", define)
    flags.FLAGS = values  # type: ignore[attr-defined]
    module = types.ModuleType("tensorflow")
    silent = types.SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
    files = types.SimpleNamespace(Open=open, GFile=open)
    module.__dict__.update(flags=flags, logging=silent, gfile=files)
    return module


def load(name: str, path: Path) -> Any:
    """Import a script from a path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[name] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def describe(features: list[Any]) -> dict[str, Any]:
    """Return a digest of all features, and some facts of each."""
    rows = [
        [
            feature.example_index,
            feature.input_ids,
            feature.input_mask,
            feature.segment_ids,
            sorted(position for position, most in feature.token_is_max_context.items() if most),
            [feature.start_position, feature.end_position],
        ]
        for feature in features
    ]
    return {
        "sha256": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
        "labels": [row[5] for row in rows],
    }


def answers(run_squad: Any, examples: list[Any], features: list[Any], folder: Path) -> dict[str, Any]:
    """Return the answers by drawn logits: the chosen ones, and the probabilities of each question's three best."""
    draws, results = np.random.RandomState(SEED), []
    for feature in features:
        starts, ends = draws.standard_normal((2, len(feature.input_ids))).astype(np.float32)
        results.append(run_squad.RawResult(feature.unique_id, list(map(float, starts)), list(map(float, ends))))
    chosen, best = folder / "chosen.json", folder / "best.json"
    run_squad.write_predictions(
        examples, features, results, N_BEST, LONGEST, True, str(chosen), str(best), str(folder / "null.json")
    )
    ranked = json.loads(best.read_text())
    return {
        "chosen": json.loads(chosen.read_text()),
        "probabilities": {name: [round(one["probability"], 9) for one in found[:3]] for name, found in ranked.items()},
    }


def main(bert: Path, script: Path, vocabulary: Path = TESTS / "data" / "prose-vocabulary.txt") -> None:
    """Write the golden; with another vocabulary, only its digests are added."""
    sys.modules["tensorflow"] = tensorflow()
    sys.modules.update({name: types.ModuleType(name) for name in ("modeling", "optimization")})
    tokenization, run_squad = (load(name, bert / f"{name}.py") for name in ("tokenization", "run_squad"))
    evaluate = load("evaluate", script).evaluate
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    key = vocabulary.name if vocabulary.parent.name == "data" else vocabulary.parent.name
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenizer = tokenization.FullTokenizer(str(vocabulary), do_lower_case=True)
        for name, make in FILES.items():
            (folder / f"{name}.json").write_text(json.dumps(first_answers(make())))
            for size, lengths in LENGTHS.items():
                case: dict[str, Any] = {}
                for training in (True, False):
                    examples = run_squad.read_squad_examples(str(folder / f"{name}.json"), training)
                    features: list[Any] = []
                    run_squad.convert_examples_to_features(examples, tokenizer, *lengths, training, features.append)
                    case["training" if training else "prediction"] = describe(features)
                case.update(answers(run_squad, examples, features, folder))
                case["figures"] = evaluate(make()["data"], case["chosen"])
                cases[f"{name}, {size}"] = case
    commits = {
        folder.name: subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for folder in (bert, script.parents[1])
    }
    golden = {**golden, "commits": commits, **{f"{key}: {name}": case for name, case in cases.items()}}
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in sorted(golden.items())]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def first_answers(content: dict[str, Any]) -> dict[str, Any]:
    """Return a file with only the first answer to each question, which training takes."""
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                question["answers"] = question["answers"][:1]
    return content


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
