"""Small random models of Llama's form: tokenizers with bos and without, in folders like published ones."""

import json
from functools import cache
from pathlib import Path

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from harness_tasks import PROSE

SPECIAL = ["<unk>", "<s>", "</s>"]
BOS, EOS = 1, 2
POSITIONS = 24


@cache
def trained() -> str:
    """Train a BPE with spaces as U+2581 and bytes for unknown characters on the sample; return its JSON."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*SPECIAL, *bytes_], show_progress=False)
    tokenizer.train_from_iterator([PROSE.read_text(encoding="utf-8")], trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in SPECIAL]
    return json.dumps(content)


def llama_tokenizer(adds_bos: bool) -> Tokenizer:
    """Return the trained tokenizer, with a template that puts `<s>` before a text if requested."""
    tokenizer = Tokenizer.from_str(trained())
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
        )
    return tokenizer


def llama_folder(folder: Path, adds_bos: bool, bos_token: str | None = "<s>", likely: str | None = None) -> Path:
    """Write the folder of a random Llama, whose losses depend much on the first token.

    Args:
        likely: a text; only its tokens are likely; None: any token is.
    """
    tokenizer = llama_tokenizer(adds_bos)
    torch.manual_seed(3)
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                       num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=POSITIONS, initializer_range=0.5)
    )  # fmt: skip
    if likely is not None:
        ids = set(tokenizer.encode(f" {likely}", add_special_tokens=False).ids)
        model.lm_head.weight.data[[number for number in range(len(model.lm_head.weight)) if number not in ids]] *= 0.01
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos_token, "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
