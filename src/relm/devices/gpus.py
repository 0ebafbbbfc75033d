"""The NVIDIA GPUs of this machine, by the driver's own library and without torch, whose import takes seconds."""

import ctypes

LIBRARY = "libcuda.so.1"


def gpus_here() -> list[int]:
    """Return the bytes of memory of each GPU that a program here may use; none without a driver.

    CUDA_VISIBLE_DEVICES counts, because the driver reads it.
    """
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    return [_memory_of(driver, number) for number in range(count.value)]


def _memory_of(driver: ctypes.CDLL, number: int) -> int:
    """Return the memory of a GPU in bytes; 0 if the driver does not report it."""
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    if driver.cuDeviceGet(ctypes.byref(device), number) or driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device):
        return 0
    return memory.value
