"""Checkpoints that TensorFlow wrote are read with every value, and damaged ones are refused with the file's name."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_bundles import entry, field, header, table, write_bundle

from relm.errors import RelmError
from relm.training.imports.tensor_bundle import TensorBundle, checkpoint_prefix
from tensorflow_variables import Array, draw, variables

DATA = Path(__file__).parents[1] / "data" / "tensorflow_bert"
WRITTEN = {"google": variables("google"), "graphcore": variables("graphcore", biases=False, transform=False)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The name that the files of a copy of TensorFlow's own checkpoint share."""
    for path in DATA.glob("google.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / "google"


def assert_equal(bundle: TensorBundle, expected: dict[str, Array]) -> None:
    for name, value in expected.items():
        found = bundle.read(name)
        assert found.shape == value.shape
        np.testing.assert_array_equal(found, value, err_msg=name)


@pytest.mark.parametrize(("layout", "dtype"), [("google", np.float32), ("graphcore", np.float16)])
def test_a_checkpoint_written_by_tensorflow_has_every_value(layout: str, dtype: type) -> None:
    bundle = TensorBundle(DATA / layout)
    assert_equal(bundle, WRITTEN[layout])
    assert {bundle.read(name).dtype for name in WRITTEN[layout]} == {np.dtype(dtype)}


def test_checkpoints_of_these_tests_have_the_bytes_of_tensorflows(tmp_path: Path) -> None:
    write_bundle(tmp_path / "google", WRITTEN["google"])
    for path in DATA.glob("google.*"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_moments_and_counters_are_in_a_checkpoint_of_a_run() -> None:
    bundle = TensorBundle(DATA / "graphcore")
    more = bundle.variables.keys() - WRITTEN["graphcore"].keys()
    assert sorted(more)[:2] == ["bert/embeddings/LayerNorm/gamma/lamb_m", "bert/embeddings/LayerNorm/gamma/lamb_v"]
    name = "bert/embeddings/word_embeddings"
    np.testing.assert_array_equal(bundle.read(f"{name}/lamb_v"), draw(f"lamb_v{name}", WRITTEN["graphcore"][name].shape))
    assert bundle.read("global_step").shape == ()


@pytest.mark.parametrize(("shards", "each"), [(1, 10**6), (3, 2)])
def test_a_checkpoint_of_many_blocks_and_data_files_is_read(shards: int, each: int, tmp_path: Path) -> None:
    values = {
        "a": np.arange(6, dtype="<i4").reshape(1, 2, 3),
        "b": np.array(2**40),
        "c": np.zeros((0, 4), dtype="<f4"),
        "d/first": np.array([0.1, -0.2]),
        "d/large": np.random.default_rng(0).standard_normal((300, 301)).astype("<f4"),
        "d/last": np.array([1.5], dtype="<f2"),
    }
    bundle = TensorBundle(write_bundle(tmp_path / "ckpt-7", values, shards, each))
    assert list(bundle.variables) == sorted(values)
    assert_equal(bundle, values)


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 2.0**-130, np.inf], dtype="<f4")
    halves = (values.view("<u4") >> 16).astype("<u2").tobytes()
    (tmp_path / "c.index").write_bytes(table({b"": header(), b"x": entry(14, (4,), 0, 0, halves)}))
    (tmp_path / "c.data-00000-of-00001").write_bytes(halves)
    np.testing.assert_array_equal(TensorBundle(tmp_path / "c").read("x"), values)


@pytest.mark.parametrize("name", ["a/ckpt-3", "a/ckpt-3.index", "a/ckpt-3.meta", "a/ckpt-3.data-00001-of-00002"])
def test_every_file_of_a_checkpoint_names_it(name: str) -> None:
    assert checkpoint_prefix(Path(name)) == Path("a/ckpt-3")


def test_a_changed_byte_of_the_index_is_refused_or_meaningless(checkpoint: Path) -> None:
    index = Path(f"{checkpoint}.index")
    content, expected, refused = index.read_bytes(), TensorBundle(checkpoint).variables, 0
    for position in range(0, len(content), 5):
        index.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        with contextlib.suppress(RelmError):
            refused += 1
            assert TensorBundle(checkpoint).variables == expected
            refused -= 1
    assert refused > 0.95 * len(range(0, len(content), 5))  # the footer has unused bytes, and TensorFlow an empty block


@pytest.mark.parametrize("size", [0, 47, 48, 1000, -1])
def test_a_truncated_index_is_refused(checkpoint: Path, size: int) -> None:
    index = Path(f"{checkpoint}.index")
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(
        RelmError, match=f"{index}: does not end as the index of a TensorFlow checkpoint: truncated, or another"
    ):
        TensorBundle(checkpoint)


def test_an_absent_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"none\.index: no such file; give the name that a checkpoint's files share, such as"):
        TensorBundle(tmp_path / "none")


def test_a_changed_byte_of_the_data_is_refused_with_the_variables_name(checkpoint: Path) -> None:
    data, name = Path(f"{checkpoint}.data-00000-of-00001"), "bert/encoder/layer_1/output/dense/kernel"
    content, bundle = bytearray(data.read_bytes()), TensorBundle(checkpoint)
    content[bundle.variables[name].offset + 5] ^= 1
    data.write_bytes(content)
    with pytest.raises(RelmError, match=f"{data}: the checksum of {name} at byte .* but its bytes give .*: damaged; copy"):
        bundle.read(name)
    bundle.read("bert/encoder/layer_1/output/dense/bias")


def test_missing_and_truncated_data_are_refused(checkpoint: Path) -> None:
    data, bundle = Path(f"{checkpoint}.data-00000-of-00001"), TensorBundle(checkpoint)
    data.write_bytes(data.read_bytes()[:-1])
    last = max(bundle.variables, key=lambda name: bundle.variables[name].offset)
    with pytest.raises(RelmError, match=f"{data}: has 6,063 bytes, but {last} ends at byte 6,064: truncated; copy"):
        bundle.read(last)
    data.unlink()
    with pytest.raises(RelmError, match=rf"{data}: no such file; .* copy it beside google\.index"):
        bundle.read(last)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table({b"": header(big_endian=1)}), "was written on a big-endian machine, which is not supported"),
        (table({b"": header()}, compression=1), "is compressed, which TensorFlow's checkpoints are not"),
        (table({b"": header(), b"x": b"\x0b"}), "an entry of it cannot be read, though its checksum is right"),
        (table({b"": header(), b"x": field(2, b"\x12\x7f")}), "an entry of it cannot be read, though its checksum is right"),
        (table({b"": header(), b"\xfe": b""}), "an entry of it cannot be read, though its checksum is right"),
    ],
    ids=["big-endian", "compressed", "field", "length", "name"],
)
def test_an_index_that_is_whole_but_cannot_be_used_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.index").write_bytes(content)
    with pytest.raises(RelmError) as caught:
        TensorBundle(tmp_path / "c")
    assert str(caught.value).startswith(f"{tmp_path}/c.index: {message}")


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (entry(7, (4,), 0, 0, bytes(4)), "x has TensorFlow's type 7, expected numbers"),
        (entry(1, (2,), 0, 0, bytes(8), more=field(7, b"")), "x is saved in slices, which is not supported"),
        (entry(1, (3,), 0, 0, bytes(8)), r"x has shape \(3,\) and 8 bytes, which do not fit"),
        (entry(1, (2**63, 2**62), 0, 0, bytes(8)), "which do not fit"),
    ],
    ids=["text", "slices", "size", "overflow"],
)
def test_a_variable_that_is_no_array_of_numbers_is_refused(described: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "c.index").write_bytes(table({b"": header(), b"x": described}))
    (tmp_path / "c.data-00000-of-00001").write_bytes(bytes(8))
    with pytest.raises(RelmError, match=message):
        TensorBundle(tmp_path / "c").read("x")
