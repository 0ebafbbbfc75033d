import bz2
import functools
import gzip
import http.server
import itertools
import json
import lzma
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relm.errors import RelmError
from relm.examples import stream
from relm.examples.stream import Item, ShardStream, merged_states

SIZES = [7, 1, 12, 5, 0, 9, 20, 3, 8, 11]


def lines(shard: int, size: int) -> bytes:
    return b"".join(json.dumps({"n": f"{shard}.{number}", "text": "ș" * number}).encode() + b"\n" for number in range(size))


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Ten shards of different sizes, one of them empty, in four compressions."""
    writers: list[tuple[str, Callable[[bytes], bytes]]] = [
        (".jsonl", bytes), (".json.gz", gzip.compress), (".jsonl.xz", lzma.compress), (".jsonl.bz2", bz2.compress)
    ]  # fmt: skip
    paths = []
    for number, (size, (ending, compress)) in enumerate(zip(SIZES, itertools.cycle(writers), strict=False)):
        paths.append(tmp_path / f"{number}{ending}")
        paths[-1].write_bytes(compress(lines(number, size)))
    return list(map(str, paths))


def first(count: int, shards: list[str], **options: Any) -> list[Item]:
    return list(itertools.islice(ShardStream(shards, **{"seed": 5, "lanes": 4, "block": 4, **options}), count))


def epoch(shards: list[str], number: int, **options: Any) -> list[Item]:
    """The items of one epoch; lanes are at most two epochs apart here."""
    return [item for item in first(sum(SIZES) * (number + 4), shards, **options) if item.epoch == number]


def test_each_epoch_has_each_item_once(shards) -> None:
    everything = sorted((path, item) for path, size in zip(shards, SIZES, strict=True) for item in range(size))
    for number in range(3):
        assert sorted((item.shard, item.number) for item in epoch(shards, number)) == everything


def test_an_item_is_the_line_with_its_number(shards) -> None:
    for item in epoch(shards, 0):
        assert item.value == {"n": f"{shards.index(item.shard)}.{item.number}", "text": "ș" * item.number}


def test_epochs_and_seeds_have_orders_of_their_own(shards) -> None:
    orders = [[(item.shard, item.number) for item in epoch(shards, number)] for number in range(2)]
    orders.append([(item.shard, item.number) for item in epoch(shards, 0, seed=6)])
    assert all(a != b for a, b in itertools.combinations(orders, 2))


def test_neighbours_come_from_shards_of_different_lanes(shards) -> None:
    items = first(200, shards)
    for start in range(0, 200, 4):
        assert len({(item.epoch, item.shard) for item in items[start : start + 4]}) == 4


def test_items_of_a_shard_are_in_a_random_order_within_blocks(shards) -> None:
    numbers = [item.number for item in epoch(shards, 0) if item.shard == shards[6]]
    blocks = [numbers[start : start + 4] for start in range(0, 20, 4)]
    assert [sorted(block) for block in blocks] == [list(range(start, start + 4)) for start in range(0, 20, 4)]
    assert len({tuple(number % 4 for number in block) for block in blocks}) > 2
    assert numbers != [item.number for item in epoch(shards, 1) if item.shard == shards[6]]
    plain = [item.number for item in epoch(shards, 0, block=1) if item.shard == shards[6]]
    assert plain == list(range(20))


def test_the_order_never_changes(tmp_path) -> None:
    # Streams are resumed by these numbers: they may not change for any reason.
    names = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, name in enumerate(names):
        name.write_bytes(lines(number, 3))
    found = [item.value["n"] for item in first(12, list(map(str, names)), seed=1, lanes=2, block=2)]
    assert " ".join(found) == "1.1 0.1 1.0 0.0 1.2 0.2 2.1 2.0 2.0 2.1 2.2 2.2"


@pytest.mark.parametrize("ranks", [2, 4])
def test_global_batches_are_the_same_for_any_number_of_ranks(shards, ranks) -> None:
    pieces = [first(200 // ranks, shards, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [item for together in zip(*pieces, strict=True) for item in together] == first(200, shards)


def test_a_rank_opens_the_shards_of_its_own_lanes_only(shards, monkeypatch) -> None:
    opened = []

    def watched(shard: str) -> Any:
        opened.append(shard)
        return original(shard)

    original = stream.open_shard
    monkeypatch.setattr(stream, "open_shard", watched)
    first(10, shards, rank=1, ranks=2)
    mine = set(opened)
    opened.clear()
    first(10, shards, rank=0, ranks=2)
    assert mine
    assert mine.isdisjoint(opened)


@pytest.mark.parametrize("position", [0, 4, 8, 36, 76, 100, 152, 300])
def test_going_on_from_a_state_gives_what_would_have_followed(shards, position) -> None:
    whole = first(position + 60, shards)
    source = ShardStream(shards, seed=5, lanes=4, block=4)
    for _ in range(position):
        next(source)
    state = json.loads(json.dumps(source.state()))
    assert state["position"] == position
    assert first(60, shards, state=state) == whole[position:]


def test_a_state_taken_between_two_rounds_of_lanes_goes_on_there(shards) -> None:
    source = ShardStream(shards, seed=5, lanes=4, block=4)
    before = [next(source) for _ in range(51)]
    assert before + first(60, shards, state=source.state()) == first(111, shards)


def test_other_ranks_can_go_on_from_merged_states(shards) -> None:
    sources = [ShardStream(shards, seed=5, lanes=4, block=4, rank=rank, ranks=4) for rank in range(4)]
    for _ in range(20):
        for source in sources:
            next(source)
    state = merged_states([source.state() for source in sources])
    assert state["position"] == 80
    whole = first(160, shards)
    assert first(80, shards, state=state) == whole[80:]
    assert first(40, shards, state=state, rank=1, ranks=2) == whole[81::2]


def test_going_on_opens_one_shard_a_lane(shards, monkeypatch) -> None:
    source = ShardStream(shards, seed=5, lanes=4, block=4)
    for _ in range(500):
        next(source)
    opened = []
    original = stream.open_shard

    def watched(shard: str) -> Any:
        opened.append(shard)
        return original(shard)

    monkeypatch.setattr(stream, "open_shard", watched)
    places = source.state()["lanes"]
    list(itertools.islice(ShardStream(shards, seed=5, lanes=4, block=4, state=source.state()), 4))
    ended = sum(place[2] == SIZES[source.order.shard(int(lane), place[0], place[1])] for lane, place in places.items())
    assert 4 <= len(opened) <= 4 + 2 * ended  # a shard whose end was reached is opened, and the next ones that hold items


def test_a_state_of_another_stream_is_refused(shards) -> None:
    state = ShardStream(shards, seed=5, lanes=4, block=4).state()
    for change in ({"seed": 6}, {"lanes": 2}, {"block": 3}):
        with pytest.raises(RelmError, match="taken with other shards, seed, lanes or block"):
            first(1, shards, state=state, **change)
    with pytest.raises(RelmError, match="taken with other shards"):
        first(1, shards[:-1], state=state)
    with pytest.raises(RelmError, match="position 6 lies within a round of 4 ranks"):
        first(1, shards, ranks=4, state={**state, "position": 6})
    half = ShardStream(shards, seed=5, lanes=4, block=4, rank=1, ranks=2).state()
    with pytest.raises(RelmError, match="lacks lane 0; merge the states of all ranks"):
        first(1, shards, state=half)
    with pytest.raises(RelmError, match=r"they differ in position \(0, 4\)"):
        merged_states([state, {**state, "position": 4}])


@pytest.mark.parametrize("block", [1, 4, 1000])
def test_parquet_is_read_by_row_groups_and_gives_the_same_items(tmp_path, shards, block, monkeypatch) -> None:
    monkeypatch.setattr(stream, "ROWS", 2)
    tables = []
    for number, size in enumerate(SIZES):
        tables.append(str(tmp_path / f"{number}.parquet"))
        rows = [json.loads(line) for line in lines(number, size).splitlines()]
        table = pa.Table.from_pylist(rows, schema=pa.schema({"n": pa.string(), "text": pa.string()}))
        pq.write_table(table, tables[-1], row_group_size=3)
    expected = [(item.epoch, item.number, item.value) for item in first(150, shards, block=block)]
    assert [(item.epoch, item.number, item.value) for item in first(150, tables, block=block)] == expected
    source = ShardStream(tables, seed=5, lanes=4, block=block)
    for _ in range(90):
        next(source)
    assert [item.value for item in first(60, tables, block=block, state=source.state())] == [row[2] for row in expected[90:]]


def test_going_on_in_parquet_skips_whole_row_groups(tmp_path, monkeypatch) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": list(range(100))}), path, row_group_size=10)
    read = []
    original = pq.ParquetFile.iter_batches

    def watched(self: Any, **options: Any) -> Any:
        read.extend(options["row_groups"])
        return original(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    source = ShardStream([path], seed=0, lanes=1, block=1)
    for _ in range(87):
        next(source)
    read.clear()
    assert next(ShardStream([path], seed=0, lanes=1, block=1, state=source.state())).value == {"n": 87}
    assert read == [8]


CONSUMER = """
import json, os, sys
from pathlib import Path
from relm.examples.stream import ShardStream
shards, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
state = json.loads((folder / "state.json").read_text()) if (folder / "state.json").exists() else None
stream = ShardStream(shards, seed=5, lanes=4, block=4, state=state)
with open(folder / "items.jsonl", "a+b") as log:
    log.truncate(state["bytes"] if state else 0)
    while True:
        for _ in range(4):
            item = next(stream)
            log.write(json.dumps([item.epoch, item.value["n"]]).encode() + b"\\n")
        log.flush()
        (folder / "next.json").write_text(json.dumps({**stream.state(), "bytes": log.tell()}))
        os.replace(folder / "next.json", folder / "state.json")
"""


def test_a_killed_reader_goes_on_with_the_same_items(tmp_path, shards) -> None:
    random.seed(0)
    log, state = tmp_path / "items.jsonl", tmp_path / "state.json"
    positions = [0]
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", CONSUMER, json.dumps(shards), str(tmp_path)])
        while not state.exists() or json.loads(state.read_text())["position"] < positions[-1] + 40:
            assert process.poll() is None
            time.sleep(random.uniform(0.001, 0.01))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        positions.append(json.loads(state.read_text())["position"])
    written = [json.loads(line) for line in log.read_bytes()[: json.loads(state.read_text())["bytes"]].splitlines()]
    assert written == [[item.epoch, item.value["n"]] for item in first(positions[-1], shards)]
    assert len(written) >= 120


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """The address of `tmp_path` on this machine."""
    handler = functools.partial(QuietHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_addresses_are_read_from_the_network(shards, server) -> None:
    addresses = [f"{server}/{Path(path).name}" for path in shards]
    assert [item.value for item in first(60, addresses)] == [item.value for item in first(60, shards)]
    with pytest.raises(RelmError, match=r"absent\.jsonl, line 1: cannot be read \(HTTP Error 404"):
        first(1, [f"{server}/absent.jsonl"], lanes=1)
    with pytest.raises(RelmError, match=r"a\.parquet: Parquet is read from local files only"):
        first(1, [f"{server}/a.parquet"], lanes=1)


def faulty(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return [str(path)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"n": 1}\n{"n"\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"n": 1}\n\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"n": 1}\n{"n": "\xff"}\n', r"a\.jsonl, line 2: not valid JSON in UTF-8"),
        ("a.jsonl", b'{"n": 1}\n3\n', r"a\.jsonl, line 2: expected a JSON object, found int"),
        ("a.json.gz", b"no gzip", r"a\.json\.gz, line 1: cannot be read .*get it again"),
        ("a.json.gz", gzip.compress(lines(0, 50))[:-20], r"a\.json\.gz, line \d+: cannot be read .*truncated"),
        ("a.jsonl.xz", lzma.compress(lines(0, 50))[:-20], r"a\.jsonl\.xz, line \d+: cannot be read .*truncated"),
        ("a.parquet", b"PAR1 and no more", r"a\.parquet: cannot be read"),
        ("a.jsonl", b"", r"a\.jsonl: holds no items"),
    ],
)
def test_faults_name_shard_and_line_as_often_as_asked(tmp_path, name, content, message) -> None:
    source = ShardStream(faulty(tmp_path / name, content), seed=0, lanes=1, block=1)
    for _ in range(2):
        with pytest.raises(RelmError, match=message):
            list(itertools.islice(source, 60))


def test_impossible_streams_are_refused(tmp_path, shards) -> None:
    with pytest.raises(RelmError, match="10 shards cannot be read in 16 lanes"):
        ShardStream(shards, seed=0, lanes=16)
    for options in ({"ranks": 3}, {"rank": 4, "ranks": 4}, {"block": 0}, {"lanes": 0}):
        with pytest.raises(ValueError, match="expected ranks that divide lanes"):
            ShardStream(shards, **{"seed": 0, "lanes": 4, **options})
    with pytest.raises(RelmError, match=r"absent\.jsonl: no such file"):
        first(1, [str(tmp_path / "absent.jsonl")], lanes=1)


def test_nothing_is_opened_before_it_is_read(tmp_path) -> None:
    assert ShardStream([str(tmp_path / "absent.jsonl")], seed=0, lanes=1).state()["position"] == 0
