"""Messages arrive unchanged, and nothing else is taken for one."""

import io

import numpy as np
import pytest

from relm.devices.ipu.channel import ChannelError, Closed, Message, receive, send


def sent(message: Message) -> bytes:
    stream = io.BytesIO()
    send(stream, message)
    return stream.getvalue()


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


def test_what_does_not_begin_a_message_is_refused() -> None:
    with pytest.raises(ChannelError, match="expected a message, which begins with b'relm ipu', found b'Tracebac'"):
        receive(io.BytesIO(b"Traceback (most recent call last):\n"))
