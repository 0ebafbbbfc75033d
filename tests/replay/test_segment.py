"""A segment of a published run, trained again: the same bits, within the band, or not reproduced; the run is unchanged."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.artifact import SEAL, read_json, seal, sha256_of, write_json
from relm.cli import main
from relm.errors import RelmError
from relm.plan.published_files import format_checksums, read_checksums
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.run_folder import RECORDS, WEIGHTS
from relm.replay.attested_run import find_run, read_lines
from relm.replay.segment import NotReproduced, recipe_as_attested, reproduce, scratch_folder, train_again
from relm.reporting.publish import publish
from relm.training import input as training_input
from relm.training import loop, phase_run, updates
from relm.training.attested_hashes import line_facts
from relm.training.interruption import Preempted
from small_project import Commands

TINY = Path("results/tiny")
# The run of the fixture `plain`, whose model has no dropout and which keeps all its checkpoints.
PLAIN = Path("results/plain")


def replay(folder: Path = TINY, segment: int | None = 3, phase: str | None = None, **wanted: Any) -> str:
    return reproduce(Project(), folder, phase, segment, None, wanted)


def edited(path: Path, change: Callable[[str], str]) -> None:
    """Change a published file."""
    text = change(path.read_text())
    assert text != path.read_text()
    path.write_text(text)


def edited_state(path: Path, change: Callable[[str], str]) -> None:
    """Change a checkpoint's `state.json` and, where it is still an object, its own hash, so that the values decide."""
    edited(path, change)
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        path.write_text(json.dumps(seal(json.loads(path.read_text()))))


def forged(path: Path, change: Callable[[str], str]) -> None:
    """Change a published file and every recorded hash of it, so that only the new training contradicts it."""
    edited(path, change)
    record_current_hashes(path.parent)


def record_current_hashes(folder: Path) -> None:
    """Have `checkpoints.jsonl`, `provenance.json`, the crate and `SHA256SUMS` record the content of a published folder."""
    log, checkpoints, after = read_lines(folder / "train.jsonl"), read_lines(folder / "checkpoints.jsonl"), 0
    for line in checkpoints:
        line["log"] = line_facts(found for found in log if after < found["step"] <= line["step"])
        after = line["step"]
    (folder / "checkpoints.jsonl").write_text("".join(json.dumps(line) + "\n" for line in checkpoints))
    crate = read_json(folder / "ro-crate-metadata.json")
    files = [entity for entity in crate["@graph"] if entity["@type"] == "File"]
    if (folder / "provenance.json").exists():
        text = (folder / "provenance.json").read_text()
        for entity in files:
            text = text.replace(entity["sha256"], sha256_of(folder / entity["name"]))
        (folder / "provenance.json").write_text(text)
    for entity in files:
        entity["sha256"] = sha256_of(folder / entity["name"])
    (folder / "ro-crate-metadata.json").write_text(json.dumps(crate))
    record_current_sums(folder)


def record_current_sums(folder: Path) -> None:
    """Have `SHA256SUMS` record the content of a published folder."""
    names = read_checksums(folder) or {}
    (folder / "SHA256SUMS").write_text(format_checksums({name: sha256_of(folder / name) for name in names}))


def flipped(path: Path) -> None:
    """Change only the last byte of a published file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)


@pytest.fixture
def tiny(finished_copy: Commands, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Return the plan of a published run with dropout: 40 steps, a checkpoint every 10, the last two kept."""
    monkeypatch.chdir(finished_copy.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    return Project().plan("tiny")


def trained(name: str, keys: str) -> Plan:
    """Train a recipe that extends `tiny` in this process, and publish the files of its training."""
    Path(f"recipes/{name}.yaml").write_text(f"extends: tiny\ntitle: Another one\n{keys}\n")
    plan = Project().plan(name)
    model = plan.model_folder("main")
    loop.pretrain(plan.recipe, "main", plan.manifest("main"), plan.tokenizer, None, model, plan.fingerprint)
    described = plan.report_folder / "recipe.json"
    write_json(described, {"name": name, "fingerprint": plan.fingerprint, "recipe": plan.recipe.model_dump(mode="json")})
    records = {record: model.parent / record for record in RECORDS}
    crate, files = (
        described.with_name("ro-crate-metadata.json"),
        {**records, "recipe.json": described, "model.safetensors": model / WEIGHTS},
    )
    hashes = [{"@type": "File", "name": file, "sha256": sha256_of(path)} for file, path in files.items()]
    write_json(crate, {"@graph": hashes})
    publish({**files, crate.name: crate}, plan.results)
    return plan


@pytest.fixture
def plain(tiny: Plan) -> Plan:
    return trained("plain", "model: {dropout: 0.0}\nrun: {keep_checkpoints: 9}")


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_a_segment_of_a_published_run_comes_out_the_same_and_touches_nothing(finished_project: Commands) -> None:
    before = everything(finished_project.folder / "work")
    done = finished_project.relm("reproduce", "results/tiny", "--segment", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("identical: segment 3 of tiny, phase main, steps 31 to 40: model.safetensors, optimizer")
    assert (
        "results/tiny/model.safetensors after step 40 have the attested sha256; 2 lines of train.jsonl are the same"
        in done.stdout
    )
    assert "order.json holds; 10 of 40 steps (25.00%) in " in done.stdout
    after = everything(finished_project.folder / "work")
    work = str(finished_project.folder / "work")
    assert {path: what for path, what in after.items() if path != work} == {p: what for p, what in before.items() if p != work}


def test_a_segment_that_differs_exits_with_1_and_one_message(tiny: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    forged(TINY / "train.jsonl", lambda text: text.replace('"step": 35, "epoch": ', '"step": 35, "epoch": 1'))
    assert main(["reproduce", "results/tiny", "--segment", "3"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith(
        "relm reproduce: NOT reproduced: segment 3 of tiny, phase main, steps 31 to 40"
    )
    assert "train.jsonl: step 35: epoch is " in captured.err


def test_the_first_segment_needs_no_checkpoint(tiny: Plan) -> None:
    shutil.rmtree(tiny.run_folder / "main" / "checkpoints")
    assert replay(segment=0).startswith("identical: segment 0 of tiny, phase main, steps 1 to 10: model.safetensors")


@pytest.mark.parametrize("inside", ["", "main"])
def test_a_run_folder_does_as_well(tiny: Plan, inside: str) -> None:
    assert replay(tiny.run_folder / inside).startswith("identical: segment 3 of tiny")


def test_a_published_folder_may_lie_anywhere_and_the_checkpoints_too(tiny: Plan, tmp_path: Path) -> None:
    TINY.rename(tmp_path / "downloaded")
    (tiny.run_folder / "main" / "checkpoints").rename(tmp_path / "kept")
    with pytest.raises(
        RelmError, match=r"segment 3 begins with this checkpoint, which no longer exists. .*segments 0, or pass --ch"
    ):
        replay(tmp_path / "downloaded")
    sentence = reproduce(Project(), tmp_path / "downloaded", None, 3, tmp_path / "kept", {})
    assert sentence.startswith("identical: segment 3 of tiny")


def test_the_segments_are_listed(tiny: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", str(TINY), "--list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:6]]
    assert [row[:4] for row in rows] == [
        ["0", "1", "to", "10"],
        ["1", "11", "to", "20"],
        ["2", "21", "to", "30"],
        ["3", "31", "to", "40"],
    ]
    assert [" ".join(row[4:]) for row in rows] == ["can be replayed", *["its first checkpoint is gone"] * 2, "can be replayed"]


def test_without_a_number_the_shortest_segment_that_can_be_replayed_is(tiny: Plan, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert replay(segment=None).startswith("identical: segment 3 of tiny")
    assert "training segment 3, steps 31 to 40, again; it took " in caplog.text
    shutil.rmtree(tiny.run_folder / "main" / "checkpoints")
    assert find_run(Project(), TINY, None).cheapest_segment() == 0


# --- not reproduced ----------------------------------------------------------------------------------------------------------


def other_seed(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw everything for one purpose from another seed."""
    drawn = phase_run.derived_seed
    monkeypatch.setattr(phase_run, "derived_seed", lambda *words: drawn(*words, *(["other"] if word in words else [])))


@pytest.mark.parametrize("wanted", [{}, {"threads": 2}], ids=["as trained", "elsewhere"])
def test_other_random_numbers_for_dropout_are_not_reproduced(tiny: Plan, wanted: dict[str, Any], monkeypatch) -> None:
    other_seed("dropout", monkeypatch)
    with pytest.raises(
        NotReproduced, match=r"the update of transformer.* is farthest from the attested one, by \d\.\de[-+]0[01] of its"
    ):
        replay(**wanted)


def one_other_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the batch of step 13 in step 12."""
    read = training_input.Reader.batch
    monkeypatch.setattr(training_input.Reader, "batch", lambda self, step: read(self, 13 if step == 12 else step))


def a_learning_rate_off_by_one_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = updates.learning_rate_of
    monkeypatch.setattr(updates, "learning_rate_of", lambda *arguments: 1.01 * rate(*arguments))


@pytest.mark.parametrize("fault", [one_other_batch, a_learning_rate_off_by_one_percent])
@pytest.mark.parametrize("wanted", [{}, {"micro_batch_size": 4}], ids=["as trained", "elsewhere"])
def test_a_fault_in_training_is_not_reproduced(
    plain: Plan, fault: Callable[[pytest.MonkeyPatch], None], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(NotReproduced, match=r"NOT reproduced: segment 1 of plain"):
        replay(PLAIN, 1, **wanted)


# --- within the band ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [{"micro_batch_size": 4}, {"micro_batch_size": 1}, {"threads": 2}])
@pytest.mark.parametrize("segment", [0, 1])
def test_what_only_rounds_otherwise_is_within_the_band(plain: Plan, wanted: dict[str, Any], segment: int) -> None:
    sentence = replay(PLAIN, segment, **wanted)
    (key,) = wanted
    assert sentence.startswith(f"within the band: segment {segment} of plain")
    assert f"not the same bits, because {key} was " in sentence
    assert "is farthest from the attested one, by " in sentence


def test_without_the_checkpoint_after_it_the_losses_are_compared(plain: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(plain.run_folder / "main" / "checkpoints" / "step-00000020")
    assert "step-00000020 no longer exists, so only the losses are compared; the 2 losses" in replay(
        PLAIN, 1, micro_batch_size=4
    )
    one_other_batch(monkeypatch)
    with pytest.raises(NotReproduced, match=r"the 2 losses of train.jsonl are"):
        replay(PLAIN, 1, micro_batch_size=4)


def test_where_dropout_is_drawn_otherwise_only_the_losses_are_compared(tiny: Plan) -> None:
    sentence = replay(micro_batch_size=4)
    assert (
        "micro_batch_size was 2, is 4; dropout was drawn differently, so only the losses are compared: the 2 losses" in sentence
    )


# --- other files than were recorded ------------------------------------------------------------------------------------------


PUBLISHED = [
    *("README.md", "report.html", "recipe.json", "provenance.json", "verify.json", "eval/held_out.json", "eval/samples.json"),
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "order.json", "model.safetensors"),
    *("model.safetensors.json", "train.jsonl", "checkpoints.jsonl"),
]


def without(step: int) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if f'"step": {step},' not in line)


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


def bring_weights_in_line(plan: Plan) -> None:
    """Change the weights, and their hash in the crate and in the list."""
    flipped(TINY / "model.safetensors")
    crate = read_json(TINY / "ro-crate-metadata.json")
    for entity in crate["@graph"]:
        if entity.get("name") == "model.safetensors":
            entity["sha256"] = sha256_of(TINY / "model.safetensors")
    (TINY / "ro-crate-metadata.json").write_text(json.dumps(crate))
    record_current_sums(TINY)


def replace_weights(plan: Plan) -> None:
    flipped(TINY / "model.safetensors")
    record_current_hashes(TINY)


def forge_hash(plan: Plan) -> None:
    attested = json.loads((TINY / "checkpoints.jsonl").read_text().splitlines()[-1])["sha256"]["optimizer.safetensors"]
    forged(TINY / "checkpoints.jsonl", swap(attested, "0" * 64))


def change_shard(plan: Plan) -> None:
    shard = plan.examples("main", "sample.xml", "train")
    tokens = np.fromfile(shard, dtype="<u2")
    tokens[7] ^= 1
    tokens.tofile(shard)


def put_pipe(plan: Plan) -> None:
    os.remove(TINY / "checkpoints.jsonl")
    os.mkfifo(TINY / "checkpoints.jsonl")


def published(name: str, change: Callable[[str], str]) -> Callable[[Plan], None]:
    return lambda plan: edited(TINY / name, change)


def forge(name: str, change: Callable[[str], str]) -> Callable[[Plan], None]:
    return lambda plan: forged(TINY / name, change)


def absent(name: str) -> Callable[[Plan], None]:
    return lambda plan: os.remove(TINY / name)


STRANGE = '{"step": 10, "sha256": {"../../../x": "0"}, "made_on": {"device": "cpu", "micro_batch_size": 2}}\n'
NO_HASHES = STRANGE.replace('"../../../x": "0"', '"model.safetensors": "0", "optimizer.safetensors": "0"')
OUTSIDE = '{"@graph": [{"@type": "File", "name": "../../recipes/tiny.yaml", "sha256": "0"}]}'
NO_CRATE = r"ro-crate-metadata.json: damaged: (not what|lists '../../recipes/tiny.yaml', which is outside)"
# Damage -> what does it, and the refusal of whichever segment.
DAMAGES: dict[str, tuple[Callable[[Plan], object], str]] = {
    **{
        f"another {name}": (
            published(name, swap("\n", " \n")),
            rf"tiny/{name}: damaged: sha256 is \w+, published was \w+; made",
        )
        for name in PUBLISHED
        if not name.startswith("model.")
    },
    "other weights": (lambda plan: flipped(TINY / "model.safetensors"), "tiny/model.safetensors: damaged: sha256 is"),
    "weights and their hashes in line": (
        bring_weights_in_line,
        "model.safetensors: ro-crate-metadata.json and provenance.json record different",
    ),
    **{
        f"no {name}": (absent(name), f"results/tiny/{name}: (missing: was published|no such file)")
        for name in ("config.json", "train.jsonl", "eval/held_out.json", "ro-crate-metadata.json")
    },
    **{
        f"crate {text[:20]}": (published("ro-crate-metadata.json", lambda _, t=text: t), NO_CRATE)
        for text in ("[]", "{}", OUTSIDE)
    },
    "log that is no text": (
        lambda plan: (TINY / "train.jsonl").write_bytes(b"\xff\n"),
        "train.jsonl, line 1: expected an object, found",
    ),
    "no last checkpoint": (
        forge("checkpoints.jsonl", without(40)),
        "checkpoints.jsonl: ends with step 30, but the finished phase has 40",
    ),
    "another manifest": (
        lambda plan: edited(plan.manifest("main"), swap("\n", " \n")),
        "manifest.json: sha256 is .*: the run read another file",
    ),
    "another order": (
        forge("order.json", swap('"order_seed": ', '"order_seed": 1')),
        r"order.json: this run would not read the attested examples:\n  order_seed: ",
    ),
    "recipe.json of something else": (
        published("recipe.json", lambda _: '{"title": "another program\'s"}'),
        "recipe.json: name is missing; it differs from what",
    ),
    "recipe that means something else": (
        lambda plan: edited(Path("recipes/tiny.yaml"), swap("1e-3", "2e-3")),
        r"fingerprint \w+, but recipes/tiny.yaml has .*; check out the commit",
    ),
    "no manifest": (lambda plan: os.remove(plan.manifest("main")), r"no such file.*; `snakemake \S+manifest.json` makes it"),
    **{
        f"checkpoints {text[:40]!r}": (published("checkpoints.jsonl", lambda _, t=text: t), "checkpoints.jsonl")
        for text in ("", "{}\n", '{"step": 10}\n', "no JSON\n", STRANGE, NO_HASHES.replace("device", "d"))
    },
    "no checkpoints": (absent("checkpoints.jsonl"), "checkpoints.jsonl: no such file: without it the training is not attested"),
    "pipe": (put_pipe, "checkpoints.jsonl: is a named pipe"),
}
# Of the run's last segment alone.
DAMAGED_ENDS: dict[str, tuple[Callable[[Plan], object], str]] = {
    "another hash": (forge_hash, "NOT reproduced: .*: optimizer.safetensors after step 40 differ from the attested sha256; t"),
    "another loss": (
        forge("train.jsonl", lambda text: text.replace('"loss": ', '"loss": 1')),
        r"train.jsonl: step 35: loss is \d\.\d+, attested 1\d\.\d+",
    ),
    "other weights than the last checkpoint": (
        replace_weights,
        "results/tiny/model.safetensors after step 40 differ from the attested sha256",
    ),
    "another order": DAMAGES["another order"],
    "another shard": (change_shard, "sample.xml.train.bin: changed: sha256 is "),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused_whichever_segment_is_replayed(tiny: Plan, damage: Any, message: str) -> None:
    damage(tiny)
    with pytest.raises(RelmError, match=message):
        replay(segment=0)


@pytest.mark.parametrize(("damage", "message"), DAMAGED_ENDS.values(), ids=DAMAGED_ENDS)
def test_a_damaged_end_is_not_reproduced(tiny: Plan, damage: Any, message: str) -> None:
    damage(tiny)
    with pytest.raises(RelmError, match=message):
        replay()


TWO_LINES = "its 2 lines of steps 31 to 40 are not those that were attested"
LATER = "expected an object of a later step"
LOG_CHANGES: dict[str, tuple[Callable[[str], str], str]] = {
    "a line of the segment": (without(5), "has 2 lines of steps 1 to 10, but 3 are those that were attested"),
    "a line of another segment": (without(25), "has 1 lines of steps 21 to 30, but 2 are"),
    "the first line": (without(1), "has no line of step 1, which training always writes"),
    "the last line": (without(40), "has no line of step 40, which training always writes"),
    "a figure of another segment": (swap('"step": 35, "epoch": ', '"step": 35, "epoch": 1'), TWO_LINES),
    "one line more": (lambda text: text + '{"step": 41, "loss": 1.0}\n', "ends with step 41, but the phase has 40"),
    "a line twice": (lambda text: text + text.splitlines(keepends=True)[-1], f"line 10: {LATER}"),
    "half a line": (lambda text: text[:-30], "line 9: expected an object, found"),
    "a line before the first": (lambda text: '{"step": 0, "loss": 1.0}\n' + text, f"line 1: {LATER}"),
    "brackets": (lambda text: text + "[" * 100_000, "line 10: expected an object, found"),
    "half a pair": (swap("}\n", ', "x": "\\ud800"}\n'), "its 3 lines of steps 1 to 10 are not those"),
}


def changed_log(change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(phase: Path) -> None:
        os.remove(phase / "model" / "model.safetensors.record.json")  # which has the hash of the whole file
        edited(phase / "train.jsonl", change)

    return damage


def lengthened(name: str) -> Callable[[Path], None]:
    def damage(phase: Path) -> None:
        content = (phase / name).read_bytes()
        (phase / name).unlink()
        (phase / name).write_bytes(content + b" ")

    return damage


OWN_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    **{
        f"log: {name}": (changed_log(change), f"train.jsonl(: |, ){message}") for name, (change, message) in LOG_CHANGES.items()
    },
    **{
        name: (lengthened(name), rf"main/{name}: (sha256 is|has \d+ bytes)")
        for name in ("model/config.json", "model/tokenizer.json", "model/model.safetensors", "order.json")
    },
    "no sidecar": (lambda phase: os.remove(phase / "model/model.safetensors.json"), "main/model"),
    "a sidecar that names nothing": (
        lambda phase: edited(phase / "model/model.safetensors.json", lambda t: json.dumps({**json.loads(t), "files": {}})),
        "main/model",
    ),
    "one file more": (lambda phase: (phase / "model/special_tokens_map.json").write_text("{}"), "main/model"),
}


@pytest.mark.parametrize(("damage", "message"), OWN_DAMAGES.values(), ids=OWN_DAMAGES)
def test_the_runs_own_folder_is_what_training_attested(tiny: Plan, damage: Any, message: str) -> None:
    damage(tiny.run_folder / "main")
    with pytest.raises(RelmError, match=message):
        replay(tiny.run_folder, 0)


def state(change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda checkpoint: edited_state(checkpoint / "state.json", change)


def letters(name: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).write_bytes((checkpoint / name).read_bytes().replace(b"e", b"f"))


STATES: dict[str, tuple[Callable[[str], str], str]] = {
    "no JSON": (lambda text: text[:-9], "not valid JSON"),
    "no object": (lambda text: f"[{text}]", "expected an object"),
    "another step": (swap('"step": 30', '"step": 10'), "step is 10, but 30 is attested"),
    "another format": (swap('"format": 1', '"format": 2'), "differs from the state that"),
    "no manifest": (swap('"manifest_sha256"', '"manifest"'), "differs from the state that"),
    "another run": (swap('"fingerprint": "', '"fingerprint": "0'), "fingerprint is 0"),
    "another loss": (swap('"loss": ', '"loss": 1'), "differs from the state that"),
    "no time": (swap('"seconds": ', '"x": '), "loss or seconds is missing"),
    "half a pair": (swap("{", '{"x": "\\ud800", '), "differs from the state that"),
    "no hashes": (swap('"sha256": {', '"sha265": {'), "sha256 is missing; restore it"),
}
TENSORS = ("model.safetensors", "optimizer.safetensors")
CHECKPOINTS: dict[str, tuple[int, Callable[[Path], object], str, dict[str, Any]]] = {
    **{f"30: {name}": (30, state(change), f"state.json: {message}", {}) for name, (change, message) in STATES.items()},
    **{
        f"{step}: {name}": (
            step,
            lambda checkpoint, name=name: flipped(checkpoint / name),
            rf"{name}: sha256 is .* attests .*. Restore the checkpoint",
            {"threads": 2},
        )
        for name in TENSORS
        for step in (30, 40)
    },
    **{f"40, the same bits: {name}": (40, letters(name), f"{name}: ", {}) for name in (*TENSORS, "state.json")},
}


@pytest.mark.parametrize(("step", "damage", "message", "wanted"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_checkpoint_is_the_attested_one_or_nothing_is_reproduced(
    tiny: Plan, step: int, damage: Any, message: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if step == 30:
        monkeypatch.setattr(updates, "take_step", lambda *arguments: pytest.fail("it was trained"))
    damage(tiny.run_folder / "main" / "checkpoints" / f"step-{step:08d}")
    with pytest.raises(RelmError, match=f"step-{step:08d}/{message}"):
        replay(**wanted)


def test_every_published_file_has_a_recorded_hash_but_for_the_one_that_records_them(tiny: Plan) -> None:
    found = {path.relative_to(TINY).as_posix() for path in TINY.rglob("*") if path.is_file() and path.name[0] != "."}
    assert found == {*PUBLISHED, "ro-crate-metadata.json", "SHA256SUMS"}


def test_a_file_that_was_not_published_is_named(tiny: Plan) -> None:
    (TINY / "adapter_config.json").write_text("{}")
    (TINY / ".gitattributes").write_text("")
    with pytest.raises(NotReproduced, match=r"adapter_config.json: unexpected: relm did not publish it") as error:
        replay(segment=0)
    assert ".gitattributes" not in str(error.value)


def test_the_verdict_says_what_was_checked(tiny: Plan) -> None:
    report = replay()
    crate = sha256_of(TINY / "ro-crate-metadata.json")
    assert (
        f"Checked before: 16 files of results/tiny have the sha256 that ro-crate-metadata.json (sha256 {crate}) "
        "records; 9 lines of train.jsonl are those that checkpoints.jsonl attests; model.safetensors, "
        "optimizer.safetensors and state.json of step 30 are the attested ones" in report
    )
    assert "not checked" not in report


def test_the_bits_are_compared_though_an_earlier_version_recorded_no_precision_of_float32_products(tiny: Plan) -> None:
    def earlier(line: dict[str, Any]) -> str:
        assert line["made_on"].pop("float32_matmul_precision") == "highest"
        return json.dumps({key: line[key] for key in line if key not in ("state_sha256", "log", SEAL)}) + "\n"

    os.remove(tiny.model_folder("main") / "model.safetensors.record.json")
    for state in (tiny.run_folder / "main" / "checkpoints").glob("*/state.json"):
        edited(state, lambda text: earlier(json.loads(text)))
    edited(
        tiny.run_folder / "main" / "checkpoints.jsonl",
        lambda text: "".join(earlier(json.loads(line)) for line in text.splitlines()),
    )
    assert replay(tiny.run_folder).startswith("identical")


def test_what_an_earlier_version_did_not_attest_is_reported(tiny: Plan) -> None:
    def earlier(text: str) -> str:
        lines = [json.loads(line) for line in text.splitlines()]
        return "".join(json.dumps({key: line[key] for key in ("step", "sha256", "made_on")}) + "\n" for line in lines)

    os.remove(tiny.model_folder("main") / "model.safetensors.record.json")
    edited(tiny.run_folder / "main" / "checkpoints.jsonl", earlier)
    report = replay(tiny.run_folder)
    assert report.startswith("identical")
    assert (
        "not checked, because an earlier version of relm did not attest them: state.json and the lines of train.jsonl at "
        "checkpoints of step 10 to 40" in report
    )
    assert "not checked for lack of a record: the other inputs and outputs of phase main" in report


# --- refused -----------------------------------------------------------------------------------------------------------------


def test_a_segment_is_never_trained_from_step_0_instead(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "take_step", lambda *arguments: pytest.fail("it was trained"))
    run = find_run(Project(), TINY, None)
    segment = run.segment(3)
    with scratch_folder(run, segment) as scratch:
        (scratch / "checkpoints" / "step-00000030" / "state.json").write_text("{}")  # after it was checked
        with pytest.raises(RelmError, match="training would begin after step 0, expected step 30"):
            train_again(run, segment, recipe_as_attested(run, segment, {}), scratch)


def test_how_it_ran_is_taken_from_its_records_whatever_the_recipe_says_now(tiny: Plan) -> None:
    run = "run: {threads: 1, checkpoint_interval: 10, micro_batch_size: 2, log_interval: 5}"
    edited(
        Path("recipes/tiny.yaml"),
        lambda text: text.replace(
            run,
            "run: {threads: 2, log_interval: 7, validation_interval: 3, checkpoint_interval: 4, "
            "float32_matmul_precision: high}",
        ),
    )
    assert replay().startswith("identical: ")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("results/tyni", "no such folder"),
        ("work/runs", "not the folder of a finished run"),
        ("work/runs/tiny", "not the folder of a finished run"),
    ],
)
def test_another_folder_is_refused(tiny: Plan, folder: str, message: str) -> None:
    with pytest.raises(RelmError, match=message):
        replay(Path(folder))
    with pytest.raises(RelmError, match=r"checkpoints.jsonl: its segments are 0 to 3, found 4"):
        replay(segment=4)


def test_several_phases_want_a_choice(tiny: Plan) -> None:
    phase = read_json(TINY / "recipe.json")["recipe"]["pretrain"]["main"]
    plan = trained("two", f"pretrain: {{later: {json.dumps(phase)}}}")
    os.rename(PLAIN.with_name("two") / "checkpoints.jsonl", PLAIN.with_name("two") / "checkpoints.main.jsonl")
    with pytest.raises(RelmError, match="recipe two has several phases; pass --phase main or later"):
        replay(Path("results/two"))
    segments = find_run(Project(), Path("results/two"), "main").describe_segments()
    assert segments.startswith("two, phase main, 40 steps")
    assert replay(plan.run_folder, 3, "main").startswith("identical: segment 3 of two, phase main")


def test_a_signal_leaves_nothing(tiny: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "kill_point", lambda name: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(Preempted, match="stopped before step 40; nothing was compared, and nothing is kept"):
        replay()
    assert not list(Path("work").glob("replay-*"))


PIPELINE = """
model: {dropout: 0.0}
pretrain: {main: {steps: 16, optimizer: {gradient_clipping: null}, schedule: {warmup_steps: 1, updates_per_step: 4}}}
run:
  device: ipu_simulator
  micro_batch_size: 1
  pipeline:
    {layers_per_ipu: [1], gradient_accumulation: 4, device_iterations: 4, precision: float32, stochastic_rounding: false}
  checkpoint_interval: 8
  log_interval: 6
  keep_checkpoints: 9
"""


@pytest.mark.usefixtures("forked_workers")
def test_a_segment_of_a_pipeline_is_trained_again_in_its_calls_and_on_a_cpu(tiny: Plan) -> None:
    plan = trained("in_pipeline", PIPELINE)
    assert [line["step"] for line in read_lines(plan.results / "train.jsonl")] == [4, 8, 12, 16]
    folder = Path("results/in_pipeline")
    assert replay(folder, 1).startswith("identical: segment 1 of in_pipeline, phase main, steps 9 to 16")
    sentence = replay(folder, 1, device="cpu")
    assert sentence.startswith("within the band: segment 1 of in_pipeline")
    assert "device was ipu_simulator, is cpu" in sentence
