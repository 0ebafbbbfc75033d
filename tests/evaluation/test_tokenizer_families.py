"""Log-likelihoods are lm_eval's for tokenizers of T5's and BERT's form, before a causal model of any kind.

Both put a token after a text, which lm_eval keeps after a context, so that it loses the first token of each continuation. It is
therefore given the same tokenizer without what comes after a text, and everything else is as published: T5's U+2581 before each
text, BERT's lower case, its `##` and its [UNK].
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from harness_tasks import PROSE, harness_python, passages
from relm.artifact import read_json
from relm.evaluation.beginning import added_tokens, choose_beginning
from relm.evaluation.choices.choice_formats import ChoicePrompt, Question
from relm.evaluation.choices.choice_tokens import ChoiceEncoder
from relm.evaluation.choices.multiple_choice import score_choices
from relm.evaluation.execution import Execution
from relm.evaluation.lambada import score_passages, tokenise_passages
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score
from relm.evaluation.text_perplexity import prepare_text
from relm.evaluation.windows import cut_documents
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.evaluation.protocol_options import TextPerplexity

SAME, POSITIONS = 1e-4, 24
LINES = passages()
TEXTS = LINES[:12]
# Contexts and choices. The snowman is unknown to both tokenizers.
CHOICES = [
    ("To open a jar,", ["turn its lid.", "freeze the table."]),
    ("It SNOWED, and a ☃ stood there;", ["é was cold.", "the ☃ melted"]),
    (LINES[3], [" ".join(line.split()[:3]) for line in LINES[4:7]]),
]
PAIRS = [[context, f" {choice}"] for context, choices in CHOICES for choice in choices]
PAIRS += [[text.rpartition(" ")[0], " " + text.rpartition(" ")[2]] for text in TEXTS]


def t5(folder: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Return a Unigram with U+2581 before each word, as T5's, and its settings."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" {2,}", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([PROSE.read_text(encoding="utf-8")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def wordpiece(folder: Path) -> tuple[Tokenizer, dict[str, str]]:
    """Return a WordPiece of small letters, as BERT's, and settings that let [CLS] begin a text and [SEP] end it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([PROSE.read_text(encoding="utf-8")], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer, {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}


FAMILIES = {"t5": t5, "wordpiece": wordpiece}
BEFORE = {"t5": [], "wordpiece": ["[CLS]"]}


def folders_of(family: str, made: Path) -> tuple[Path, Path]:
    """Write a random Llama with the tokenizer as published, and without what it puts after a text, for lm_eval."""
    tokenizer, named = FAMILIES[family](made)
    torch.manual_seed(3)
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=tokenizer.get_vocab_size(), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                       num_attention_heads=2, max_position_embeddings=POSITIONS, initializer_range=0.5)
    )  # fmt: skip
    before, folders = BEFORE[family], (made / f"{family}-ours", made / f"{family}-theirs")
    for folder in folders:
        model.save_pretrained(folder)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        tokenizer.save(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join([*before, "$A"]), special_tokens=[(name, tokenizer.token_to_id(name)) for name in before]
        )
    return folders


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Return the folder of each family and lm_eval's likelihoods, from one process."""
    python, made = harness_python(), tmp_path_factory.mktemp("families")
    folders = {family: folders_of(family, made) for family in FAMILIES}
    request = {"models": [[str(theirs), {}] for _, theirs in folders.values()], "pairs": PAIRS, "texts": TEXTS[:4]}
    (made / "request.json").write_text(json.dumps(request))
    script = Path(__file__).with_name("harness_likelihoods.py")
    subprocess.run([python, "-I", "-B", script, made / "request.json", made / "answer.json"], check=True)
    answers = read_json(made / "answer.json")
    return {family: (ours, answer) for (family, (ours, _)), answer in zip(folders.items(), answers, strict=True)}


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_choices_last_words_and_texts_are_lm_eval_s(family: str, found: dict[str, Any], tmp_path: Path) -> None:
    folder, theirs = found[family]
    loaded = load_tokenizer(folder / "tokenizer.json")
    model = load_causal(folder, loaded.vocabulary_size, Execution(threads=1))
    assert [loaded.tokenizer.id_to_token(number) for number in added_tokens(loaded)] == BEFORE[family]
    expected = [nats for nats, _ in theirs["pairs"]]

    questions = [Question("line 1", {"lm_eval": ChoicePrompt(context, tuple(choices))}, 0) for context, choices in CHOICES]
    encoder = ChoiceEncoder(loaded, added_tokens(loaded))
    scores = score_choices(model, questions, {"lm_eval": encoder.encode("lm_eval", questions)}, 300)["lm_eval"]
    count = len(PAIRS) - len(TEXTS)
    assert scores.log_likelihoods.tolist() == pytest.approx(expected[:count], rel=0, abs=SAME)
    assert scores.truncated.any()

    begun = choose_beginning("tokenizer", loaded, folder)
    last_words = score_passages(model, tokenise_passages(TEXTS, loaded, tmp_path), 300, begun)
    assert (-last_words.harness_nats).tolist() == pytest.approx(expected[count:], rel=0, abs=SAME)

    options = TextPerplexity(detokeniser="none", documents="one", windows="rolling", first_token="scored", words="whitespace")
    for text, sum_of_theirs in zip(TEXTS[:4], theirs["texts"], strict=True):
        prepared = prepare_text(text, loaded, options, None, choose_beginning("tokenizer", loaded, folder, True))
        windows = cut_documents("rolling", prepared.sizes, POSITIONS, POSITIONS)
        nats = score(model, ScoredSequences(prepared.array, windows.starts, windows.ends, windows.scored), 300).nats
        assert -float(np.sum(nats)) == pytest.approx(sum_of_theirs, rel=SAME / 10)
