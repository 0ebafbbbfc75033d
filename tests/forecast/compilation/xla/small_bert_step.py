"""A step of a small BERT with dropout as a program for as many devices as this process has, 4 sequences on each.

PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python small_bert_step.py STEP.hlo
"""

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from relm.forecast.compilation.tracing import TracingDevice
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.recipes.run import Run

CONFIG = BertConfig(2, 4, 128, 512, positions=256, vocabulary_size=1024)
SEQUENCES, MASKED = 4, 16


def main(hlo: Path) -> None:
    """Write the program; print its facts."""
    with closing(TracingDevice(Run(device="tpu"))) as device:
        with torch.device("meta"):
            bert = Bert(CONFIG)
        model = device.place(bert).train()
        optimizer = torch.optim.AdamW(model.parameters())
        whole = np.ones((SEQUENCES * device.devices, CONFIG.positions), dtype=np.int64)
        batch = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), whole)
        batch |= dict.fromkeys(("masked_positions", "masked_labels"), whole[:, :MASKED])
        given = device.feed(device.stage(batch))

        def step() -> torch.Tensor:
            loss = sum(term.nats / term.count for term in model.terms(given).values())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        step()  # the first one creates the optimizer's state
        state = [found for each in optimizer.state.values() for found in each.values() if found.device.type == "xla"]
        device.materialise([*model.parameters(), *state])
        loss = step()
        device.launch()
        del loss  # held until here, because the log reads it
        (traced,) = device.traced[-1:]
        hlo.write_bytes(traced.hlo)
        print(traced.to_program(device.devices, tuple(p.numel() for p in model.parameters())).model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
