"""Default requests of a job to a cluster, where recipe and machine state no figure, and the rounding of figures.

Any of it can be changed without editing, in a profile or by `--set-resources RULE:NAME=VALUE`.
"""

CORES, CORES_OF_ACCELERATOR = 8, 8
"""CPU cores of a job, and of one with accelerators for each of them."""
MEMORY_MB, MEMORY_MB_OF_ACCELERATOR = 16_000, 32_000
"""Main memory of a job, and of one with accelerators for each of them."""
SMALL_MEMORY_MB = 2_000
"""Main memory of a job that reads its files piece by piece: a download, figures of a log."""
MEMORY_MB_OF_WORKER = 1_000
"""Main memory of each worker process of extraction and pregeneration, with what is read ahead for it."""
DISK_MB = 1_000
"""Disk space of files whose size nothing states."""
RUNTIME = 1440
"""Minutes of a job whose work nothing states."""
SHARE_OF_HOST = 0.9
"""Share of a host's stated memory that a job requests; the system keeps the rest."""
START, LONGEST = 60, 7 * 1440
"""Minutes that are added to an estimated runtime for reading data and compiling, and the longest queue of most clusters."""
PREPARED_MB_A_MINUTE = 30
"""Text that each worker prepares at least; a slower job is stopped at its time limit."""
TEXT_OF_COMPRESSED, EXAMPLES_OF_TEXT = 4, 2
"""Largest size of documents relative to their compressed source, and of examples relative to documents."""


def count_megabytes(size: int) -> int:
    """Return bytes as whole megabytes, rounded up.

    >>> count_megabytes(1), count_megabytes(2_000_000)
    (1, 2)
    """
    return -(-size // 10**6)
