"""Machines: their files, runs on them by name, and refusals of impossible ones."""

import re
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.recipes.machine.accelerators import GPUS, IPUS, TPUS
from relm.recipes.machine.machines import Machine, describe_deviation, divides, load_machine
from relm.recipes.phase import Phase
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from small_project import CHECKOUT, shipped_project
from twin_keys import changed_keys

PROJECT = Project(CHECKOUT)
SHIPPED = [
    "a100", "a100-8", "cpu", "h100", "h100-8", "h100-8x2", "ipu", "l4", "pod16", "pod64", "rtx4090",
    "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8",
]  # fmt: skip


def plan(name: str, project: Project = PROJECT) -> Plan:
    return project.plan(name)


def refusal(name: str, project: Project = PROJECT) -> str:
    with pytest.raises(RelmError) as caught:
        plan(name, project)
    return str(caught.value)


def test_the_shipped_machines() -> None:
    assert PROJECT.machine_names() == SHIPPED
    counts = {name: (machine.device_count, machine.host_count) for name in SHIPPED if (machine := PROJECT.machine(name, ""))}
    assert counts["v3-8"] == (8, 1)
    assert counts["v4-8"] == counts["v5p-8"] == (4, 1)
    assert counts["h100-8"] == (8, 1)
    assert counts["h100-8x2"] == (16, 2)
    assert counts["cpu"] == (1, 1)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_peak_is_that_of_the_table_of_accelerators(name: str) -> None:
    machine, table = PROJECT.machine(name, ""), {each.name: each for each in (*GPUS, *TPUS, *IPUS)}
    in_table = {"h100": "H100 SXM", "a100": "A100", "l4": "L4", "ipu": "IPU GC200", "pod16": "IPU GC200", "pod64": "IPU GC200"}
    kind = name.removesuffix("-8")
    accelerator = table.get(in_table.get(kind, f"TPU {kind}"))
    if accelerator is None:
        assert machine.device in ("cpu", "cuda")
        return
    devices_of_a_chip = 2 if name == "v3-8" else 1
    assert machine.peak is not None
    for precision in ("float32", "bfloat16", "float16"):
        published = getattr(accelerator, precision)
        expected = None if published is None else published / devices_of_a_chip
        assert getattr(machine.peak, precision) == expected, precision


def test_a_run_on_another_machine_has_the_same_fingerprint_and_its_own_folders() -> None:
    here, there = plan("roberta_base_v3-8"), plan("roberta_base_v3-8@h100")
    assert there.fingerprint == here.fingerprint
    assert there.results == Path("results/roberta_base_v3-8@h100")
    assert there.run_folder == here.run_folder.parents[1] / "roberta_base_v3-8@h100" / here.fingerprint
    assert (there.recipe.run.machine, there.recipe.run.device, there.recipe.run.topology) == ("h100", "cuda", None)
    changed = set(changed_keys(here.recipe.model_dump(), there.recipe.model_dump()))
    assert changed == {"run.machine", "run.device", "run.topology", "deviations"}


def test_eight_gpus_are_eight_processes_and_a_tpu_is_one() -> None:
    assert plan("quickstart@h100-8").recipe.run.processes == 8
    assert plan("quickstart@h100-8x2").recipe.run.processes == 16
    assert plan("quickstart@v5e-8").recipe.run.processes == 1
    assert plan("quickstart@v5e-8").recipe.run.devices_of_process == 8


def test_the_recipes_own_machine_is_the_same_run_under_another_results_folder() -> None:
    for name, machine in {"roberta_base_v3-8": "v3-8", "quickstart": "cpu", "smoke/quickstart": "cpu"}.items():
        here, there = plan(name), plan(f"{name}@{machine}")
        assert there.run_folder == here.run_folder
        assert there.results == Path(f"results/{name}@{machine}")
        assert there.recipe.run.model_dump(exclude={"machine"}) == here.recipe.run.model_dump(exclude={"machine"})
        assert there.recipe.deviations == here.recipe.deviations


def test_a_smoke_twin_is_placed_on_a_machine_as_well() -> None:
    here, there = plan("smoke/roberta_base_v3-8"), plan("smoke/roberta_base_v3-8@h100")
    assert there.fingerprint == here.fingerprint
    assert (here.recipe.run.device, there.recipe.run.device) == ("cpu", "cuda")
    assert there.run_folder.parent == here.run_folder.parents[1] / "roberta_base_v3-8@h100"


def test_keys_for_the_own_machine_do_not_follow_to_another_one(copied: Path) -> None:
    recipe = copied / "recipes" / "quickstart.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("  machine: cpu\n", "  machine: cpu\n  micro_batch_size: 2\n  log_interval: 7\n"))
    with recipe.open("a") as file:
        file.write("on:\n  h100: {micro_batch_size: 4, checkpoint_interval: 3}\n")
    project = Project(copied)
    run = {name: plan(name, project).recipe.run for name in ("quickstart", "quickstart@h100", "quickstart@a100")}
    assert [each.micro_batch_size for each in run.values()] == [2, 4, None]
    assert [each.log_interval for each in run.values()] == [7, 7, 7]
    assert run["quickstart@h100"].checkpoint_interval == 3
    assert len({plan(name, project).fingerprint for name in run}) == 1
    assert plan("quickstart").fingerprint == plan("quickstart", project).fingerprint


def test_keys_for_the_cpu_hold_where_a_recipe_names_no_machine(copied: Path) -> None:
    (copied / "recipes" / "mine.yaml").write_text(
        "extends: quickstart\nrun: {machine: null}\non:\n  cpu: {micro_batch_size: 1}\n"
    )
    for name in ("mine", "mine@cpu"):
        placed = plan(name, Project(copied))
        assert (placed.recipe.run.micro_batch_size, placed.recipe.run.machine) == (1, "cpu")
        assert (placed.own_machine, placed.run_name) == (True, "mine")
    assert plan("mine", Project(copied)).fingerprint == plan("quickstart").fingerprint


def test_a_twin_has_no_keys_for_machines(copied: Path) -> None:
    with (copied / "recipes" / "quickstart.yaml").open("a") as file:
        file.write("on: {h100: {micro_batch_size: 3}}\n")
    assert plan("smoke/quickstart@h100", Project(copied)).recipe.run.micro_batch_size is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("roberta_base_v3-8@h10", "results/roberta_base_v3-8@h10: there is no machine 'h10'; did you mean h100?"),
        ("roberta_base_v3-8@", "there is no machine ''; there are a100, a100-8, cpu"),
        ("roberta_base_v3-8@../h100", "there is no machine '../h100'"),
        ("roberta_base_v3-8@h100@l4", "there is no machine 'h100@l4'"),
        ("smoke/quickstart@zzzz", "results/smoke/quickstart@zzzz: there is no machine 'zzzz'"),
        ("roberta_bas_v3-8@h100", "did you mean results/roberta_base_v3-8@h100?"),
    ],
)
def test_an_unknown_machine_is_refused_with_the_nearest_one(name: str, words: str) -> None:
    assert words in refusal(name)


@pytest.mark.parametrize(
    ("addition", "words"),
    [
        ("on: {h1000: {micro_batch_size: 8}}\n", "quickstart.yaml: on.h1000: there is no machine 'h1000'; did you mean h100?"),
        ("on: {h100: {micro_batch: 8}}\n", "on.h100.micro_batch: unknown key; did you mean micro_batch_size?"),
        ("on: {h100: {device: cpu}}\n", "on.h100.device: unknown key"),
        ("on: {h100: 8}\n", "on.h100: expected a mapping of keys to values; found 8"),
        ("on: {h100: }\n", "on.h100: expected a mapping of keys to values; found None"),
        ("on: {h100: {micro_batch_size: 7}}\n", "on.h100.micro_batch_size (7) must divide"),
    ],
)
def test_keys_for_machines_are_checked(copied: Path, addition: str, words: str) -> None:
    with (copied / "recipes" / "quickstart.yaml").open("a") as file:
        file.write(addition)
    assert words in refusal("quickstart@h100", Project(copied))


def test_a_micro_batch_is_shared_by_all_devices_of_a_slice(copied: Path) -> None:
    with (copied / "recipes" / "quickstart.yaml").open("a") as file:
        file.write("on: {v5e-8: {micro_batch_size: 4}}\n")
    message = refusal("quickstart@v5e-8", Project(copied))
    assert "micro_batch_size (4) must be a multiple of the 8 devices of v5e-8" in message


def test_a_machine_that_is_named_must_exist_and_excludes_its_hardware(copied: Path) -> None:
    recipe = copied / "recipes" / "quickstart.yaml"
    text = recipe.read_text()
    recipe.write_text(text.replace("  machine: cpu\n", "  machine: cpuu\n"))
    assert "run.machine: there is no machine 'cpuu'; did you mean cpu?" in refusal("quickstart", Project(copied))
    recipe.write_text(text.replace("  machine: cpu\n", "  machine: cpu\n  device: cuda\n"))
    assert "run.device: follows from run.machine (cpu); leave it out, or set run.machine: null" in refusal(
        "quickstart", Project(copied)
    )


GPU = "title: A GPU\ndevice: cuda\nmemory_gib: 80\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title: A TPU\ndevice: tpu\n", "topology: missing; device: tpu needs one of v2-8, v3-8"),
        ("title: A TPU\ndevice: tpu\ntopology: v3-9\n", "expected one of v2-8"),
        ("title: A TPU\ndevice: tpu\ntopology: v3-8\naccelerators: 8\n", "accelerators: follows from topology (v3-8)"),
        (GPU + "topology: v3-8\n", "with device: cuda expected none, because the device has no slices; found v3-8"),
        (GPU + "accelerators: 0\n", "accelerators: expected greater than 0; found 0"),
        (GPU + "accelerators: 8\nhosts: 3\n", "hosts (3) must divide accelerators (8)"),
        (GPU + "accelerators: 8\nhosts: 0\n", "hosts: expected greater than 0; found 0"),
        (GPU + "accelerators: 8\nhosts: two\n", "hosts: expected a number"),
        (GPU.replace("80", "-1"), "memory_gib: expected greater than 0; found -1"),
        (GPU.replace("80", ".nan"), "not a finite number"),
        (GPU.replace("80", "yes"), "memory_gib: expected a number"),
        (GPU + "peak: {bfloat16: 100.0}\n", "peak.source: missing"),
        (GPU + "price: {usd_per_hour: 2.0, source: 'https://example.org'}\n", "price.date: missing"),
        (GPU + "price: {usd_per_hour: 2.0, date: 2026-13-01, source: 'https://example.org'}\n", "is not a date"),
        (GPU + "price: {usd_per_hour: 2.0, date: soon, source: 'https://example.org'}\n", "price.date: expected a day such as"),
        (GPU + "price: 2.0\n", "price: expected a mapping of keys to values; found 2.0"),
        (GPU.replace("cuda", "cudda"), "cudda"),
        (GPU + "memory: 80\n", "memory: unknown key; did you mean memory_gib?"),
        ("title: A CPU\ndevice: cpu\naccelerators: 2\n", "a machine with device: cpu has none; leave it out"),
    ],
)
def test_impossible_machines_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(text)
    with pytest.raises(RelmError, match=re.escape(words)) as caught:
        load_machine(path)
    assert str(path) in str(caught.value)


def test_the_precision_of_float32_products_is_the_recipes_unless_it_has_one_for_the_machine(copied: Path) -> None:
    names = ["quickstart@a100", "quickstart@h100", "quickstart"]
    recipe = copied / "recipes" / "quickstart.yaml"

    def precisions() -> list[str | None]:
        return [plan(name, Project(copied)).recipe.run.float32_matmul_precision for name in names]

    assert precisions() == [None, None, None]
    recipe.write_text(recipe.read_text().replace("  machine: cpu\n", "  machine: cpu\n  float32_matmul_precision: highest\n"))
    assert precisions() == ["highest", "highest", "highest"]
    with recipe.open("a") as file:
        file.write("on:\n  a100: {float32_matmul_precision: default}\n  h100: {float32_matmul_precision: null}\n")
    assert precisions() == ["default", None, "highest"]
    assert len({plan(name, Project(copied)).fingerprint for name in names}) == 1


def test_a_machine_may_be_one_core_of_a_host(copied: Path) -> None:
    (copied / "recipes" / "machines" / "core.yaml").write_text("title: One core\ndevice: tpu\ntopology: v3-1\n")
    found = plan("roberta_base_v3-8@core", Project(copied))
    assert (found.recipe.run.devices_of_process, found.recipe.run.one_of_host) == (1, True)
    assert (found.machine.device_count, found.machine.host_count) == (1, 1)


def test_snakemake_plans_a_run_on_another_machine_next_to_the_first(tmp_path: Path) -> None:
    project = shipped_project(tmp_path)
    name = "results/roberta_base_v3-8"
    here, both = project.jobs(name), project.jobs(name, f"{name}@h100")
    more = {rule for rule, count in both.items() if count != here[rule]}
    assert more - {"total"} == {"pretrain", "evaluate", "verify", "report", "publish"}
    same = project.jobs("results/quickstart", "results/quickstart@cpu")
    assert same["pretrain"] == 1
    assert same["publish"] == 2


def test_snakemake_refuses_an_unknown_machine_in_one_sentence(tmp_path: Path) -> None:
    done = shipped_project(tmp_path).snakemake("results/quickstart@h10", "-n")
    assert done.returncode == 1
    assert "there is no machine 'h10'; did you mean h100?" in done.stdout


EIGHT = Machine(title="eight", device="cuda", accelerators=8)
SLICE = Machine(title="slice", device="tpu", topology="v3-8")


def phase(size: int, shares: int = 1) -> Phase:
    normalisation = "global_tokens" if shares == 1 else "per_replica"
    settings = {"sequence_length": 8, "steps": 1, "optimizer": {"learning_rate": 0.1}, "loss_normalisation": normalisation}
    return Phase.model_validate({"objective": "causal", "global_batch_size": size, "loss_shares": shares, **settings})


def test_processes_divide_the_batch_and_the_devices_of_one_divide_each_share_too() -> None:
    assert divides(EIGHT, phase(8))
    assert not divides(EIGHT, phase(12))
    assert divides(SLICE, phase(16, shares=2))
    assert not divides(SLICE, phase(24, shares=2))
    assert divides(EIGHT, phase(24, shares=2))


def test_a_batch_that_cannot_be_divided_names_the_machines_that_can() -> None:
    with pytest.raises(RelmError) as caught:
        PROJECT.plan("shakespeare_char@v3-8")
    words = str(caught.value)
    assert "recipes/shakespeare_char.yaml: pretrain.main.global_batch_size: 12 sequences cannot be divided evenly" in words
    assert "among the 8 devices of v3-8. Choose a machine that can divide them: a100, cpu, h100, l4, rtx4090, " in words
    assert "v4-8" in words.split(": ")[-1]
    assert "v5e-8" not in words


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quickstart@h100", "own machine is cpu: matrix products of float32 are multiplied in float32, without TF32."),
        ("roberta_base_v3-8@v4-8", "own machine is v3-8: matrix products of float32 are multiplied in bfloat16 and added in"),
        ("roberta_base_v3-8@cpu", "own machine is v3-8: matrix products of float32 are multiplied in float32."),
        ("shakespeare_char_gpu@l4", "own machine is a100: matrix products are computed in bfloat16, as the recipe's precision"),
    ],
)
def test_a_run_elsewhere_has_a_deviation_more(name: str, words: str) -> None:
    own, other = PROJECT.plan(name.partition("@")[0]).recipe, PROJECT.plan(name).recipe
    assert other.deviations[:-1] == own.deviations
    assert words in other.deviations[-1]


def test_the_deviation_names_the_precision_that_the_recipe_states() -> None:
    placed, machine = PROJECT.plan("roberta_base_v3-8@v4-8").recipe, PROJECT.machine("v4-8", "")
    run = placed.run.model_copy(update={"float32_matmul_precision": "highest"})
    words = describe_deviation(placed.model_copy(update={"run": run}), "v3-8", "v4-8", machine)
    assert "multiplied in six passes of bfloat16 and added in float32." in words
