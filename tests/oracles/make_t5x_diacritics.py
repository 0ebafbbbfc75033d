"""Make the golden of iliemihai/t5x_diacritics: its own program, of one replica on the CPU, for 100 updates.

Run it by Python 3.8 with torch 1.7.1, transformers 4.2.2, datasets 1.2.1, dill 0.3.3, numpy 1.23.5, unidecode and
safetensors, after relm's order was written by relm's own Python:

    python tests/oracles/write_batches.py t5x_diacritics batches.npz
    OMP_NUM_THREADS=1 python tests/oracles/make_t5x_diacritics.py FOLDER batches.npz

FOLDER is a clone of github.com/iliemihai/t5x_diacritics at 0911ce1.
"""

import runpy
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List

import numpy as np
import torch
import transformers
from golden_files import STEPS, Golden, draw_weights, hash_batch, hash_weights, read_commit_of, read_versions, write_golden
from made_text import make_lines, unigrams

BATCH_SIZE, LENGTH, WORDS, TEXT_SEED = 4, 24, 36, 0
PATCHED = [
    "torch_xla's device is the CPU, and its spawn calls the function once, as the only replica.",
    "The texts are longer than a sequence, and come in relm's order; one worker reads them once, in sequences of 24.",
    "The model and its tokenizer are made at twin size, without dropout, in place of the released ones.",
]
LOSSES: List[float] = []
NORMS: List[float] = []
RATES: List[float] = []
BATCHES: List[List[np.ndarray]] = []


def stand_in_for_torch_xla() -> None:
    """Put modules in place of torch_xla's."""
    members: Dict[str, Dict[str, Any]] = {
        "torch_xla": {},
        "torch_xla.core": {},
        "torch_xla.distributed": {},
        "torch_xla.core.xla_model": {
            "xla_device": lambda: torch.device("cpu"),
            "xrt_world_size": lambda: 1,
            "get_ordinal": lambda: 0,
            "mark_step": lambda: None,
            "master_print": lambda what, value: LOSSES.append(value) if what == "Loss:" else None,
        },
        "torch_xla.distributed.xla_multiprocessing": {"spawn": spawn},
        "torch_xla.distributed.parallel_loader": {
            "ParallelLoader": lambda loader, devices: SimpleNamespace(per_device_loader=lambda device: loader)
        },
    }
    for name, given in members.items():
        module = sys.modules[name] = ModuleType(name)
        module.__dict__.update(given)
    for name in members:
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])
    torch.distributed.init_process_group = lambda **options: None


def spawn(function: Any, args: Any, nprocs: int, start_method: str) -> None:
    """Call the program's function once, at twin size."""
    function.__globals__.update(NUM_EPOCHS=1, max_length=LENGTH, batch_size=BATCH_SIZE, num_workers=0)
    function(0, *args)


def make_twin(tokenizer: Any) -> Any:
    """Return an mT5 at twin size, whose forward pass is recorded."""
    config = transformers.MT5Config(
        vocab_size=len(unigrams()), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
    )  # fmt: skip
    twin = transformers.MT5ForConditionalGeneration(config)
    drawn = draw_weights({name: tuple(weight.shape) for name, weight in twin.named_parameters()})
    for name, weight in twin.named_parameters():
        weight.data.copy_(torch.from_numpy(drawn[name]))
    forward = twin.forward

    def noted(input_ids: Any, attention_mask: Any, labels: Any, decoder_attention_mask: Any) -> Any:
        assert bool((decoder_attention_mask == 1).all()), "a text does not fill the sequence"
        BATCHES.append([array.numpy().copy() for array in (input_ids, attention_mask, labels)])
        return forward(
            input_ids=input_ids, attention_mask=attention_mask, labels=labels, decoder_attention_mask=decoder_attention_mask
        )

    twin.forward = noted
    return twin


def write_tokenizer(path: Path) -> None:
    """Write the tokenizer of the text, which ends every text with </s>."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.Unigram(unigrams(), 2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.add_special_tokens([AddedToken(token) for token in ("<pad>", "</s>", "<unk>")])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    made.save(str(path))


def record_optimizer() -> None:
    """Record the learning rate and the norm of the gradient of each step of Adafactor."""
    from transformers.optimization import Adafactor

    step = Adafactor.step

    def noted(optimizer: Any) -> Any:
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        NORMS.append(torch.cat([weight.grad.flatten().double() for weight in weights]).norm().item())
        RATES.append(optimizer.param_groups[0]["lr"])
        return step(optimizer)

    Adafactor.step = noted


def main() -> None:
    """Run the original, and write its golden."""
    import datasets

    original = Path(sys.argv[1])
    commit = read_commit_of(original)
    texts = make_lines(BATCH_SIZE * STEPS, WORDS, TEXT_SEED)
    order = np.load(sys.argv[2])["numbers"].reshape(-1).tolist()
    torch.set_num_threads(1)
    stand_in_for_torch_xla()
    record_optimizer()
    datasets.load_dataset = lambda *names, **options: [{"text": texts[number]} for number in order]
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder) / "tokenizer.json")
        made = transformers.T5TokenizerFast(None, tokenizer_file=str(Path(folder) / "tokenizer.json"), extra_ids=0)
    model = make_twin(made)
    initial = {name: weight.detach().numpy().copy() for name, weight in model.named_parameters()}
    transformers.T5TokenizerFast.from_pretrained = lambda name: made
    transformers.MT5ForConditionalGeneration.from_pretrained = lambda name: model
    runpy.run_path(str(original / "run_distributed_tpus.py"), run_name="original")
    final = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    golden = Golden(
        original="iliemihai/t5x_diacritics, run_distributed_tpus.py",
        commit=commit,
        command="python tests/oracles/make_t5x_diacritics.py FOLDER batches.npz",
        patched=PATCHED,
        versions=read_versions("torch", "transformers", "tokenizers", "numpy", "unidecode"),
        initial_sha256=hash_weights(initial),
        batches_sha256=[hash_batch(batch) for batch in BATCHES],
        losses=LOSSES,
        gradient_norms=NORMS,
        learning_rates=RATES,
        final=final,
    )
    write_golden("t5x_diacritics", golden)


if __name__ == "__main__":
    main()
