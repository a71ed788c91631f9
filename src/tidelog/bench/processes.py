"""What a running process costs, read from /proc: CPU seconds, resident memory; and memory made ready to measure on."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TOUCH_BYTES = 64 << 20
# How Linux numbers the CPU clock of another process (`clock_getcpuclockid`): to the nanosecond, all threads together.
_PROCESS_CLOCK = 2


def cpu_s_of(pid: int) -> float:
    """CPU seconds that the process has used since it started, threads that have ended included."""
    return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)


def resident_bytes_of(pid: int) -> int:
    return _status_bytes(pid, "VmRSS:")


def resident_peak_bytes_of(pid: int) -> int:
    """The most since the process started, or since `reset_resident_peak`."""
    return _status_bytes(pid, "VmHWM:")


def reset_resident_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # as proc(5) has it


def _status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no resident memory: it is a kernel thread or has ended")


def available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError("/proc/meminfo does not tell the available memory")


def touch_memory(size_bytes: int) -> None:
    """Write to that much free memory once.

    A virtual machine gets a page of memory when it first uses it, which costs about ten times as much as later uses.
    The side that writes files first would pay for it.
    """
    content = bytes([1]) * _TOUCH_BYTES
    with mmap.mmap(-1, size_bytes) as memory:
        for _ in range(size_bytes // _TOUCH_BYTES):
            memory.write(content)


@contextmanager
def held_to_one_core(*, other: bool = False) -> Iterator[None]:
    """Keep this process, and those it starts meanwhile, on one core (or on another one)."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores) if other else max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
