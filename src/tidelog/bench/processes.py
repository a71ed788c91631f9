"""What a running process costs, read from /proc: CPU seconds, resident memory; and memory made ready to measure on."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_TOUCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU time that a process has used since it started."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s

    def __sub__(self, earlier: Cpu) -> Cpu:
        return Cpu(self.user_s - earlier.user_s, self.system_s - earlier.system_s)


def cpu_of(pid: int) -> Cpu:
    # The command name, in brackets, may hold spaces: fields are counted after the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Cpu(user_s=int(fields[11]) / _TICKS_PER_S, system_s=int(fields[12]) / _TICKS_PER_S)


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

    A virtual machine gets its memory page by page as it first uses it, at about ten times the cost of using it. Who
    writes files first would pay for it, in whichever order the brokers come.
    """
    content = bytes([1]) * _TOUCH_BYTES
    with mmap.mmap(-1, size_bytes) as memory:
        for _ in range(size_bytes // _TOUCH_BYTES):
            memory.write(content)


@contextmanager
def held_to_one_core(*, other: bool = False) -> Iterator[None]:
    """This process and those started meanwhile run on one core (or on an other one); the rest stay where they are."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores) if other else max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
