"""The table of a pipeline that `relm estimate` prints, and its verdict."""

import re

import pytest
from pipelines import gpt2_small

from relm.forecast.estimate import describe_estimate
from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.memory_verdict import judge_memory
from relm.forecast.pipeline_memory import pipeline_memory
from relm.forecast.pipeline_table import NOT_COUNTED, judge_pipeline, name_segments, pipeline_lines
from relm.recipes.project import Project
from small_project import CHECKOUT

MEMORY = int(0.838 * 2**30)
COMPILER = """\
               only Graphcore's compiler decides: relm rehearse NAME --compile-only"""
GPT2_SMALL = f"""\
  pipeline     4 replicas of 4 IPUs, 5 forward stages
  update       512 micro-batches (at least 9) of 1 sequence on each replica; 8 updates a call of the device
  off chip     747 MB of the optimizer's state, a share for each replica, in the host's DRAM
  bubble       0.78 % of an update, while the pipeline fills and empties: (S - 1) / (GA + S - 1) = 4 / 516
  precision    weights float16, gradients float16
  memory       fits by arithmetic: IPU 0 needs most, 413 MB of 900 MB; {NOT_COUNTED}
{COMPILER}
  IPU  parameters  weights  gradients  optimizer  activations  logits   total  off chip  segments
    0  38,608,896  77.2 MB    77.2 MB          -      1.57 MB  257 MB  413 MB   57.9 MB  token embedding, head
    1  29,137,920  58.3 MB    58.3 MB          -       123 MB       -  239 MB   43.7 MB  position embedding, layers 0-3
    2  28,351,488  56.7 MB    56.7 MB          -      99.1 MB       -  213 MB   42.5 MB  layers 4-7
    3  28,353,024  56.7 MB    56.7 MB          -      86.5 MB       -  200 MB   42.5 MB  layers 8-11
"""
BERT_TINY = f"""\
  pipeline     1 replica of 1 IPU, 1 forward stage
  update       12 micro-batches (at least 1) of 1 sequence on each replica; 1 update a call of the device
  off chip     35.1 MB of the optimizer's state, in the host's DRAM
  bubble       0 % of an update, while the pipeline fills and empties: (S - 1) / (GA + S - 1) = 0 / 12
  precision    weights float16, gradients float16
  memory       fits by arithmetic: IPU 0 needs most, 25.7 MB of 900 MB; {NOT_COUNTED}
{COMPILER}
  IPU  parameters  weights  gradients  optimizer  activations   logits    total  off chip  segments
    0   4,390,018  8.78 MB    8.78 MB       16 B       821 kB  7.33 MB  25.7 MB   35.1 MB  token embedding, \
position embedding, layers 0-1, head
"""


@pytest.mark.parametrize(
    ("name", "expected"), [("gpt2_small_pod16", GPT2_SMALL), ("bert_tiny_ipu", BERT_TINY)], ids=["gpt2", "bert"]
)
def test_an_estimate_has_a_row_for_each_ipu(name: str, expected: str) -> None:
    lines = describe_estimate(Project(CHECKOUT).plan(name), None)
    assert expected in lines
    assert "activations of" not in lines  # the memory of a device that computes the whole model


def test_a_twins_estimate_has_the_memory_of_the_simulator_and_no_verdict_on_ipus() -> None:
    lines = describe_estimate(Project(CHECKOUT).plan("smoke/gpt2_small_pod16"), None)
    assert "available, and activations of 1 sequence at once" in lines
    assert re.search(r"^  memory +IPU 0 needs [\d.]+ MB by arithmetic; its memory is unknown; ", lines, re.M)


def test_each_phase_has_its_own_micro_batches() -> None:
    lines = describe_estimate(Project(CHECKOUT).plan("bert_large_pod64"), None)
    assert re.findall(r"^  update +(.*) on each replica", lines, re.M) == [
        "520 micro-batches (at least 9) of 8 sequences",
        "520 micro-batches (at least 9) of 2 sequences",
    ]


def test_hours_are_those_of_the_pipelines_precision_and_of_layers_computed_twice() -> None:
    """2.51e18 operations at 20 % of 16 x 250 TFLOP/s."""
    project = Project(CHECKOUT)
    lines = describe_estimate(project.plan("gpt2_small_pod16"), None, machines=project.machines())
    assert re.search(r"^  pod16 +16 +250 +0\.87 ", lines, re.M)
    assert "repeated for activations that are not kept; 2.51e+18 in all" in lines
    assert not re.search(r"^  (ipu|pod64) ", lines, re.M)  # the pipeline is for pod16
    assert "IPUs multiply in float16 where a recipe says bfloat16" in lines


def test_the_list_of_runs_says_that_they_fit_by_the_same_arithmetic() -> None:
    plan = Project(CHECKOUT).plan("gpt2_small_pod16")
    verdict = judge_memory(plan, "main", vocabulary(plan)[0])
    assert (verdict.fits, verdict.size) == (True, 1)
    assert verdict.reason == "fits by arithmetic: IPU 0 needs most, 413 MB of 900 MB"


def test_processes_are_counted_where_there_are_several() -> None:
    case = gpt2_small(instances=2)
    assert next(pipeline_lines(case.pipeline, pipeline_memory(*case), MEMORY)).endswith(
        "4 replicas of 4 IPUs in 2 processes, 5 forward stages"
    )


def test_a_pipeline_that_does_not_fit_names_the_ipu_and_what_is_missing() -> None:
    fits, reason, _ = judge_pipeline(pipeline_memory(*gpt2_small()), 200_000_000)
    assert (fits, reason) == (False, "exceeds IPU 0 by 213 MB: 413 MB of 200 MB by arithmetic")


def test_an_ipu_of_unknown_memory_has_no_verdict() -> None:
    fits, reason, _ = judge_pipeline(pipeline_memory(*gpt2_small()), None)
    assert (fits, reason) == (None, "IPU 0 needs 413 MB by arithmetic; its memory is unknown")


def test_what_is_on_chip_is_said_to_be_there() -> None:
    case = gpt2_small(optimizer_state_off_chip=False)
    lines = list(pipeline_lines(case.pipeline, pipeline_memory(*case), MEMORY))
    assert "  off chip     nothing: the optimizer's state is in the IPUs' memory" in lines
    assert lines[8].split()[6:8] == ["57.9", "MB"]


def test_every_replica_has_all_of_the_state_where_it_is_not_shared() -> None:
    case = gpt2_small(replicated_tensor_sharding=False)
    lines = list(pipeline_lines(case.pipeline, pipeline_memory(*case), MEMORY))
    assert "  off chip     2.99 GB of the optimizer's state, all of it for each replica, in the host's DRAM" in lines


@pytest.mark.parametrize(
    ("segments", "names"),
    [
        (["head"], ["head"]),
        (["layers.7"], ["layer 7"]),
        (["token_embedding", "layers.0", "layers.1", "head"], ["token embedding", "layers 0-1", "head"]),
        ([], []),
    ],
)
def test_consecutive_layers_have_one_name(segments: list[str], names: list[str]) -> None:
    assert name_segments(segments) == names
