"""Messages arrive unchanged, and nothing else is taken for one."""

import io
import json
import struct

import numpy as np
import pytest

from relm.devices.ipu.channel import ARRAYS_LIMIT, HEADER_LIMIT, MAGIC, ChannelError, Closed, Message, receive, send


def sent(message: Message) -> bytes:
    stream = io.BytesIO()
    send(stream, message)
    return stream.getvalue()


def framed(header: object, rest: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + rest


ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "scalar": np.array(1.5, dtype=np.float64),
    "empty": np.zeros((0, 4), dtype=np.int32),
    "flags": np.array([True, False]),
    "half": np.array([1.0, -2.0], dtype=np.float16),
    "not finite": np.array([np.nan, np.inf], dtype=np.float32),
}


def test_a_message_arrives_as_it_was_sent() -> None:
    fields = {"learning_rate": 0.1 + 0.2, "name": "ș", "nested": {"list": [1, None, True]}}
    stream = io.BytesIO(sent(Message("take", fields, ARRAYS)) + sent(Message("close", {}, {})))
    found = receive(stream)
    assert (found.kind, found.fields, list(found.arrays)) == ("take", fields, list(ARRAYS))
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert receive(stream).kind == "close"
    with pytest.raises(Closed):
        receive(stream)


def test_received_arrays_can_be_written_to() -> None:
    found = receive(io.BytesIO(sent(Message("load", {}, ARRAYS))))
    found.arrays["matrix"][0, 0] = 9


def test_every_beginning_of_a_message_is_refused() -> None:
    whole = sent(Message("take", {"a": 1}, ARRAYS))
    for length in range(1, len(whole)):
        with pytest.raises(ChannelError):
            receive(io.BytesIO(whole[:length]))


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.array([1j]), np.array([1], dtype=">i4")])
def test_arrays_of_other_types_are_not_sent(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="array odd has type"):
        sent(Message("take", {}, {"odd": array}))


def entry(name: object = "a", dtype: object = "float32", shape: object = (2,)) -> dict[str, object]:
    return {"kind": "take", "fields": {}, "arrays": [[name, dtype, shape]]}


GARBAGE = {
    "text": b"Traceback (most recent call last):\n",
    "a long header": MAGIC + struct.pack("<Q", HEADER_LIMIT + 1),
    "no JSON": framed(b"{"),
    "no UTF-8": framed(b'{"kind": "\xff"}'),
    "a list": framed([1, 2]),
    "deep": framed(b"[" * 100_000),
    "a missing key": framed({"kind": "take", "fields": {}}),
    "a kind that is no text": framed({"kind": 1, "fields": {}, "arrays": []}),
    "fields that are no object": framed({"kind": "take", "fields": [], "arrays": []}),
    "half an entry": framed({"kind": "take", "fields": {}, "arrays": [["a", "float32"]]}),
    "an unknown type": framed(entry(dtype="object")),
    "a type that is no text": framed(entry(dtype=["float32"])),
    "a negative length": framed(entry(shape=[-1])),
    "a length that is no whole number": framed(entry(shape=[1.0])),
    "a length that is a truth value": framed(entry(shape=[True])),
    "many dimensions": framed(entry(shape=[1] * 9)),
    "a name that is no text": framed(entry(name=1)),
    "more than fits": framed(entry(shape=[ARRAYS_LIMIT // 4 + 1])),
    "a product that overflows": framed(entry(shape=[1 << 32, 1 << 32])),
    "a name twice": framed({"kind": "take", "fields": {}, "arrays": [["a", "bool", [0]], ["a", "bool", [0]]]}),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_bytes_that_are_no_message_are_refused(name: str) -> None:
    with pytest.raises(ChannelError):
        receive(io.BytesIO(GARBAGE[name]))


def test_random_bytes_after_a_valid_start_are_refused() -> None:
    generator = np.random.default_rng(0)
    whole = sent(Message("take", {"a": 1}, {"x": np.zeros(3, dtype=np.float32)}))
    header = whole.index(b"{")
    refused = 0
    for _ in range(300):
        changed = bytearray(whole)
        changed[generator.integers(header, len(whole) - 12)] = generator.integers(256)
        try:
            assert isinstance(receive(io.BytesIO(bytes(changed))), Message)  # a changed name or number is still a message
        except ChannelError:
            refused += 1
    assert refused > 100
