from collections.abc import Sequence

TOGETHER: int

def decompress(data: bytes, bounds: Sequence[int], /) -> bytes | None: ...
