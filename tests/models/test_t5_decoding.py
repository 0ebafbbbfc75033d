"""Decoding step by step against decoding all at once, and against transformers' own greedy generation."""

from pathlib import Path

import pytest
import torch
from random_weights import randomised
from t5_cases import FORMS, TINY, batch_for, pair

import relm.models.t5_decoding
from relm.evaluation.text_to_text import greedy
from relm.models.t5 import T5, T5Config
from relm.models.t5_decoding import Decoding

END, NEVER = 1, -1


@pytest.mark.parametrize("form", FORMS)
def test_logits_of_each_step_are_those_of_the_whole_target(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the places at first, and past the farthest distance that the model tells apart."""
    monkeypatch.setattr(relm.models.t5_decoding, "FIRST_PLACES", 4)
    ours, batch = randomised(T5(FORMS[form][0])).eval(), batch_for(TINY)
    target = torch.randint(0, TINY.vocabulary_size, (3, 19), generator=torch.Generator().manual_seed(5))
    whole = ours.logits(batch["input_ids"], target, batch["attention_mask"])
    decoding = Decoding(ours, batch["input_ids"], batch["attention_mask"])
    for place in range(19):
        torch.testing.assert_close(decoding.next_logits(target[:, place]), whole[:, place], rtol=1e-5, atol=2e-5)
    assert decoding.written == 19


def test_rows_that_are_kept_go_on_as_if_alone() -> None:
    ours, batch = randomised(T5(TINY)).eval(), batch_for(TINY)
    target = torch.randint(0, TINY.vocabulary_size, (3, 6), generator=torch.Generator().manual_seed(5))
    whole = ours.logits(batch["input_ids"], target, batch["attention_mask"])
    for mask in (batch["attention_mask"], None):
        decoding = Decoding(ours, batch["input_ids"], mask)
        expected = whole if mask is not None else ours.logits(batch["input_ids"], target)
        for place in range(6):
            rows = torch.tensor([0, 1, 2] if place < 3 else [2, 0])
            found = decoding.next_logits(target[rows, place])
            torch.testing.assert_close(found, expected[rows, place], rtol=1e-5, atol=2e-5)
            if place == 2:
                decoding.keep(torch.tensor([2, 0]))


def test_the_source_is_read_once() -> None:
    ours, batch = randomised(T5(TINY)).eval(), batch_for(TINY)
    calls = {"encoder": 0, "source keys": 0}
    ours.encoder.register_forward_hook(lambda *_: calls.update({"encoder": calls["encoder"] + 1}))
    for block in ours.decoder.block:
        block.layer[1].EncDecAttention.k.register_forward_hook(
            lambda *_: calls.update({"source keys": calls["source keys"] + 1})
        )
    decoding = Decoding(ours, batch["input_ids"], batch["attention_mask"])
    for token in range(5):
        decoding.next_logits(torch.full((3,), token))
    assert calls == {"encoder": 1, "source keys": TINY.layers}


def sources(config: T5Config, count: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources of 2 tokens and more, padded, each with an end."""
    draw = torch.Generator().manual_seed(11)
    lengths = torch.randint(2, longest + 1, (count, 1), generator=draw)
    lengths[0] = longest
    places = torch.arange(longest)
    ids = torch.randint(2, config.vocabulary_size, (count, longest), generator=draw)
    ids[places == lengths - 1] = END
    return torch.where(places < lengths, ids, config.pad_token_id), places < lengths


def until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


@pytest.mark.parametrize("form", FORMS)
def test_a_padded_batch_is_written_token_for_token_as_transformers_writes_it(form: str, tmp_path: Path) -> None:
    ours, theirs = pair(form, tmp_path, spread=1.2 if form == "mt5-tied" else 0.5)
    ids, mask = sources(TINY, count=48, longest=21)
    with torch.inference_mode():
        endless = greedy(ours.eval(), ids, mask, NEVER, most=40).tolist()
        # The token that comes at the most different places: as the end, it lets rows leave one after the other.
        end = max(range(TINY.vocabulary_size), key=lambda token: len({len(until(row, token)) for row in endless}))
        written = greedy(ours, ids, mask, end, most=40).tolist()
        expected = theirs.eval().generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=40, eos_token_id=end, num_beams=1, do_sample=False
        )[:, 1:].tolist()  # fmt: skip
    assert len({len(until(row, end)) for row in expected}) > 6
    assert len({tuple(row) for row in expected}) > 8
    assert [until(row, end) for row in written] == [until(row, end) for row in expected]


def test_rows_that_are_finished_leave_the_batch_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = randomised(T5(TINY), spread=1.2).eval()
    ids, mask = sources(TINY, count=48, longest=21)
    kept = []
    keep = Decoding.keep
    monkeypatch.setattr(Decoding, "keep", lambda self, rows: (kept.append(len(rows)), keep(self, rows))[1])
    with torch.inference_mode():
        endless = greedy(ours, ids, mask, NEVER, most=40).tolist()
        end = max(range(TINY.vocabulary_size), key=lambda token: len({len(until(row, token)) for row in endless}))
        early = [row for row, written in enumerate(endless) if len(until(written, end)) < 12]
        late = [row for row, written in enumerate(endless) if len(until(written, end)) >= 12]
        assert len(late) > 5
        order = [*late[:3], *(early * 16)[:20], *late[3:6], *(early * 16)[:9]]
        written = greedy(ours, ids[order], mask[order], end, most=40).tolist()
    assert kept[0] < len(order) / 2
    assert [until(row, end) for row in written] == [until(endless[row], end) for row in order]
    assert len({len(until(row, end)) for row in written}) > 4


def test_the_bound_and_the_end_are_heeded() -> None:
    ours = randomised(T5(TINY)).eval()
    ids, mask = sources(TINY, count=4, longest=6)
    with torch.inference_mode():
        long = greedy(ours, ids, mask, end=NEVER, most=30)
        short = greedy(ours, ids, mask, end=NEVER, most=3)
        assert torch.equal(short, long[:, :3])
        first = int(long[0, 0])
        ended = greedy(ours, ids[:1], mask[:1], end=first, most=30)
    assert ended.tolist() == [[first]]


@pytest.mark.full
def test_wide_models_write_as_transformers_does(tmp_path: Path) -> None:
    """Two layers as wide as mT5-base's, over all distances that it tells apart."""
    config = T5Config(2, 12, 64, 768, 2048, vocabulary_size=3_000, dropout=0.0, family="mt5")
    ours, theirs = pair("mt5", tmp_path, config, spread=0.03)
    ids, mask = sources(config, count=6, longest=200)
    with torch.inference_mode():
        written = greedy(ours.eval(), ids, mask, END, most=160).tolist()
        expected = theirs.eval().generate(input_ids=ids, attention_mask=mask, max_new_tokens=160, num_beams=1, do_sample=False)
    assert [until(row, END) for row in written] == [until(row, END) for row in expected[:, 1:].tolist()]
    assert max(len(until(row, END)) for row in written) > 128
