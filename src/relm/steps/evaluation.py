"""From a model to figures."""

import re
from pathlib import Path
from typing import Any, get_args

from relm.errors import RelmError
from relm.recipes.evaluations import (
    Begin,
    Diacritics,
    Lambada,
    MaskedLm,
    PseudoPerplexity,
    PublishedTest,
    TextPerplexity,
    load_test,
)
from relm.recipes.run_folder import LOG
from relm.recipes.section import validate
from relm.steps.contract import (
    EXPECTED,
    FINGERPRINT,
    RECIPE,
    Arguments,
    Job,
    Step,
    argument,
    expected_sha256,
    path,
    plan_of,
    positive,
)
from relm.steps.data import objective_of

MODEL = path("--model", "MODEL/model.safetensors, or the folder: relm's own, or any that save_pretrained wrote")
MANIFEST = path("--manifest", "the examples' manifest; its held-out split is scored")
TOKENIZER = path("--tokenizer", "the model's tokenizer.json; default: the one beside the weights", required=False)
CONTEXT = argument("--context", type=positive, required=True, metavar="TOKENS", help="window length")
BEGIN = argument(
    "--begin", choices=get_args(Begin), help="what is put before a text; default: the test's, or what the tokenizer puts there"
)
OUTPUT = path("--output", "TASK.json, whose name is the task's")
SETTINGS = argument(
    "--settings", required=True, metavar="JSON", help="objective, sequence_length and options as in a recipe's phase"
)
EXECUTION = (
    argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: cpu"),
    argument("--precision", default="float32", choices=("float32", "bfloat16"), help="of matrix products; default: float32"),
    argument("--threads", type=positive, metavar="N", help="of the CPU; default: every core this process may use"),
    argument("--batch-tokens", type=positive, metavar="N", help="tokens at once; default: what suits the device"),
)
LIMIT = argument("--limit", type=positive, metavar="N", help="only the first N examples; the figures are then of these")
TESTED = (
    path("--test", "the test's file, such as recipes/evaluations/lambada.yaml", required=False),
    path("--file", "the text that it names, or one of your own"),
    MODEL,
    EXPECTED,
    TOKENIZER,
)


def _folder(a: Arguments) -> Path:
    """The model's folder, which may be named by its weights."""
    model: Path = a.model
    if not model.exists():
        raise RelmError(f"{model}: no such file or folder; --model names a model's folder, or the weights in it")
    return model.parent if model.suffix == ".safetensors" else model


def _task(a: Arguments) -> str:
    """What the figures are called: as their file."""
    output: Path = a.output
    if output.suffix != ".json" or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", output.stem):
        raise RelmError(f"--output {output}: expected TASK.json, of letters, digits, . _ and -: so the task is called")
    return output.stem


def _read(a: Arguments) -> list[Path]:
    """Return the files of the model that a record names: its weights, where they are one file, and all that --sha256 names."""
    weights = _folder(a) / "model.safetensors"
    return list(dict.fromkeys([*([weights] if weights.exists() else []), *_expected(a)]))


def _expected(a: Arguments) -> dict[Path, str]:
    """Return the files of a published model with the sha256 that the command gives for each."""
    return expected_sha256(a, [_folder(a) / name for name in ("model.safetensors", "config.json")])


def _tokenizer(a: Arguments) -> Path:
    folder = _folder(a)
    found: Path = a.tokenizer or folder / "tokenizer.json"
    if not found.exists():
        if a.tokenizer is None and not (folder / "config.json").exists():
            raise RelmError(
                f"{folder}: is not a model's folder, for it has no config.json; give --model one that has, or results/NAME"
            )
        raise RelmError(f"{found}: no such file; name the model's tokenizer.json with --tokenizer")
    return found


def _execution(a: Arguments) -> Any:
    from relm.evaluation.models import BATCH_TOKENS, Execution

    return Execution(a.device, a.precision, a.threads, a.batch_tokens or BATCH_TOKENS[a.device])


def held_out_job(a: Arguments) -> Job:
    from relm.evaluation.perplexity import evaluate_held_out

    return Job(
        lambda: evaluate_held_out(_folder(a), a.manifest, a.output, a.context, _execution(a)),
        inputs=[*_read(a), a.manifest],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def random_windows_job(a: Arguments) -> Job:
    from relm.evaluation.random_windows import evaluate_random_windows

    sizes = {"context": a.context, "batch_size": a.batch_size, "batches": a.batches, "seed": a.seed}
    return Job(
        lambda: evaluate_random_windows(_folder(a), a.manifest, a.output, **sizes, execution=_execution(a)),
        inputs=[*_read(a), a.manifest],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def masked_lm_job(a: Arguments) -> Job:
    from relm.evaluation.masked_lm import evaluate_masked_lm

    options = validate(MaskedLm, {key: getattr(a, key) for key in MaskedLm.model_fields}, Path("masked-lm"))
    phase, places = objective_of(a.settings), (_folder(a), a.manifest, a.output, _task(a))
    return Job(
        lambda: evaluate_masked_lm(*places, phase, options, a.limit, _execution(a)),
        inputs=[*_read(a), a.manifest],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def pseudo_perplexity_job(a: Arguments) -> Job:
    from relm.evaluation.pseudo_perplexity import evaluate_pseudo_perplexity

    options, task = PseudoPerplexity(examples=a.examples), _task(a)
    return Job(
        lambda: evaluate_pseudo_perplexity(_folder(a), a.manifest, a.output, task, options, a.limit, _execution(a)),
        inputs=[*_read(a), a.manifest],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def diacritics_job(a: Arguments) -> Job:
    from relm.evaluation.diacritics import evaluate_diacritics

    options, phase, tokenizer = Diacritics(examples=a.examples), objective_of(a.settings), _tokenizer(a)
    places = _folder(a), a.manifest, tokenizer, a.output, _task(a)
    return Job(
        lambda: evaluate_diacritics(*places, phase, options, a.limit, _execution(a), a.language),
        inputs=[*_read(a), a.manifest, tokenizer],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def _given(a: Arguments, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: getattr(a, key) for key in keys if getattr(a, key) is not None}


def _test(a: Arguments, protocol: str) -> tuple[PublishedTest | None, str | None]:
    """The test that a command names, and the sha256 of its file; neither where the text is one's own."""
    if a.test is None:
        return None, None
    test = load_test(a.test)
    if test.protocol != protocol:
        raise RelmError(f"{a.test}: has protocol {test.protocol}; give it to `relm {test.protocol}`")
    return test, test.files[test.file].sha256


def perplexity_job(a: Arguments) -> Job:
    from relm.evaluation.text_perplexity import evaluate_text

    test, sha256 = _test(a, "perplexity")
    told = test.perplexity.model_dump(exclude_unset=True) if test else {}
    options = validate(TextPerplexity, told | _given(a, tuple(TextPerplexity.model_fields)), a.test or Path("perplexity"))
    places = _folder(a), _tokenizer(a), a.file, a.output, _task(a)
    return Job(
        lambda: evaluate_text(*places, options, sha256, a.limit, _execution(a)),
        inputs=[*_read(a), _tokenizer(a), a.file],
        outputs=[a.output],
        expected_sha256=_expected(a) | ({a.file: sha256} if sha256 else {}),
    )


def lambada_job(a: Arguments) -> Job:
    from relm.evaluation.lambada import evaluate_lambada

    test, sha256 = _test(a, "lambada")
    options = (test.lambada if test else Lambada()).model_copy(update=_given(a, ("begin",)))
    places = _folder(a), _tokenizer(a), a.file, a.output, _task(a)
    return Job(
        lambda: evaluate_lambada(*places, options, sha256, a.limit, _execution(a)),
        inputs=[*_read(a), _tokenizer(a), a.file],
        outputs=[a.output],
        expected_sha256=_expected(a) | ({a.file: sha256} if sha256 else {}),
    )


def harness_job(a: Arguments) -> Job:
    from relm.evaluation.harness import evaluate_harness

    places, tokenizer = (_folder(a), a.task, a.output, _task(a)), _tokenizer(a)
    return Job(
        lambda: evaluate_harness(*places, None, a.task_folder, a.limit, _execution(a), tokenizer),
        inputs=[*_read(a), tokenizer],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def samples_job(a: Arguments) -> Job:
    from relm.evaluation.samples import write_samples

    return Job(
        lambda: write_samples(_folder(a), _tokenizer(a), a.output, prompts=a.prompt, seed=a.seed, execution=_execution(a)),
        inputs=[*_read(a), _tokenizer(a)],
        outputs=[a.output],
        expected_sha256=_expected(a),
    )


def generate_job(a: Arguments) -> Job:
    from relm.evaluation.generate import run_generate
    from relm.evaluation.generation import Writing
    from relm.evaluation.models import Execution
    from relm.evaluation.sampling import requested_sampling

    if a.prompt and a.file is not None:
        raise RelmError("generate: give either --prompt or --file")
    sampling = requested_sampling(a.greedy, a.temperature, a.top_k, a.top_p, a.repetition_penalty, a.uniform_top_k)
    writing = Writing(a.length, sampling, a.stop, a.seed, a.batch_size)
    execution = Execution(a.device, a.precision, a.threads)
    return Job(
        lambda: run_generate(_folder(a), _tokenizer(a), a.prompt, a.file, writing, a.output, execution),
        inputs=[*_read(a), _tokenizer(a), *([a.file] if a.file else [])],
    )


def training_speed_job(a: Arguments) -> Job:
    from relm.evaluation.training_speed import LoggedPhase, evaluate_training

    plan = plan_of(a)
    phases = [
        LoggedPhase(name, plan.run_folder / name / LOG, phase.steps, phase.global_batch_size)
        for name, phase in plan.recipe.pretrain.items()
    ]
    run = plan.recipe.run
    made_on = {"device": run.device, **({"topology": run.topology} if run.topology else {})}
    places = _folder(a) / "model.safetensors", a.output, _task(a)
    return Job(
        lambda: evaluate_training(phases, *places, made_on),
        inputs=_read(a),
        outputs=[a.output],
    )


def _choices(key: str) -> tuple[str, ...]:
    """What a key of the text's protocol may be."""
    return tuple(TextPerplexity.model_fields[key].annotation.__args__)  # type: ignore[union-attr]


STEPS: dict[str, Step] = {
    "held-out": Step(
        "perplexity by token, word and byte on the held-out documents, beside unigram and bigram models",
        [MODEL, EXPECTED, MANIFEST, CONTEXT, *EXECUTION, OUTPUT],
        held_out_job,
    ),
    "random-windows": Step(
        "the loss on windows that begin at random tokens, held out and in training, as nanoGPT estimates it",
        [
            MODEL,
            EXPECTED,
            path("--manifest", "the examples' manifest"),
            CONTEXT,
            argument("--batch-size", type=positive, required=True, metavar="N", help="windows of a batch"),
            argument("--batches", type=positive, default=20, metavar="N", help="of each split; default: 20"),
            argument("--seed", type=int, default=0, metavar="N", help="of the windows' beginnings"),
            *EXECUTION,
            OUTPUT,
        ],
        random_windows_job,
    ),
    "masked-lm": Step(
        "perplexity and accuracy of masked tokens: with masks that stay, and as transformers' Trainer draws them",
        [
            MODEL,
            EXPECTED,
            MANIFEST,
            SETTINGS,
            argument("--seed", type=int, default=0, metavar="N", help="of the masks; default: 0"),
            argument("--redraws", type=positive, default=3, metavar="N", help="how often they are drawn anew; default: 3"),
            argument("--batch-size", type=positive, default=8, metavar="N", help="over which the Trainer averages; default: 8"),
            argument("--processes", type=positive, default=1, metavar="N", help="batched apart, as on N cores; default: 1"),
            *EXECUTION,
            LIMIT,
            OUTPUT,
        ],
        masked_lm_job,
    ),
    "pseudo-perplexity": Step(
        "each token predicted from all others, masked alone (Salazar et al. 2020)",
        [
            MODEL,
            EXPECTED,
            MANIFEST,
            argument("--examples", type=positive, default=100, metavar="N", help="the first N examples; default: 100"),
            *EXECUTION,
            LIMIT,
            OUTPUT,
        ],
        pseudo_perplexity_job,
    ),
    "diacritics": Step(
        "how well diacritics are restored: by character, word and ambiguous word, beside two baselines",
        [
            MODEL,
            EXPECTED,
            MANIFEST,
            TOKENIZER,
            SETTINGS,
            argument("--language", default="ro", metavar="CODE", help="of the text; default: ro"),
            argument("--examples", type=positive, metavar="N", help="the first N held-out texts; default: all"),
            *EXECUTION,
            LIMIT,
            OUTPUT,
        ],
        diacritics_job,
    ),
    "perplexity": Step(
        "perplexity of a text by token, word and byte, by a published protocol or one of your own",
        [
            *TESTED,
            argument("--detokeniser", choices=_choices("detokeniser"), help="default: the test's, or none"),
            argument("--documents", choices=_choices("documents"), help="default: the test's, or one"),
            argument("--windows", choices=_choices("windows"), help="how a long document is cut; default: the test's"),
            argument("--context", type=positive, metavar="TOKENS", help="default: the test's, or the model's positions"),
            argument("--stride", type=positive, metavar="TOKENS", help="default: the test's, or the context"),
            BEGIN,
            argument("--first-token", choices=_choices("first_token"), help="default: the test's, or given"),
            argument("--words", choices=_choices("words"), help="default: the test's, or whitespace"),
            *EXECUTION,
            LIMIT,
            OUTPUT,
        ],
        perplexity_job,
        epilog="docs/evaluation.md says which published number is which protocol.",
    ),
    "lambada": Step(
        "the last words of passages by three protocols at once: last token, last word, and lm_eval's lambada_openai",
        [*TESTED, BEGIN, *EXECUTION, LIMIT, OUTPUT],
        lambada_job,
    ),
    "harness": Step(
        "any task of the language-model evaluation harness, in an environment of its own (make harness)",
        [
            argument("--task", required=True, metavar="NAME", help="as the harness calls it, such as hellaswag"),
            path("--task-folder", "with task files of your own, such as recipes/harness", required=False),
            MODEL,
            EXPECTED,
            TOKENIZER,
            *EXECUTION,
            LIMIT,
            OUTPUT,
        ],
        harness_job,
    ),
    "training-speed": Step(
        "what training took, by its own log: time and speed",
        [RECIPE, FINGERPRINT, MODEL, OUTPUT],
        training_speed_job,
    ),
    "samples": Step(
        "let the model write a few texts",
        [
            MODEL,
            EXPECTED,
            TOKENIZER,
            argument("--prompt", nargs="*", metavar="TEXT", help="beginnings; default: a few that suit an encyclopedia"),
            argument("--seed", type=int, default=0, metavar="N", help="of the sampling"),
            *EXECUTION,
            OUTPUT,
        ],
        samples_job,
    ),
    "generate": Step(
        "let a model continue prompts, and say how long it takes",
        [
            MODEL,
            TOKENIZER,
            argument("--prompt", nargs="+", metavar="TEXT", help="beginnings; default: --file, or they are typed"),
            path("--file", "prompts, one a line", required=False),
            argument("--length", type=positive, default=128, metavar="N", help="tokens at most after each; default: 128"),
            argument("--greedy", action="store_true", help="the likeliest token always"),
            argument("--temperature", type=float, metavar="X", help="divides the logits; default: 0.8"),
            argument("--top-k", type=int, metavar="K", help="only the K likeliest tokens, 0: all; default: 50"),
            argument("--top-p", type=float, metavar="P", help="only the likeliest that reach P together; default: 0.95"),
            argument("--repetition-penalty", type=float, metavar="X", help="of Keskar et al. 2019; default: 1, none"),
            argument("--uniform-top-k", type=positive, metavar="K", help="each of the K likeliest alike, as Graphcore's GPT-2"),
            argument("--stop", metavar="TEXT", help="where a text ends: a text, or a special token's name"),
            argument("--seed", type=int, default=0, metavar="N", help="of the sampling; default: 0"),
            argument("--batch-size", type=positive, default=8, metavar="N", help="prompts at once; default: 8"),
            *EXECUTION[:3],
            path("--output", "JSON lines instead of a print", required=False),
        ],
        generate_job,
        records=False,
        epilog="Without --prompt and --file prompts are typed, until the end of input or Ctrl-C; a pipe is a file.",
    ),
}
