import pytest

from relm.formatting import format_bytes, format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (12.4, "12 s"), (59.7, "1 min 0 s"), (185, "3 min 5 s"), (7440, "2 h 4 min"), (273600, "3 d 4 h")],
)
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(912, "912 B"), (1234, "1.23 kB"), (100_000_000, "100 MB"), (999_700, "1 MB"), (10**18, "1,000,000 TB")],
)
def test_sizes_are_formatted_in_powers_of_ten(size: int, text: str) -> None:
    assert format_bytes(size) == text
