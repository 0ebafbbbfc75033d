"""The TPU compiler's figures of steps of `transformers`' BERT large, known from compiling them by hand.

With 8 sequences of 512 tokens a core and everything in float32: 13.3 GB of a v3 core and 8.90e12 FLOPs. With 16, autocast to
bfloat16 with float32 weights, and every position through the vocabulary: rejected, 17.49 GiB of 15.48.
"""

from pathlib import Path
from typing import Any

import pytest

from relm.forecast.compilation.compiling import compile_program
from relm.models.bert_configuration import BertConfig
from relm.training.machine.compile_record import Compiled
from small_project import CHECKOUT

BERT_LARGE = BertConfig(24, 16, 1024, 4096, positions=512, vocabulary_size=30_522).to_huggingface()
# Each compiles for a minute or two on an idle machine.
pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]


@pytest.fixture
def their_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the compiled step with the given sequences a core."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "benchmarks"))
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    from compiled import their_program

    def made(batch: int, precision: str) -> Compiled:
        shape = {"config": BERT_LARGE, "batch": batch, "devices": 1, "of": 8, "length": 512, "target_length": None}
        shape |= {"precision": precision, "optimizer": "adamw", "clipping": 1.0}
        return compile_program(their_program("BERT large", "v3-8", shape, tmp_path))

    return made


def test_bert_large_of_transformers_fits_in_float32_with_8_sequences_a_core(their_step: Any) -> None:
    made = their_step(8, "float32")
    assert made.fits
    assert made.memory.peak == pytest.approx(13.3e9, rel=0.01)
    assert made.flops == pytest.approx(8.90e12, rel=0.002)
    assert made.memory.shared > 0.99 * made.memory.results
    assert not made.operations


def test_with_float32_weights_16_and_all_positions_through_the_vocabulary_it_is_refused(their_step: Any) -> None:
    made = their_step(16, "bfloat16")
    assert not made.fits
    assert made.refusal.capacity == "15.48G"
    assert float(made.refusal.used.removesuffix("G")) == pytest.approx(17.49, rel=0.01)
