"""The tracing device overrides methods of the XLA device by their names."""

from relm.devices.xla import XlaDevice
from relm.forecast.compilation.tracing import TracingDevice


def test_every_public_method_of_the_tracing_device_is_one_of_the_xla_device():
    own = [name for name in vars(TracingDevice) if not name.startswith("_")]

    assert "launch" in own
    assert [name for name in own if not hasattr(XlaDevice, name)] == []
